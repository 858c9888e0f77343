//! Settings that were read again while the agent runs: live ones change, the others are pending until the next agent
//! restart.

use super::fields::{FIELDS, Role};
use super::load::{Effective, Shown};

/// Result of reading settings again.
#[derive(Debug, Clone, PartialEq)]
pub struct Reload {
    /// Settings in force from now on.
    pub effective: Effective,
    /// Changed settings, each with its new value.
    pub changed: Vec<String>,
    /// Settings that change at the next agent restart, each with its value then and its origin.
    pub pending: Vec<(String, String)>,
}

/// Takes live settings from `read`, and the others from those in force.
pub fn reload(in_force: &Effective, read: Effective) -> Reload {
    let (mut changed, mut pending) = (Vec::new(), Vec::new());
    let mut shown = in_force.shown.clone();
    for field in FIELDS {
        let (old, new) = (in_force.shown.get(field.path), read.shown.get(field.path));
        let differs = old.map(|old| &old.value) != new.map(|new| &new.value);
        match field.role {
            Role::Live => {
                if differs {
                    changed.push(format!("{}: {}", field.path, text(field.path, new)));
                }
                match new {
                    Some(new) => shown.insert(field.path, new.clone()),
                    None => shown.remove(field.path),
                };
            }
            Role::Start if differs => {
                let origin = new.map_or(String::new(), |new| format!(" ({})", new.origin));
                pending.push((
                    field.path.to_owned(),
                    format!("{}{origin}", text(field.path, new)),
                ));
            }
            // The value is the same; its line in the file may differ.
            Role::Start => {
                if let Some(new) = new {
                    shown.insert(field.path, new.clone());
                }
            }
            Role::Idle => {}
        }
    }
    // A feature gate may change other settings that are not live.
    if pending.is_empty() && read.config != in_force.config {
        let gates = "featureGates";
        pending.push((gates.to_owned(), text(gates, read.shown.get(gates))));
    }
    Reload {
        effective: Effective {
            config: in_force.config.clone(),
            settings: read.settings,
            warning: read.warning,
            shown,
        },
        changed,
        pending,
    }
}

fn text(path: &str, shown: Option<&Shown>) -> String {
    shown.map_or_else(
        || "unset".to_owned(),
        |shown| super::show::public(path, &shown.value).to_string(),
    )
}
