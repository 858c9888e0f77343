//! Kubernetes' rules for names, with the API server's messages. Each function returns what is wrong, or `None`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::error::{Path, Report};

/// Limit of a pod's namespace and name together: the directory of its logs is named after both and its UID, and a name in
/// a directory has 255 bytes at most.
pub(crate) const POD_MAX: usize = 255 - "__".len() - 36;

/// Why an object without a name is refused.
pub(crate) fn missing(metadata: &ObjectMeta) -> &'static str {
    match metadata.generate_name {
        Some(_) => {
            "Required value: what a file defines has a fixed name; `generateName` is for an API server"
        }
        None => "Required value: name or generateName is required",
    }
}

/// Takes the namespace from an object that is in none, as an API server does.
pub(super) fn without_namespace(metadata: &mut ObjectMeta, path: &Path<'_>, report: &Report) {
    if metadata.namespace.take().is_some() {
        report.warn(
            &path.field("namespace"),
            "objects of this kind have no namespace",
        );
    }
}

/// Endings of what editors, patches and packages leave beside a file, and of files of variables.
const NO_MANIFESTS: [&str; 21] = [
    "~",
    ".apk-new",
    ".bak",
    ".dpkg-bak",
    ".dpkg-dist",
    ".dpkg-new",
    ".dpkg-old",
    ".dpkg-tmp",
    ".env",
    ".orig",
    ".pacnew",
    ".pacsave",
    ".rej",
    ".rpmnew",
    ".rpmorig",
    ".rpmsave",
    ".swp",
    ".swx",
    ".ucf-dist",
    ".ucf-new",
    ".ucf-old",
];

/// Whether a file of this name in a directory of manifests is one. The kubelet reads all that are not hidden, so that a
/// copy of a file is a second pod.
pub fn is_manifest_file(name: &str) -> bool {
    !name.starts_with(['.', '#']) && !NO_MANIFESTS.iter().any(|ending| name.ends_with(ending))
}

/// A DNS-1123 label: container, volume and host names, namespaces.
pub(crate) fn dns_label(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some(too_long(63));
    }
    (!is_label(text)).then(|| {
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
         end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            .to_owned()
    })
}

/// A DNS-1035 label: service names.
pub(crate) fn dns_1035_label(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some(too_long(63));
    }
    (!is_label(text) || text.starts_with(|c: char| c.is_ascii_digit())).then(|| {
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
         character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation \
         is '[a-z]([-a-z0-9]*[a-z0-9])?')"
            .to_owned()
    })
}

/// A DNS-1123 subdomain: pod names, host aliases, search domains.
pub(crate) fn dns_subdomain(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some(too_long(253));
    }
    (!text.split('.').all(is_label)).then(|| {
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
         start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            .to_owned()
    })
}

/// A node's name: a subdomain that is also valid as a label value (`kubernetes.io/hostname`).
pub fn node_name(text: &str) -> Option<String> {
    dns_subdomain(text).or_else(|| (text.len() > 63).then(|| too_long(63)))
}

/// Turns a host's name into a valid node name: invalid characters become `-`.
pub fn node_name_of_host(host: &str) -> String {
    let lower = host.trim().to_lowercase();
    let allowed = |c: char| match c {
        'a'..='z' | '0'..='9' | '-' | '.' => c,
        _ => '-',
    };
    let name: String = lower.chars().map(allowed).take(63).collect();
    let labels = name.split('.').map(|label| label.trim_matches('-'));
    let labels: Vec<&str> = labels.filter(|label| !label.is_empty()).collect();
    match labels.is_empty() {
        true => "localhost".to_owned(),
        false => labels.join("."),
    }
}

/// A label or annotation key: an optional DNS prefix, a slash, a name.
pub(crate) fn qualified_name(text: &str) -> Option<String> {
    let name = match text.split_once('/') {
        Some((prefix, name)) => {
            if prefix.is_empty() {
                return Some("prefix part must be non-empty".to_owned());
            }
            if let Some(problem) = dns_subdomain(prefix) {
                return Some(format!("prefix part {problem}"));
            }
            name
        }
        None => text,
    };
    if name.is_empty() {
        return Some("name part must be non-empty".to_owned());
    }
    if name.len() > 63 {
        return Some(format!("name part {}", too_long(63)));
    }
    (!is_label_value(name)).then(|| {
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
         alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc')"
            .to_owned()
    })
}

/// A label's value.
pub(crate) fn label_value(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some(too_long(63));
    }
    (!text.is_empty() && !is_label_value(text)).then(|| {
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
         start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345')"
            .to_owned()
    })
}

/// An environment variable's name: printable ASCII without `=`.
pub(crate) fn env_name(text: &str) -> Option<String> {
    (!text.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=')).then(|| {
        "a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()
    })
}

/// A port's name (IANA service name).
pub(crate) fn port_name(text: &str) -> Option<String> {
    if text.len() > 15 {
        return Some(too_long(15));
    }
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let problem = if !text.bytes().all(allowed) {
        "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
    } else if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        "must contain at least one letter (a-z)"
    } else if text.contains("--") {
        "must not contain consecutive hyphens"
    } else if text.starts_with('-') || text.ends_with('-') {
        "must not begin or end with a hyphen"
    } else {
        return None;
    };
    Some(problem.to_owned())
}

