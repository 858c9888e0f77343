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
pub(super) struct Condition<'a> {
    pub(super) of: &'a str,
    pub(super) kind: &'a str,
    pub(super) again: bool,
    pub(super) required: bool,
}

impl<'a> Condition<'a> {
    /// What a value says of a service, which is nothing in a list.
    fn read(of: &'a str, value: &'a Value) -> Self {
        Self {
            of,
            kind: scalar(value, "condition").unwrap_or_default(),
            again: is_on(value, "restart"),
            required: scalar(value, "required") != Some("false"),
        }
    }
}

/// What a service starts after.
pub(super) fn after(service: &Value) -> Vec<Condition<'_>> {
    let mut all = Vec::new();
    match service.get("depends_on") {
        Some(Value::Map(entries)) => {
            for (of, value) in entries {
                all.push(Condition::read(of, value));
            }
        }
        list => {
            for of in scalars(list) {
                all.push(Condition::read(of, &Value::Null));
            }
        }
    }
    // What is linked is started before, too.
    for link in scalars(service.get("links")) {
        let of = link.split(':').next().unwrap_or_default();
        if !all.iter().any(|known| known.of == of) {
            all.push(Condition::read(of, &Value::Null));
        }
    }
    all
}

/// Whether nothing is known of how a service is checked.
pub(super) fn test_is_missing(service: &Value) -> bool {
    let check = service.get("healthcheck");
    check.is_none_or(|check| check.get("test").is_none())
}

/// What to say of one that others wait for until it is healthy.
pub(super) const COUNTS_AS_HEALTHY: &str = "it has no `healthcheck` here, and an image's own is not read: it counts as healthy once it runs";

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
        let mut all = String::new();
        for (name, state, again) in &self.items {
            let comma = if all.is_empty() { "" } else { ", " };
            let again = if *again { "?again" } else { "" };
            all.extend([comma, name, state, again]);
        }
        (!all.is_empty()).then_some(all)
    }

    pub(super) fn add(&mut self, work: &Work<'_>, plan: &Plan<'_>, service: &Value) {
        for condition in after(service) {
            let name = condition.of;
            let mut lost = |why: &str| {
                work.lost(&mut self.lost, format_args!("depends_on: {name}: {why}"));
            };
            let Some(planned) = plan.get(name) else {
                if condition.required {
                    let what = format_args!("depends_on: {name} is not converted");
                    work.lost(&mut self.lost, what);
                }
                continue;
            };
            let key = planned.name;
            if planned.step_of.is_some() || work.members.contains(&key) {
                continue;
            }
            let head = planned.head;
            if replicas(plan.service(head)).is_some() {
                lost("pods of a Deployment have no fixed names");
                continue;
            }
            let object = &plan.planned(head).object;
            let own = match &**object {
                "device" | "time-sync" => {
                    format!("{}/", work.shared.namespace.unwrap_or("default"))
                }
                _ => String::new(),
            };
            let ready = match condition.kind {
                "service_healthy" => ":ready",
                COMPLETED if head == key => ":complete",
                COMPLETED => {
                    lost(&format!(
                        "it is in the pod of `{head}`, which is waited for until it has started"
                    ));
                    ""
                }
                _ => "",
            };
            if condition.kind == "service_healthy" && test_is_missing(planned.service) {
                lost(COUNTS_AS_HEALTHY);
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
                lost(&format!("more than {MAX_AFTER}"));
            } else {
                self.items.push((item, ready, condition.again));
            }
        }
    }
}
