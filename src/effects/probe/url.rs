//! URLs of pages and redirects, parsed like Go's client.

use std::fmt::{self, Display};

use hyper::Uri;

use super::dial::join_host_port;

/// The URL of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Url {
    /// Whether the scheme is `https`.
    pub(super) tls: bool,
    /// Name or address, without brackets.
    pub(super) host: String,
    /// The port.
    pub(super) port: u16,
    /// Whether the port is written, even if it is the scheme's.
    pub(super) shows_port: bool,
    /// Path with query, percent-encoded, begins with `/`.
    pub(super) path: String,
}

impl Url {
    pub(super) fn new(tls: bool, host: &str, port: u16, path: &str) -> Self {
        Self {
            tls,
            host: host.to_owned(),
            port,
            shows_port: true,
            path: configured(path),
        }
    }

    /// The `Host` header.
    pub(super) fn authority(&self) -> String {
        match (self.shows_port, self.host.contains(':')) {
            (true, _) => join_host_port(&self.host, self.port),
            (false, true) => format!("[{}]", self.host),
            (false, false) => self.host.clone(),
        }
    }

    /// The target of a redirect, and whether it names a host; otherwise why it is invalid.
    pub(super) fn follow(&self, location: &str) -> Result<(Self, bool), String> {
        let scheme = location.split(['/', '?', '#']).next().unwrap_or_default();
        if let Some((scheme, _)) = scheme.split_once(':') {
            let tls = match scheme.to_ascii_lowercase().as_str() {
                "http" => false,
                "https" => true,
                other => return Err(format!("unsupported protocol scheme \"{other}\"")),
            };
            let rest = location[scheme.len() + 1..].trim_start_matches("//");
            return Self::absolute(tls, rest)
                .map(|url| (url, true))
                .ok_or_else(|| unparsable(location));
        }
        if let Some(rest) = location.strip_prefix("//") {
            return Self::absolute(self.tls, rest)
                .map(|url| (url, true))
                .ok_or_else(|| unparsable(location));
        }
        let path = match location.chars().next() {
            Some('/') => location.to_owned(),
            Some('?') => format!("{}{location}", self.bare_path()),
            _ => {
                let folder = self.bare_path().rsplit_once('/').map_or("", |(dir, _)| dir);
                format!("{folder}/{location}")
            }
        };
        let path = encode(&path);
        Ok((
            Self {
                path,
                ..self.clone()
            },
            false,
        ))
    }

    fn bare_path(&self) -> &str {
        self.path.split('?').next().unwrap_or_default()
    }

    fn absolute(tls: bool, rest: &str) -> Option<Self> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority: Uri = authority.parse().ok()?;
        let port = authority.port_u16();
        let host = authority.host()?.trim_matches(['[', ']']);
        Some(Self {
            tls,
            host: host.to_owned(),
            port: port.unwrap_or(if tls { 443 } else { 80 }),
            shows_port: port.is_some(),
            path: encode(path),
        })
    }
}

impl Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

fn unparsable(location: &str) -> String {
    format!("failed to parse Location header \"{location}\"")
}

/// The request path of a configured one. As the kubelet does, one that is no valid URL is taken as a plain path, in
/// which nothing has a meaning.
fn configured(path: &str) -> String {
    let (rest, fragment) = path.split_once('#').unwrap_or((path, ""));
    let plain = rest.split('?').next().unwrap_or_default();
    let valid = !path.bytes().any(|byte| byte.is_ascii_control());
    if valid && has_whole_escapes(plain) && has_whole_escapes(fragment) {
        return encode(path);
    }
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut encoded = slash.to_owned();
    for byte in path.bytes() {
        match byte {
            // What Go's `url.EscapedPath` leaves as it is.
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => encoded.push(char::from(byte)),
            b'-' | b'_' | b'.' | b'~' | b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'='
            | b'@' => {
                encoded.push(char::from(byte));
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

/// Whether two hexadecimal digits follow each `%`.
fn has_whole_escapes(text: &str) -> bool {
    text.split('%').skip(1).all(|after| {
        let digits = after.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

/// Makes a valid request path: no fragment, odd bytes percent-encoded.
fn encode(path: &str) -> String {
    let path = path.split('#').next().unwrap_or_default();
    let mut encoded = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        encoded.push('/');
    }
    for byte in path.bytes() {
        match byte {
            0..=b' ' | 0x7f.. | b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => {
                encoded.push_str(&format!("%{byte:02X}"));
            }
            plain => encoded.push(char::from(plain)),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_go_would_go() {
        let here = Url::new(false, "10.0.0.1", 8080, "/a/b?c=d");
        let table = [
            ("/x", "http://10.0.0.1:8080/x"),
            ("x", "http://10.0.0.1:8080/a/x"),
            ("?e", "http://10.0.0.1:8080/a/b?e"),
            ("//other/x", "http://other/x"),
            ("http://10.0.0.1/x#y", "http://10.0.0.1/x"),
            ("https://10.0.0.1:8443", "https://10.0.0.1:8443/"),
            ("https://[fd00::1]:1/x", "https://[fd00::1]:1/x"),
            ("http://other?x=http://y/", "http://other/?x=http://y/"),
        ];
        for (location, expected) in table {
            let (url, _) = here.follow(location).unwrap();
            assert_eq!(url.to_string(), expected, "{location}");
        }
        let failed = here.follow("ftp://x/").unwrap_err();
        assert_eq!(failed, "unsupported protocol scheme \"ftp\"");
    }

    #[test]
    fn odd_paths_are_encoded() {
        let url = Url::new(true, "fd00::1", 443, "/a b/ü?x=%20|#z");
        assert_eq!(
            url.to_string(),
            "https://[fd00::1]:443/a%20b/%C3%BC?x=%20%7C"
        );
    }

    #[test]
    fn a_path_with_a_broken_escape_is_a_plain_path() {
        let table = [
            ("/ok%zz", "/ok%25zz"),
            ("/ok%4", "/ok%254"),
            ("/%41%zz?a=b#c", "/%2541%25zz%3Fa=b%23c"),
            ("ok%", "/ok%25"),
            ("/a#%z", "/a%23%25z"),
            ("/a\tb?c", "/a%09b%3Fc"),
            ("/%41?a=%zz", "/%41?a=%zz"),
        ];
        for (written, sent) in table {
            assert_eq!(Url::new(false, "h", 1, written).path, sent, "{written}");
        }
    }
}
