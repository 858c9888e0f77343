//! What may be said about a pod from outside? Conditions that are not coracle's own: written in a manifest's
//! `status.conditions` or set later, and looked at by readiness gates (kubelet-behaviour §3.5, A17).

use std::fmt;

use k8s_openapi::api::core::v1 as core;
use serde::{Deserialize, Serialize};

use super::names;

/// The types coracle finds out by itself: nobody else may set them.
const OWN: [&str; 9] = [
    "PodScheduled",
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "DisruptionTarget",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
];

/// The words a condition's status may be.
pub const STATUSES: [&str; 3] = ["True", "False", "Unknown"];

/// So many conditions of others a pod may have.
pub const MAX_CONDITIONS: usize = 64;

/// So long may reason and message be, in bytes; the API server's limits for conditions.
const MAX_TEXT: (usize, usize) = (1_024, 32_768);

/// `status` of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody can say.
    Unknown,
}

impl ConditionStatus {
    /// Reads the Kubernetes word.
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

/// A condition as somebody sets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Its type, a qualified name like `example.com/warm`.
    pub type_: String,
    /// Its status.
    pub status: ConditionStatus,
    /// One word for programs; may be empty.
    pub reason: String,
    /// A sentence for people; may be empty.
    pub message: String,
}

/// Whether coracle finds out this condition by itself.
pub fn is_own(type_: &str) -> bool {
    OWN.contains(&type_)
}

/// Whether somebody may set a condition of this type.
pub fn check_type(type_: &str) -> Result<(), String> {
    if is_own(type_) {
        return Err(format!("condition {type_} is set by coracle itself"));
    }
    names::qualified_name(type_).map_or(Ok(()), Err)
}

impl Condition {
    /// Whether somebody may set this.
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

    /// What somebody wrote as a pod's condition; `None` if the status is no such word.
    pub fn of(written: &core::PodCondition) -> Option<Self> {
        Some(Self {
            type_: written.type_.clone(),
            status: ConditionStatus::parse(&written.status)?,
            reason: written.reason.clone().unwrap_or_default(),
            message: written.message.clone().unwrap_or_default(),
        })
    }
}

/// The conditions that a pod's manifest brings along, coracle's own left out.
pub fn given(manifest: &core::Pod) -> impl Iterator<Item = Condition> {
    let all = manifest.status.iter();
    let all = all.flat_map(|status| status.conditions.iter().flatten());
    all.filter_map(Condition::of)
}
