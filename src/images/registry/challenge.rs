//! `WWW-Authenticate`: what a registry asks for before it answers (RFC 9110, section 11.6.1).

use std::collections::BTreeMap;

/// The maximum number of challenges that are read; registries send one or two.
const MAX_CHALLENGES: usize = 8;

/// How to prove who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A token from the server at `realm`.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
    /// User name and password.
    Basic,
}

/// The challenge to answer: a token where one is offered, since user names go to fewer servers then.
pub(super) fn choose<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Challenge> {
    let all: Vec<Challenge> = headers.flat_map(parse).collect();
    let bearer = all.iter().find(|c| matches!(c, Challenge::Bearer { .. }));
    bearer.or(all.first()).cloned()
}

/// The challenges of one header that are understood.
fn parse(header: &str) -> Vec<Challenge> {
    let mut rest = header.trim();
    let mut found = Vec::new();
    while !rest.is_empty() && found.len() < MAX_CHALLENGES {
        let (scheme, after) = token(rest);
        if scheme.is_empty() {
            break;
        }
        let (mut parameters, after) = parameters(after);
        rest = after;
        match scheme.to_ascii_lowercase().as_str() {
            "bearer" => {
                if let Some(realm) = parameters.remove("realm") {
                    found.push(Challenge::Bearer {
                        realm,
                        service: parameters.remove("service"),
                        scope: parameters.remove("scope"),
                    });
                }
            }
            "basic" => found.push(Challenge::Basic),
            _ => {}
        }
    }
    found
}

/// Parameters up to the next scheme, and what is behind them. A scheme is a word that no `=` follows.
fn parameters(mut rest: &str) -> (BTreeMap<String, String>, &str) {
    let mut found = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let (name, after) = token(rest);
        let Some(after) = after
            .trim_start()
            .strip_prefix('=')
            .filter(|_| !name.is_empty())
        else {
            return (found, rest);
        };
        let (value, after) = value(after.trim_start());
        found.entry(name.to_ascii_lowercase()).or_insert(value);
        rest = after;
    }
}

/// A word, and what is behind it.
fn token(text: &str) -> (&str, &str) {
    let end = text.find([' ', '\t', ',', '=', '"']).unwrap_or(text.len());
    text.split_at(end)
}

/// A value, quoted or not, and what is behind it.
fn value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            plain => value.push(plain),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
        Some(Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
        })
    }

    #[test]
    fn a_token_is_preferred_and_what_is_unknown_is_passed_over() {
        let realm = "https://auth.example/token";
        for (headers, expected) in [
            (
                &[
                    r#"Bearer realm="https://auth.example/token",service="r.example",scope="repository:a/b:pull,push""#,
                ][..],
                bearer(realm, Some("r.example"), Some("repository:a/b:pull,push")),
            ),
            (
                &[r#"bearer Realm=https://auth.example/token , SERVICE = "a \"b\"" "#],
                bearer(realm, Some("a \"b\""), None),
            ),
            (&[r#"Basic realm="r""#], Some(Challenge::Basic)),
            (&["basic"], Some(Challenge::Basic)),
            (
                &[r#"Basic realm="a", Bearer realm="https://auth.example/token""#],
                bearer(realm, None, None),
            ),
            (
                &[r#"Digest realm="x", nonce="y""#, r#"Basic realm="z""#],
                Some(Challenge::Basic),
            ),
            (
                &[r#"Negotiate, Bearer realm="https://auth.example/token",error="x""#],
                bearer(realm, None, None),
            ),
            (&[r#"Bearer service="x""#], None),
            (&["Negotiate dG9rZW4="], None),
            (&[""], None),
            (&[",,,==\"\""], None),
            (
                &[r#"Bearer realm="unterminated"#],
                bearer("unterminated", None, None),
            ),
            (&["Bearer realm=\"\\"], bearer("", None, None)),
            (&[], None),
        ] {
            assert_eq!(choose(headers.iter().copied()), expected, "{headers:?}");
        }
    }

    #[test]
    fn a_hostile_header_costs_little() {
        let many = "Basic,".repeat(10_000);
        assert_eq!(choose([many.as_str()].into_iter()), Some(Challenge::Basic));
        assert!(parse(&many).len() <= MAX_CHALLENGES);
    }
}
