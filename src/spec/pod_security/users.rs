//! Who containers run as.

use super::Violation;
use super::visit::{View, containers, setters, violation};

pub(super) fn non_root(pod: &View<'_>) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    if pod.has_own_users() {
        return None;
    }
    let of_pod = pod.context.and_then(|c| c.run_as_non_root);
    let own = |each: &super::visit::Each<'_>| each.context.and_then(|c| c.run_as_non_root);
    let explicit = pod.named(|each| own(each) == Some(false));
    let setters = setters(of_pod == Some(false), &explicit);
    if !setters.is_empty() {
        return violation(REASON, true, || {
            let setters = setters.join(" and ");
            format!("{setters} must not set securityContext.runAsNonRoot=false")
        });
    }
    let implicit = pod.named(|each| own(each).is_none() && of_pod != Some(true));
    violation(REASON, !implicit.is_empty(), || {
        let names = containers(&implicit);
        format!("pod or {names} must set securityContext.runAsNonRoot=true")
    })
}

pub(super) fn not_zero(pod: &View<'_>) -> Option<Violation> {
    if pod.has_own_users() {
        return None;
    }
    let of_pod = pod.context.is_some_and(|c| c.run_as_user == Some(0));
    let names = pod.named(|each| each.context.is_some_and(|c| c.run_as_user == Some(0)));
    let setters = setters(of_pod, &names);
    violation("runAsUser=0", !setters.is_empty(), || {
        format!("{} must not set runAsUser=0", setters.join(" and "))
    })
}
