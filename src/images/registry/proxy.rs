//! `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` of the agent's environment, by the rules that Go's programs follow
//! (`golang.org/x/net/http/httpproxy`): this machine is never reached through a proxy.

use std::net::IpAddr;

use ipnet::IpNet;

use super::url::Origin;

/// Proxies for the two schemes, and what is reached without one.
#[derive(Default)]
pub(super) struct Proxies {
    https: Option<String>,
    http: Option<String>,
    none: Vec<String>,
}

impl Proxies {
    /// From variables; the upper-case name comes first.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let either = |name: &str| {
            let found = variable(name).filter(|value| !value.is_empty());
            found.or_else(|| variable(&name.to_ascii_lowercase()).filter(|v| !v.is_empty()))
        };
        let none = either("NO_PROXY").unwrap_or_default();
        let none = none.split([',', ' ']).map(str::trim);
        Self {
            https: either("HTTPS_PROXY"),
            http: either("HTTP_PROXY"),
            none: none
                .filter(|rule| !rule.is_empty())
                .map(str::to_ascii_lowercase)
                .collect(),
        }
    }

    /// The proxy for an origin, as a URL.
    pub(super) fn of_origin(&self, origin: &Origin) -> Option<&str> {
        let proxy = match origin.tls {
            true => self.https.as_deref(),
            false => self.http.as_deref(),
        };
        let direct = || self.none.iter().any(|rule| covers(rule, origin));
        proxy.filter(|_| !origin.is_loopback() && !direct())
    }
}

/// Whether a rule of `NO_PROXY` covers an origin: `*`, an address, a network, `host`, `.domain`, each with a port or
/// without.
fn covers(rule: &str, origin: &Origin) -> bool {
    if rule == "*" {
        return true;
    }
    let bare = origin.host.trim_start_matches('[').trim_end_matches(']');
    let (rule, port) = match rule.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (rule, None),
    };
    if port.is_some_and(|port| port.parse() != Ok(origin.port)) {
        return false;
    }
    let rule = rule.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse::<IpAddr>() {
        let same = rule.parse() == Ok(address);
        return same
            || rule
                .parse::<IpNet>()
                .is_ok_and(|net| net.contains(&address));
    }
    let domain = rule.trim_start_matches('*').trim_start_matches('.');
    let below = bare
        .strip_suffix(domain)
        .is_some_and(|host| host.ends_with('.'));
    !domain.is_empty() && (below || bare == domain && !rule.starts_with(['.', '*']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &'static [(&str, &str)]) -> Proxies {
        Proxies::of(|name| {
            let found = variables.iter().find(|(of, _)| *of == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_proxy_is_chosen_by_scheme_and_never_for_this_machine() {
        let some = proxies(&[
            ("HTTPS_PROXY", "http://a:1"),
            ("http_proxy", "http://b:2"),
            ("HTTP_PROXY", ""),
        ]);
        for (tls, host, expected) in [
            (true, "r.example", Some("http://a:1")),
            (false, "r.example", Some("http://b:2")),
            (true, "127.0.0.1:5000", None),
            (true, "localhost:5000", None),
            (true, "[::1]:5000", None),
        ] {
            assert_eq!(
                some.of_origin(&Origin::of(tls, host).unwrap()),
                expected,
                "{host}"
            );
        }
        assert_eq!(
            proxies(&[]).of_origin(&Origin::of(true, "r.example").unwrap()),
            None
        );
    }

    #[test]
    fn exceptions_are_hosts_domains_addresses_and_networks() {
        for (rule, host, expected) in [
            ("r.example", "r.example", true),
            ("r.example", "a.r.example", true),
            ("r.example", "ar.example", false),
            (".r.example", "a.r.example", true),
            (".r.example", "r.example", false),
            ("*.r.example", "a.r.example", true),
            ("r.example:5000", "r.example:5000", true),
            ("r.example:5000", "r.example", false),
            ("10.0.0.0/8", "10.1.2.3:5000", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("fd00::/8", "[fd00::1]:5000", true),
            ("[fd00::1]:5000", "[fd00::1]:5000", true),
            ("*", "r.example", true),
            (".", "r.example", false),
            ("10.0.0.0/8", "r.example", false),
        ] {
            let origin = Origin::of(true, host).unwrap();
            assert_eq!(covers(rule, &origin), expected, "{rule} for {host}");
        }
    }
}