/// A UID, which is used as a file name and as a cgroup name.
pub(crate) fn uid(text: &str) -> Option<String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let fits =
        (1..=63).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(allowed);
    (!fits).then(|| {
        "must be 1 to 63 letters, digits, '.', '_' or '-', and must not start with '.'".to_owned()
    })
}

/// Whether this is a path of another system: `C:\data`, `D:/work`, `..\x`.
pub(crate) fn is_foreign_path(text: &str) -> bool {
    let mut start = text.chars();
    let drive = start.next().is_some_and(|c| c.is_ascii_alphabetic())
        && start.next() == Some(':')
        && matches!(start.next(), None | Some('\\' | '/'));
    drive || (text.contains('\\') && !text.contains('/'))
}

/// A sysctl's name with dots.
pub(crate) fn sysctl(text: &str) -> Option<String> {
    let part = |part: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        part.as_bytes().first().is_some_and(edge)
            && part.as_bytes().last().is_some_and(edge)
            && part.bytes().all(inner)
    };
    (text.len() > 253 || !text.split('.').all(part))
        .then(|| "must have at most 253 characters and look like 'net.ipv4.ip_forward'".to_owned())
}

fn is_label(text: &str) -> bool {
    let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.as_bytes().first().is_some_and(edge)
        && text.as_bytes().last().is_some_and(edge)
        && text.bytes().all(|b| edge(&b) || b == b'-')
}

fn is_label_value(text: &str) -> bool {
    text.as_bytes()
        .first()
        .is_some_and(u8::is_ascii_alphanumeric)
        && text
            .as_bytes()
            .last()
            .is_some_and(u8::is_ascii_alphanumeric)
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

fn too_long(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rule, names it accepts, names it refuses.
    type Rule<'a> = (fn(&str) -> Option<String>, &'a [&'a str], &'a [&'a str]);

    #[test]
    fn every_host_name_becomes_a_valid_node_name() {
        let long = format!("{}.example.org", "a".repeat(62));
        for (host, expected) in [
            ("box", "box"),
            ("Box-1.Example.ORG", "box-1.example.org"),
            ("my_box", "my-box"),
            ("my box.", "my-box"),
            ("_a_._.b", "a.b"),
            ("Übung", "bung"),
            ("(none)", "none"),
            ("", "localhost"),
            ("___", "localhost"),
            (long.as_str(), &"a".repeat(62)),
        ] {
            assert_eq!(node_name_of_host(host), expected, "{host}");
            assert_eq!(node_name(&node_name_of_host(host)), None, "{host}");
        }
    }

    #[test]
    fn each_rule_accepts_its_names_and_no_others() {
        let l63 = "a".repeat(63);
        let l64 = "a".repeat(64);
        let s253 = [l63.as_str(); 4].join(".")[..253].to_owned();
        let s255 = [l63.as_str(); 4].join(".");
        let prefixed = format!("{s253}/{l63}");
        let rules: [Rule<'_>; 9] = [
            (
                dns_label,
                &["a", "a-b", "0", "123-abc", &l63],
                &["", "A", "a.b", "-a", "a-", "a_b", "ä", &l64],
            ),
            (
                dns_subdomain,
                &["a", "a.b", "a-b.c", &l64, &s253],
                &["", ".", "a..b", "a.", ".a", "A.b", "a-.b", &s255],
            ),
            (
                node_name,
                &["a", "a.b", "0", &l63],
                &["", "A", "a_b", "a b", "a/b", "..", "a.", &l64],
            ),
            (
                qualified_name,
                &["a", "A_b.c", "example.com/Name", &prefixed],
                &["", "/a", "a/", "a/b/c", "Ex.com/a", "-a", "a-", &l64],
            ),
            (
                label_value,
                &["", "a", "A_b.c-1", &l63],
                &["-a", "a ", "a/b", &l64],
            ),
            (
                env_name,
                &["A", "a-b", "a.b", "1", " ", "$(X)"],
                &["A=B", "ü", "a\n", "\u{7f}"],
            ),
            (
                port_name,
                &["http", "a", "8080-a", "a23456789012345"],
                &[
                    "HTTP",
                    "8080",
                    "a--b",
                    "-a",
                    "a-",
                    "a_b",
                    "a234567890123456",
                ],
            ),
            (
                uid,
                &["a", "A.b_c-1", "0123456789abcdef0123456789abcdef", &l63],
                &["", ".", "..", ".a", "a/b", "a b", "ü", &l64],
            ),
            (
                sysctl,
                &["kernel.sem", "net.ipv4.conf.eth0.rp_filter", "a"],
                &["", ".", "a..b", "A", "a b", "-a", "a-"],
            ),
        ];
        for (index, (rule, good, bad)) in rules.into_iter().enumerate() {
            for name in good {
                assert_eq!(rule(name), None, "rule {index}: {name:?}");
            }
            for name in bad {
                assert!(rule(name).is_some(), "rule {index}: {name:?}");
            }
        }
    }
}
