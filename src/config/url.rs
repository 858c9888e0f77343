//! The settings of manifests from a web server.

use std::collections::BTreeMap;

use super::given::Given;

/// Where manifests are fetched from.
#[derive(Clone, PartialEq, Eq)]
pub struct StaticPodUrl {
    /// `http` or `https`.
    pub url: String,
    /// Headers by name, in the order of the settings; they may have a password.
    pub headers: Vec<(String, String)>,
    /// The interval between requests for the document.
    pub every_ms: u64,
}

impl std::fmt::Debug for StaticPodUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StaticPodUrl")
            .field("headers", &self.headers.len())
            .field("every_ms", &self.every_ms)
            .finish_non_exhaustive()
    }
}

pub(super) const URL: &str = "staticPodURL";
pub(super) const HEADER: &str = "staticPodURLHeader";
const EVERY: &str = "httpCheckFrequency";

/// Headers by name, as they are written.
pub(super) type Headers = BTreeMap<String, Vec<String>>;

/// What is shown instead of a header's value, as by a kubelet.
pub(super) const MASK: &str = "<masked>";

/// `None`: manifests come from files only. Reports what is wrong.
pub(super) fn static_pod_url(given: &Given<'_>) -> Option<StaticPodUrl> {
    let url = given.text(URL);
    let headers: Headers = given.map(HEADER);
    for (name, values) in &headers {
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        let printable = |text: &String| {
            text.bytes()
                .all(|b| b == b'\t' || (b' '..0x7f).contains(&b))
        };
        // The value may be a password, and so may what follows the name if all of the header is in quotes.
        if name.is_empty() || !name.bytes().all(token) || !values.iter().all(printable) {
            given.wrong(
                &[HEADER],
                format!(
                    "{HEADER} {:?} is no valid HTTP header",
                    name.split([':', '=']).next().unwrap_or_default()
                ),
            );
        }
    }
    let every = given.duration(EVERY);
    if every.nanos < 0 {
        given.wrong(&[EVERY], format!("{EVERY} {every} must not be negative"));
    }
    if url.is_empty() {
        return None;
    }
    let rest = ["http://", "https://"];
    let rest = rest.iter().find_map(|scheme| url.strip_prefix(scheme));
    if rest.is_none_or(|rest| rest.is_empty() || rest.starts_with('/') || rest.contains('@')) {
        given.wrong(
            &[URL],
            format!("{URL} must be like https://host/path; a password belongs into {HEADER}"),
        );
    }
    let each = |(name, values): (String, Vec<String>)| {
        let values = values.into_iter();
        values.map(move |value| (name.clone(), value))
    };
    Some(StaticPodUrl {
        url,
        headers: headers.into_iter().flat_map(each).collect(),
        every_ms: every.ms().max(1000),
    })
}
