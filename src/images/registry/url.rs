//! URLs of registries, as far as a client of registries needs them: `http` and `https`, a host, a port, a path.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest URL. Links to storage services carry a signature of one or two thousand bytes.
const MAX_BYTES: usize = 16 << 10;

/// A checked URL.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Url {
    /// Where it leads.
    pub(super) origin: Origin,
    /// Begins with `/`; with the query, without the fragment.
    target: String,
}

/// A scheme, a host and a port: what credentials belong to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Origin {
    /// Whether it is `https`.
    pub(super) tls: bool,
    /// In lower case; an IPv6 address in brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Origin {
    /// The origin of `host` or `host:port`, as in an image's name.
    pub(super) fn of(tls: bool, authority: &str) -> Result<Self, String> {
        let bad = || format!("`{}` is no host", shorten(authority));
        let (host, port) = match authority.rsplit_once(':') {
            // The colons of an IPv6 address are in brackets.
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (authority, None),
        };
        let port = match port {
            Some(port) => port.parse().map_err(|_| bad())?,
            None if tls => 443,
            None => 80,
        };
        let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let fits = match inner {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty()
                    && host.len() <= 253
                    && host
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
            }
        };
        if !fits || port == 0 {
            return Err(bad());
        }
        Ok(Self {
            tls,
            host: host.to_ascii_lowercase(),
            port,
        })
    }

    /// Whether the host is this machine: an address of the loopback network, or `localhost`.
    pub(super) fn is_loopback(&self) -> bool {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        match bare.parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => bare == "localhost" || bare.ends_with(".localhost"),
        }
    }

    /// The addresses of `localhost`, which need no look-up: a minimal system has no `/etc/hosts`.
    pub(super) fn fixed_addresses(&self) -> Option<[IpAddr; 2]> {
        let local = self.host == "localhost" || self.host.ends_with(".localhost");
        local.then_some([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()])
    }

    /// `host`, or `host:port` if the port is not the scheme's own.
    pub(super) fn authority(&self) -> String {
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => self.host.clone(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }

    /// A URL there; `target` begins with `/`.
    pub(super) fn at(&self, target: &str) -> Url {
        Url {
            origin: self.clone(),
            target: target.to_owned(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl Url {
    /// Parses an absolute URL.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let bad = |why: &str| format!("`{}` is no URL of a registry: {why}", public(text));
        if text.len() > MAX_BYTES {
            return Err(bad("it is too long"));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("no scheme"))?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err(bad("its scheme is neither `https` nor `http`")),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        if authority.contains('@') {
            return Err(bad("it has credentials"));
        }
        let origin = Origin::of(tls, authority).map_err(|_| bad("it has no valid host"))?;
        let target = target_of(target).ok_or_else(|| bad("invalid characters"))?;
        Ok(Self { origin, target })
    }

    /// Follows a `Location`, absolute or relative to this URL (RFC 3986, section 5.2).
    pub(super) fn join(&self, location: &str) -> Result<Self, String> {
        let location = location.trim();
        let scheme_ends = location.find("://");
        let path_begins = location.find(['/', '?', '#']).unwrap_or(location.len());
        if scheme_ends.is_some_and(|end| end < path_begins) {
            return Self::parse(location);
        }
        let bad = || format!("`{}` is no location", public(location));
        if location.is_empty() || location.len() > MAX_BYTES {
            return Err(bad());
        }
        if location.starts_with("//") {
            let scheme = if self.origin.tls { "https:" } else { "http:" };
            return Self::parse(&format!("{scheme}{location}"));
        }
        let path = self.target.split('?').next().unwrap_or("/");
        let target = match location.chars().next() {
            Some('/') => location.to_owned(),
            Some('?') => format!("{path}{location}"),
            Some('#') => self.target.clone(),
            _ => {
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                format!("{folder}/{location}")
            }
        };
        Ok(Self {
            origin: self.origin.clone(),
            target: target_of(&target).ok_or_else(bad)?,
        })
    }

    /// The whole URL, for the request only: its query may be a secret.
    pub(super) fn full(&self) -> String {
        format!("{}{}", self.origin, self.target)
    }
}

impl fmt::Display for Url {
    /// Without the query, which may hold a signature that gives access.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.target.split('?').next().unwrap_or("/");
        write!(f, "{}{}", self.origin, shorten(path))
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Path and query without the fragment and without `.` and `..`; `None` if a character is not allowed.
fn target_of(text: &str) -> Option<String> {
    let text = text.split('#').next().unwrap_or_default();
    let allowed = |b: u8| b.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&b);
    if !text.bytes().all(allowed) {
        return None;
    }
    let (path, query) = match text.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (text, None),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').skip(usize::from(path.starts_with('/'))) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let mut target = format!("/{}", parts.join("/"));
    if let Some(query) = query {
        target.push('?');
        target.push_str(query);
    }
    Some(target)
}

/// What should be a URL, for a message: without user, password, query and fragment, as far as they can be told.
fn public(text: &str) -> String {
    let (scheme, rest) = match text.find("://") {
        Some(end) => text.split_at(end + 3),
        None => ("", text),
    };
    let path = rest.split(['?', '#']).next().unwrap_or_default();
    let shown = match path.rsplit_once('@') {
        Some((_, shown)) => shown,
        // It may be the end of a password.
        None if rest.contains('@') => "…",
        None => path,
    };
    shorten(&format!("{scheme}{shown}"))
}

/// Text of a stranger, for a message.
pub(super) fn shorten(text: &str) -> String {
    const MOST: usize = 200;
    let shown: String = text
        .chars()
        .take(MOST)
        .flat_map(char::escape_debug)
        .collect();
    match text.chars().nth(MOST) {
        Some(_) => format!("{shown}…"),
        None => shown,
    }
}

/// Encodes a value for a query.
pub(super) fn encode(value: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::new();
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            byte => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_absolute_or_relative_to_the_url_it_comes_from() {
        let base = Url::parse("https://Registry.example:5000/v2/a/b/blobs/x?y=1").unwrap();
        for (location, expected) in [
            ("/v2/z", "https://registry.example:5000/v2/z"),
            ("/z?q=1#f", "https://registry.example:5000/z?q=1"),
            ("z", "https://registry.example:5000/v2/a/b/blobs/z"),
            ("../z", "https://registry.example:5000/v2/a/b/z"),
            ("../../../../../../z", "https://registry.example:5000/z"),
            ("?q=2", "https://registry.example:5000/v2/a/b/blobs/x?q=2"),
            ("//cdn.example/z", "https://cdn.example/z"),
            ("http://cdn.example", "http://cdn.example/"),
            ("HTTPS://cdn.example:443/z", "https://cdn.example/z"),
            (
                "/z?to=http://other/",
                "https://registry.example:5000/z?to=http://other/",
            ),
            ("https://[::1]:5000/z", "https://[::1]:5000/z"),
            ("https://cdn.example?q", "https://cdn.example/?q"),
        ] {
            assert_eq!(
                base.join(location).map(|url| url.full()).as_deref(),
                Ok(expected)
            );
        }
    }

    #[test]
    fn what_is_no_url_is_refused() {
        let base = Url::parse("https://r.example/v2/").unwrap();
        for location in [
            "",
            "ftp://r.example/",
            "https://",
            "https:///z",
            "https://user:secret@r.example/",
            "https://r.example:0/",
            "https://r.example:65536/",
            "https://r.example:/",
            "https://r example/",
            "https://[::1/z",
            "/a b",
            "/a\r\nX: y",
            "/ä",
            &format!("/{}", "a".repeat(MAX_BYTES)),
        ] {
            assert!(base.join(location).is_err(), "{location}");
        }
    }

    #[test]
    fn a_message_never_shows_a_query() {
        let url = Url::parse("https://r.example/blob?signature=secret").unwrap();
        assert_eq!(
            format!("{url} {url:?}"),
            "https://r.example/blob https://r.example/blob"
        );
        for text in [
            "https://r.example/a b?secret",
            "https://r.example:0/?secret",
            "https://r.example/{#secret",
            "https://secret:secret@r.example/",
            "https://secret:sec?secret/@r.example/",
            "ftp://secret@r.example",
            "/a b?secret",
        ] {
            let said = url.join(text).unwrap_err();
            assert!(!said.contains("secret"), "{said}");
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for (host, expected) in [
            ("127.0.0.1:5000", true),
            ("127.9.9.9", true),
            ("[::1]:5000", true),
            ("localhost", true),
            ("a.localhost:80", true),
            ("128.0.0.1", false),
            ("127.0.0.1.example", false),
            ("localhost.example", false),
            ("[::2]", false),
        ] {
            assert_eq!(
                Origin::of(false, host).unwrap().is_loopback(),
                expected,
                "{host}"
            );
        }
    }

    #[test]
    fn values_of_a_query_are_encoded() {
        assert_eq!(
            encode("repository:a/b:pull &x"),
            "repository%3Aa%2Fb%3Apull%20%26x"
        );
    }
}
