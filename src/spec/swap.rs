//! A pod's own limit of swap, from an annotation (`coracle help differences`).

use std::collections::BTreeMap;

use super::error::{Path, Report};
use crate::types::quantity::Quantity;

/// The annotation: `coracle.dev/memory-swap-max: 64Mi`.
pub(super) const ANNOTATION: &str = "coracle.dev/memory-swap-max";

/// Returns a pod's annotation in bytes, if it has one.
pub(super) fn max_bytes(
    annotations: Option<&BTreeMap<String, String>>,
    path: &Path<'_>,
    report: &Report,
) -> Option<u64> {
    let text = annotations?.get(ANNOTATION)?;
    let bytes = parse(text);
    if bytes.is_none() {
        let problem = "must be a quantity of bytes like `64Mi`, and not negative";
        report.invalid(&path.field(ANNOTATION), text, problem);
    }
    bytes
}

fn parse(text: &str) -> Option<u64> {
    let bytes = Quantity::parse(text).ok()?;
    u64::try_from(bytes.ceil()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_a_quantity_of_bytes() {
        for (text, expected) in [
            ("64Mi", Some(64 << 20)),
            ("0", Some(0)),
            ("1500m", Some(2)),
            ("-1", None),
            ("max", None),
            ("", None),
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }
}
