//! What becomes of settings that were read again while the agent runs? Those that can change do, the others wait for its
//! next start and are named.

use super::fields::{FIELDS, Role};
use super::load::{Effective, Shown};

/// What reading again came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Reload {
    /// What is in force from now on.
    pub effective: Effective,
    /// The settings that have changed, each with its new value.
    pub changed: Vec<String>,
    /// The settings that will have changed after the next start, each with its value then and where it is written.
    pub pending: Vec<(String, String)>,
}

/// Takes what can change from `read`, and the rest from what is in force.
pub fn reload(in_force: &Effective, read: Effective) -> Reload {
    let (mut changed, mut pending) = (Vec::new(), Vec::new());
    let mut shown = in_force.shown.clone();
    for field in FIELDS {
        let (old, new) = (in_force.shown.get(field.path), read.shown.get(field.path));
        let differs = old.map(|old| &old.value) != new.map(|new| &new.value);
        match field.role {
            Role::Live => {
                if differs {
                    changed.push(format!("{}: {}", field.path, text(new)));
                }
                match new {
                    Some(new) => shown.insert(field.path, new.clone()),
                    None => shown.remove(field.path),
                };
            }
            Role::Start if differs => {
                let origin = new.map_or(String::new(), |new| format!(" ({})", new.origin));
                pending.push((field.path.to_owned(), format!("{}{origin}", text(new))));
            }
            // Only its line in the file may be another.
            Role::Start => {
                if let Some(new) = new {
                    shown.insert(field.path, new.clone());
                }
            }
            Role::Idle => {}
        }
    }
    // A feature gate may stand for something that cannot change.
    if pending.is_empty() && read.config != in_force.config {
        pending.push((
            "featureGates".to_owned(),
            text(read.shown.get("featureGates")),
        ));
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

fn text(shown: Option<&Shown>) -> String {
    shown.map_or_else(
        || "unset".to_owned(),
        |shown| super::show::json(&shown.value).to_string(),
    )
}
