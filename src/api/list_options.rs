//! Options of a list or a watch beside selectors: version, initial events, timeout. Checked as the API server checks
//! `ListOptions`.

use std::time::Duration;

use super::error::ApiError;
use super::query::Query;

/// Timeout of a watch without `timeoutSeconds`, as Kubernetes clients expect.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);

/// Maximum timeout of a watch.
const MAX_TIMEOUT_S: u64 = 86_400;

/// `resourceVersionMatch`: which versions a list or watch accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Match {
    Exact,
    NotOlderThan,
}

/// Options of a list or a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListOptions {
    /// Stream changes.
    pub(crate) watch: bool,
    /// `None`: any, also for 0.
    pub(crate) version: Option<u64>,
    matching: Option<Match>,
    /// Whether a watch begins with the existing objects, if the client says so.
    pub(crate) initial: Option<bool>,
    /// Send the version from time to time.
    pub(crate) bookmarks: bool,
    /// Timeout of a watch.
    pub(crate) timeout: Duration,
}

impl ListOptions {
    pub(crate) fn of(query: &Query) -> Result<Self, ApiError> {
        let timeout = query.number::<u64>("timeoutSeconds")?.filter(|s| *s != 0);
        let given = query.get("sendInitialEvents").filter(|t| !t.is_empty());
        let mut problems = Vec::new();
        let text = query.get("resourceVersionMatch").unwrap_or_default();
        let matching = match text {
            "" => None,
            "Exact" => Some(Match::Exact),
            "NotOlderThan" => Some(Match::NotOlderThan),
            other => {
                problems.push(format!(
                    "resourceVersionMatch: Unsupported value: \"{other}\": supported values: \"Exact\", \"NotOlderThan\""
                ));
                None
            }
        };
        let options = Self {
            watch: query.flag("watch")?,
            version: query.number::<u64>("resourceVersion")?.filter(|v| *v != 0),
            matching,
            initial: match given {
                Some(_) => Some(query.flag("sendInitialEvents")?),
                None => None,
            },
            bookmarks: query.flag("allowWatchBookmarks")?,
            timeout: timeout.map_or(DEFAULT_TIMEOUT, |s| {
                Duration::from_secs(s.min(MAX_TIMEOUT_S))
            }),
        };
        let asked = query.get("resourceVersion").unwrap_or_default();
        match options.watch {
            true => options.check_watch(!text.is_empty(), &mut problems),
            false => options.check_list(!text.is_empty(), asked, &mut problems),
        }
        if query.get("continue").is_some_and(|token| !token.is_empty()) {
            // Lists are never paged, so no continue token exists.
            return Err(ApiError::gone(
                "the provided continue parameter is not known: list again without it",
            ));
        }
        match &problems[..] {
            [] => Ok(options),
            [one] => Err(invalid(one)),
            several => Err(invalid(&format!("[{}]", several.join(", ")))),
        }
    }

    fn check_watch(&self, matches: bool, problems: &mut Vec<String>) {
        if self.initial.is_some() && self.matching != Some(Match::NotOlderThan) {
            problems.push(
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
                    .to_owned(),
            );
        }
        if matches && self.initial.is_none() {
            problems.push(
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
                    .to_owned(),
            );
        }
        if self.matching == Some(Match::Exact) {
            problems.push(
                "resourceVersionMatch: Unsupported value: \"Exact\": supported values: \"NotOlderThan\""
                    .to_owned(),
            );
        }
    }

    fn check_list(&self, matches: bool, asked: &str, problems: &mut Vec<String>) {
        if matches && asked.is_empty() {
            problems.push(
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
                    .to_owned(),
            );
        }
        if self.matching == Some(Match::Exact) && asked == "0" {
            problems.push(
                "resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""
                    .to_owned(),
            );
        }
        if self.initial.is_some() {
            problems.push(
                "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list".to_owned(),
            );
        }
    }

    /// Whether version `now` satisfies the list's `resourceVersion`.
    pub(crate) fn check_version(&self, now: u64) -> Result<(), ApiError> {
        match (self.version, self.matching) {
            (Some(asked), Some(Match::Exact)) if asked != now => Err(ApiError::gone(
                "The provided resource version is not available: only the newest is kept",
            )),
            (Some(asked), _) if asked > now => Err(ApiError::gone(format!(
                "Too large resource version: {asked}, current: {now}"
            ))),
            _ => Ok(()),
        }
    }
}

fn invalid(problem: &str) -> ApiError {
    ApiError::invalid(format!(
        "ListOptions.meta.k8s.io \"\" is invalid: {problem}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(query: &str) -> Result<ListOptions, ApiError> {
        ListOptions::of(&Query::parse(Some(query)))
    }

    #[test]
    fn options_are_checked_as_the_api_server_checks_them() {
        for fine in [
            "",
            "watch=true&resourceVersion=7",
            "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=0",
            "resourceVersion=0&resourceVersionMatch=NotOlderThan",
            "resourceVersion=9&resourceVersionMatch=Exact&limit=500&continue=",
            "sendInitialEvents=&timeoutSeconds=0",
        ] {
            assert!(of(fine).is_ok(), "{fine}");
        }
        for (wrong, code, text) in [
            (
                "watch=1&sendInitialEvents=true",
                422,
                "sendInitialEvents requires",
            ),
            (
                "watch=1&sendInitialEvents=false",
                422,
                "sendInitialEvents requires",
            ),
            (
                "watch=1&resourceVersionMatch=NotOlderThan",
                422,
                "unless sendInitialEvents",
            ),
            (
                "watch=1&sendInitialEvents=true&resourceVersionMatch=Exact",
                422,
                "supported values: \"NotOlderThan\"",
            ),
            ("sendInitialEvents=true", 422, "forbidden for list"),
            (
                "resourceVersionMatch=Exact",
                422,
                "unless resourceVersion is provided",
            ),
            (
                "resourceVersion=0&resourceVersionMatch=Exact",
                422,
                "\"exact\" is forbidden",
            ),
            (
                "resourceVersion=1&resourceVersionMatch=exact",
                422,
                "Unsupported value: \"exact\"",
            ),
            ("resourceVersion=abc", 400, "resourceVersion"),
            (
                "watch=1&sendInitialEvents=maybe&resourceVersionMatch=NotOlderThan",
                400,
                "boolean",
            ),
            ("continue=abc", 410, "continue"),
        ] {
            let error = of(wrong).expect_err(wrong);
            assert_eq!(error.code.as_u16(), code, "{wrong}");
            assert!(error.message.contains(text), "{wrong}: {}", error.message);
        }
    }

    #[test]
    fn only_the_newest_version_can_be_listed() {
        for (query, now, fine) in [
            ("resourceVersion=5", 7, true),
            ("resourceVersion=9", 7, false),
            ("resourceVersion=7&resourceVersionMatch=Exact", 7, true),
            ("resourceVersion=5&resourceVersionMatch=Exact", 7, false),
            ("resourceVersion=0", 7, true),
        ] {
            let checked = of(query).expect("valid").check_version(now);
            assert_eq!(checked.is_ok(), fine, "{query}");
        }
    }
}
