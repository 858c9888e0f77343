//! A pod's own restart back-off, from an annotation (`coracle help differences`).

use super::error::{Path, Report};
use crate::types::duration_ms;

/// The annotation: `coracle.dev/restart-backoff: initial=2s,max=60s`. Either part is optional.
pub const ANNOTATION: &str = "coracle.dev/restart-backoff";

/// Bounds of a wait, in milliseconds.
const BOUNDS_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

const FORM: &str = "must look like `initial=2s,max=60s`";

/// A pod's own waits between restarts; `None` means the node's setting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RestartBackoff {
    /// Wait before the second restart, in milliseconds.
    pub initial_ms: Option<u64>,
    /// Longest wait, in milliseconds.
    pub max_ms: Option<u64>,
}

/// Parses the annotation's value; the error is a sentence.
fn parse(text: &str) -> Result<RestartBackoff, String> {
    let mut found = RestartBackoff::default();
    for part in text.split(',') {
        let (name, value) = part.split_once('=').ok_or(FORM)?;
        let place = match name.trim() {
            "initial" => &mut found.initial_ms,
            "max" => &mut found.max_ms,
            _ => return Err(FORM.to_owned()),
        };
        let value = value.trim();
        let ms =
            duration_ms(value).ok_or_else(|| format!("`{value}` is not a duration like 1m30s"))?;
        if !BOUNDS_MS.contains(&ms) {
            return Err(format!("`{value}` must be between 100ms and 1h"));
        }
        if place.replace(ms).is_some() {
            return Err(FORM.to_owned());
        }
    }
    match (found.initial_ms, found.max_ms) {
        (Some(initial), Some(max)) if initial > max => {
            Err("`initial` must not be greater than `max`".to_owned())
        }
        _ => Ok(found),
    }
}

/// Returns the back-off of a pod's annotation, if it has one.
pub(super) fn of(
    annotations: Option<&std::collections::BTreeMap<String, String>>,
    path: &Path<'_>,
    report: &Report,
) -> RestartBackoff {
    let Some(text) = annotations.and_then(|all| all.get(ANNOTATION)) else {
        return RestartBackoff::default();
    };
    parse(text).unwrap_or_else(|problem| {
        report.invalid(&path.field(ANNOTATION), text, problem);
        RestartBackoff::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_part_may_be_given_and_mistakes_are_named() {
        let some = |initial_ms, max_ms| Ok(RestartBackoff { initial_ms, max_ms });
        let bad = |text: &str| Err(text.to_owned());
        for (text, expected) in [
            ("initial=2s,max=60s", some(Some(2_000), Some(60_000))),
            (" max=1m30s , initial=500ms ", some(Some(500), Some(90_000))),
            ("max=1h", some(None, Some(3_600_000))),
            ("initial=100ms", some(Some(100), None)),
            ("", bad(FORM)),
            ("60s", bad(FORM)),
            ("initial=1s,initial=2s", bad(FORM)),
            ("factor=3", bad(FORM)),
            ("max=soon", bad("`soon` is not a duration like 1m30s")),
            ("max=", bad("`` is not a duration like 1m30s")),
            ("max=61m", bad("`61m` must be between 100ms and 1h")),
            ("initial=99ms", bad("`99ms` must be between 100ms and 1h")),
            ("initial=0", bad("`0` must be between 100ms and 1h")),
            (
                "initial=2s,max=1s",
                bad("`initial` must not be greater than `max`"),
            ),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
