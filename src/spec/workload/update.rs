//! How a document replaces pods of an earlier template: the rules and defaults of its `strategy` or `updateStrategy`
//! (`pkg/apis/apps/validation`).

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Update;
use super::check::not_negative;
use super::written::{RollingUpdate, Spec, Strategy};
use crate::spec::error::{Path, Report};

pub(super) fn deployment(spec: &Spec, replicas: u32, path: &Path<'_>, report: &Report) -> Update {
    let strategy = &spec.strategy;
    match strategy.type_.as_str() {
        "" | "RollingUpdate" => rolling(strategy, ("25%", "25%"), replicas, path, report),
        "Recreate" => {
            if strategy.rolling_update.is_some() {
                report.forbidden(
                    &path.field("rollingUpdate"),
                    "may not be specified when strategy `type` is 'Recreate'",
                );
            }
            Update::Recreate
        }
        other => {
            let supported = ["Recreate", "RollingUpdate"];
            report.unsupported(&path.field("type"), other, &supported);
            Update::Recreate
        }
    }
}

pub(super) fn daemon(spec: &Spec, path: &Path<'_>, report: &Report) -> Update {
    match spec.update_strategy.type_.as_str() {
        "" | "RollingUpdate" => {
            let update = rolling(&spec.update_strategy, ("0", "1"), 1, path, report);
            let written = spec.update_strategy.rolling_update.as_ref();
            let unavailable = written.and_then(|written| written.max_unavailable.as_ref());
            if let Update::Rolling { surge: 1.., .. } = update
                && !unavailable.is_some_and(is_zero)
            {
                let at = path.field("rollingUpdate");
                let detail =
                    "may not be set unless `maxUnavailable` is 0, and that is 1 by default";
                report.forbidden(&at.field("maxSurge"), detail);
            }
            update
        }
        "OnDelete" => Update::OnDelete,
        other => {
            let supported = ["OnDelete", "RollingUpdate"];
            report.unsupported(&path.field("type"), other, &supported);
            Update::OnDelete
        }
    }
}

pub(super) fn stateful(spec: &Spec, replicas: u32, path: &Path<'_>, report: &Report) -> Update {
    let strategy = &spec.update_strategy;
    let at = path.field("rollingUpdate");
    match strategy.type_.as_str() {
        "" | "RollingUpdate" => {
            let rolling = strategy.rolling_update.as_ref();
            let partition = rolling.and_then(|rolling| rolling.partition).unwrap_or(0);
            not_negative(partition, &at.field("partition"), report);
            let one = IntOrString::Int(1);
            let most = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
            let most = most.unwrap_or(&one);
            let at = at.field("maxUnavailable");
            if is_zero(most) {
                let shown = shown(most);
                report.error(&at, format_args!("Invalid value: {shown}: must not be 0"));
            }
            // As upstream's controller does; its documentation says that it rounds up.
            let unavailable = amount(most, (replicas, false), &at, report);
            Update::InPlace {
                partition: u32::try_from(partition).unwrap_or(0),
                unavailable: unavailable.max(1),
            }
        }
        "OnDelete" => {
            if strategy.rolling_update.is_some() {
                report.error(
                    &at,
                    "Invalid value: only allowed for updateStrategy 'RollingUpdate'",
                );
            }
            Update::OnDelete
        }
        other => {
            let supported = ["OnDelete", "RollingUpdate"];
            report.unsupported(&path.field("type"), other, &supported);
            Update::OnDelete
        }
    }
}

/// A rolling update with these defaults of `maxSurge` and `maxUnavailable`.
pub(super) fn rolling(
    strategy: &Strategy,
    (surge, unavailable): (&str, &str),
    replicas: u32,
    path: &Path<'_>,
    report: &Report,
) -> Update {
    let none = RollingUpdate::default();
    let written = strategy.rolling_update.as_ref().unwrap_or(&none);
    let at = path.field("rollingUpdate");
    let (at_surge, at_unavailable) = (at.field("maxSurge"), at.field("maxUnavailable"));
    let of = |given: &Option<IntOrString>, default: &str| {
        let default = || match default.parse() {
            Ok(number) => IntOrString::Int(number),
            Err(_) => IntOrString::String(default.to_owned()),
        };
        given.clone().unwrap_or_else(default)
    };
    // The one rounds up, the other down, so that at least one of them lets a rollout go on.
    let surge = amount(
        &of(&written.max_surge, surge),
        (replicas, true),
        &at_surge,
        report,
    );
    let written = of(&written.max_unavailable, unavailable);
    let missing = amount(&written, (replicas, false), &at_unavailable, report);
    if is_zero(&written) && surge == 0 && report.is_clean() && replicas > 0 {
        let shown = shown(&written);
        report.error(
            &at_unavailable,
            format_args!("Invalid value: {shown}: may not be 0 when `maxSurge` is 0"),
        );
    }
    Update::Rolling {
        surge,
        unavailable: match surge {
            0 => missing.max(1),
            _ => missing,
        },
    }
}

fn shown(given: &IntOrString) -> String {
    match given {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => format!("{text:?}"),
    }
}

fn is_zero(given: &IntOrString) -> bool {
    match given {
        IntOrString::Int(number) => *number == 0,
        IntOrString::String(text) => text.trim_end_matches('%').parse() == Ok(0),
    }
}

/// A number of pods, or a share of them.
fn amount(given: &IntOrString, (of, up): (u32, bool), path: &Path<'_>, report: &Report) -> u32 {
    let text = match given {
        IntOrString::Int(number) => {
            not_negative(*number, path, report);
            return u32::try_from(*number).unwrap_or(0);
        }
        IntOrString::String(text) => text,
    };
    let percent = text
        .strip_suffix('%')
        .and_then(|text| text.parse::<u32>().ok());
    match percent {
        Some(percent) if percent <= 100 || up => {
            let whole = u64::from(percent) * u64::from(of);
            let share = match up {
                true => whole.div_ceil(100),
                false => whole / 100,
            };
            u32::try_from(share).unwrap_or(u32::MAX)
        }
        Some(_) => {
            report.invalid(path, text.as_str(), "must not be greater than 100%");
            0
        }
        None => {
            let detail = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%')";
            report.invalid(path, text.as_str(), detail);
            0
        }
    }
}
