//! `depends_on`: what a pod starts after.

use super::deployment::replicas;
use super::plan::Plan;
use super::tree::{Entries, is_on, scalar, scalars};
use super::work::Work;
use crate::spec::value::Value;

/// The condition of compose for a service that has run to its end.
pub(super) const COMPLETED: &str = "service_completed_successfully";

/// The conditions of compose.
pub(super) const CONDITIONS: [&str; 3] = ["service_started", "service_healthy", COMPLETED];

/// Limit of what a pod waits for.
const MAX_AFTER: usize = 16;

/// What `depends_on` says of one service.
pub(super) struct Condition {
    pub(super) kind: String,
    pub(super) again: bool,
    pub(super) required: bool,
}

impl Default for Condition {
    fn default() -> Self {
        Self {
            kind: String::new(),
            again: false,
            required: true,
        }
    }
}

/// What a service starts after.
pub(super) fn after(service: &Value) -> Vec<(String, Condition)> {
    let mut all = depends_on(service);
    // What is linked is started before, too.
    for link in scalars(service.get("links")) {
        let name = link.split(':').next().unwrap_or_default().to_owned();
        if !all.iter().any(|(known, _)| *known == name) {
            all.push((name, Condition::default()));
        }
    }
    all
}

fn depends_on(service: &Value) -> Vec<(String, Condition)> {
    let on = service.get("depends_on");
    if let Some(Value::Map(entries)) = on {
        let read = |(name, value): &(String, Value)| {
            let kind = scalar(value, "condition").unwrap_or_default();
            let again = is_on(value, "restart");
            let required = scalar(value, "required").is_none_or(|word| word != "false");
            let condition = Condition {
                kind,
                again,
                required,
            };
            (name.clone(), condition)
        };
        return entries.iter().map(read).collect();
    }
    let names = scalars(on).into_iter();
    names.map(|name| (name, Condition::default())).collect()
}

/// Whether nothing is known of how a service is checked.
pub(super) fn test_is_missing(service: &Value) -> bool {
    let check = service.get("healthcheck");
    check.is_none_or(|check| check.get("test").is_none())
}

pub(super) fn counts_as_healthy(name: &str) -> String {
    format!(
        "depends_on: {name}: it has no `healthcheck` here, and an image's own is not read: it counts as healthy once it runs"
    )
}

/// What a pod waits for before it starts.
#[derive(Default)]
pub(super) struct Waits {
    /// The pods, what of each is waited for, and whether it is waited for again once it has gone.
    items: Vec<(String, &'static str, bool)>,
    pub(super) lost: Entries,
}

impl Waits {
    /// The annotation's text.
    pub(super) fn text(&self) -> Option<String> {
        let item = |(name, state, again): &(String, &str, bool)| {
            let again = if *again { "?again" } else { "" };
            format!("{name}{state}{again}")
        };
        let all: Vec<String> = self.items.iter().map(item).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    pub(super) fn add(
        &mut self,
        work: &Work<'_>,
        plan: &Plan<'_>,
        members: &[&str],
        service: &Value,
    ) {
        for (name, condition) in after(service) {
            let Some(key) = plan.key(&name) else {
                if condition.required {
                    let what = format_args!("depends_on: {name} is not converted");
                    work.lost(&mut self.lost, what);
                }
                continue;
            };
            let planned = &plan.services[key];
            if planned.step_of.is_some() || members.contains(&key) {
                continue;
            }
            let head = planned.head;
            if replicas(plan.services[head].service).is_some() {
                let what =
                    format_args!("depends_on: {name}: pods of a Deployment have no fixed names");
                work.lost(&mut self.lost, what);
                continue;
            }
            let object = &plan.services[head].object;
            let own = match &**object {
                "device" | "time-sync" => {
                    format!("{}/", work.shared.namespace.unwrap_or("default"))
                }
                _ => String::new(),
            };
            let ready = match &*condition.kind {
                "service_healthy" => ":ready",
                COMPLETED if head == key => ":complete",
                COMPLETED => {
                    let what = format_args!(
                        "depends_on: {name}: it is in the pod of `{head}`, which is waited for until it has started"
                    );
                    work.lost(&mut self.lost, what);
                    ""
                }
                _ => "",
            };
            if condition.kind == "service_healthy" && test_is_missing(planned.service) {
                let what = counts_as_healthy(&name);
                work.lost(&mut self.lost, format_args!("{what}"));
            }
            let item = format!("{own}{object}");
            // Containers of one pod may wait for the same.
            let known = self.items.iter_mut().find(|(known, ..)| *known == item);
            if let Some((_, state, again)) = known {
                if state.is_empty() || ready == ":complete" {
                    *state = ready;
                }
                *again |= condition.again;
            } else if self.items.len() == MAX_AFTER {
                let what = format_args!("depends_on: {name}: more than {MAX_AFTER}");
                work.lost(&mut self.lost, what);
            } else {
                self.items.push((item, ready, condition.again));
            }
        }
    }
}
