//! Conditions of pods that are not coracle's own: given in a manifest's `status.conditions` or set by clients, and used
//! by readiness gates (Kubernetes docs: Pod Lifecycle; `coracle help differences`).

use std::fmt;

use k8s_openapi::api::core::v1 as core;
use serde::{Deserialize, Serialize};

use super::manifest::Manifest;
use super::names;

/// Condition types that coracle sets itself and clients may not set.
const OWN: [&str; 10] = [
    "PodScheduled",
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "DisruptionTarget",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
    "DevicesReady",
];

/// Valid statuses of a condition.
pub const STATUSES: [&str; 3] = ["True", "False", "Unknown"];

/// Limit of a pod's conditions that are not coracle's own.
pub const MAX_CONDITIONS: usize = 64;

/// Limits of reason and message, in bytes, as in the API server.
const MAX_TEXT: (usize, usize) = (1_024, 32_768);

/// `status` of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// It is not known whether the condition holds.
    Unknown,
}

impl ConditionStatus {
    /// Parses the Kubernetes word.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "True" => Some(Self::True),
            "False" => Some(Self::False),
            "Unknown" => Some(Self::Unknown),
            _ => None,
        }
    }

    /// The Kubernetes word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl fmt::Display for ConditionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A condition as set by a client or a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Type, a qualified name like `example.com/warm`.
    pub type_: String,
    /// Status.
    pub status: ConditionStatus,
    /// Reason: one CamelCase word; may be empty.
    pub reason: String,
    /// Message for people; may be empty.
    pub message: String,
}

/// Whether coracle sets conditions of this type itself.
pub fn is_own(type_: &str) -> bool {
    OWN.contains(&type_)
}

/// Checks that clients may set conditions of this type.
pub fn check_type(type_: &str) -> Result<(), String> {
    if is_own(type_) {
        return Err(format!("condition {type_} is set by coracle itself"));
    }
    names::qualified_name(type_).map_or(Ok(()), Err)
}

impl Condition {
    /// Checks that clients may set this condition.
    pub fn check(&self) -> Result<(), String> {
        check_type(&self.type_)?;
        for (what, text, max) in [
            ("reason", &self.reason, MAX_TEXT.0),
            ("message", &self.message, MAX_TEXT.1),
        ] {
            if text.len() > max {
                return Err(format!("{what} may not be longer than {max} bytes"));
            }
        }
        Ok(())
    }

    /// Converts a written condition; `None` if its status is invalid.
    pub fn of(written: &core::PodCondition) -> Option<Self> {
        Some(Self {
            type_: written.type_.clone(),
            status: ConditionStatus::parse(&written.status)?,
            reason: written.reason.clone().unwrap_or_default(),
            message: written.message.clone().unwrap_or_default(),
        })
    }
}

/// Returns the conditions in a pod's manifest, except for coracle's own.
pub fn given(manifest: &Manifest) -> impl Iterator<Item = Condition> {
    let all = manifest.status.iter();
    let all = all.flat_map(|status| status.conditions.iter().flatten());
    all.filter_map(Condition::of)
}
