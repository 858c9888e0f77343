//! Restart policies of pods and containers, and rules for exit codes (Kubernetes docs: Pod Lifecycle).

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule};
use serde::{Deserialize, Serialize};

use super::error::{Path, Report};

/// Limit of a container's rules.
const MAX_RULES: usize = 20;

/// Limit of a rule's exit codes.
const MAX_CODES: usize = 255;

/// When a container restarts after its exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartPolicy {
    /// After any exit code.
    Always,
    /// After an exit code other than 0.
    OnFailure,
    /// Never.
    Never,
}

/// An entry of `restartPolicyRules`: the first that matches an exit code decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestartRule {
    /// Exit codes that match.
    pub codes: ExitCodes,
    /// Action for these exit codes.
    pub action: RestartAction,
}

impl RestartRule {
    /// Whether the rule matches this exit code.
    pub fn matches(&self, code: i32) -> bool {
        match &self.codes {
            ExitCodes::In(codes) => codes.contains(&code),
            ExitCodes::NotIn(codes) => !codes.contains(&code),
        }
    }
}

/// `exitCodes` of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitCodes {
    /// One of these.
    In(Vec<i32>),
    /// None of these.
    NotIn(Vec<i32>),
}

/// `action` of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartAction {
    /// Restart the container.
    Restart,
    /// Restart all containers of the pod in place.
    RestartAllContainers,
}

/// Validates and converts a `restartPolicy` of a pod or a container.
pub(crate) fn policy(
    written: Option<&str>,
    path: &Path<'_>,
    report: &Report,
) -> Option<RestartPolicy> {
    match written? {
        "Always" => Some(RestartPolicy::Always),
        "OnFailure" => Some(RestartPolicy::OnFailure),
        "Never" => Some(RestartPolicy::Never),
        other => {
            let words = ["Always", "Never", "OnFailure"];
            report.unsupported(&path.field("restartPolicy"), other, &words);
            None
        }
    }
}

/// Validates and converts a container's `restartPolicyRules`.
pub(crate) fn rules(container: &Container, path: &Path<'_>, report: &Report) -> Vec<RestartRule> {
    let written = container.restart_policy_rules.as_deref();
    let written = written.unwrap_or_default();
    if written.is_empty() {
        return Vec::new();
    }
    if container.restart_policy.is_none() {
        let message = "Required value: must specify restartPolicy when restart rules are used";
        report.error(&path.field("restartPolicy"), message);
    }
    let list = path.field("restartPolicyRules");
    at_most(MAX_RULES, written.len(), &list, report);
    let rules = written.iter().enumerate();
    rules
        .filter_map(|(index, written)| rule(written, &list.index(index), report))
        .collect()
}

fn rule(written: &ContainerRestartRule, path: &Path<'_>, report: &Report) -> Option<RestartRule> {
    let action = match written.action.as_str() {
        "Restart" => Some(RestartAction::Restart),
        "RestartAllContainers" => Some(RestartAction::RestartAllContainers),
        other => {
            let at = path.field("action");
            if other.is_empty() {
                report.required(&at);
            } else {
                report.unsupported(&at, other, &["Restart", "RestartAllContainers"]);
            }
            None
        }
    };
    let at = path.field("exitCodes");
    let Some(codes) = &written.exit_codes else {
        if !report.is_wrong_below(&at) {
            report.error(&at, "Required value: must be specified");
        }
        return None;
    };
    let values = codes.values.clone().unwrap_or_default();
    at_most(MAX_CODES, values.len(), &at.field("values"), report);
    let codes = match codes.operator.as_str() {
        "In" => ExitCodes::In(values),
        "NotIn" => ExitCodes::NotIn(values),
        other => {
            let at = at.field("operator");
            if other.is_empty() {
                report.required(&at);
            } else {
                report.unsupported(&at, other, &["In", "NotIn"]);
            }
            return None;
        }
    };
    Some(RestartRule {
        codes,
        action: action?,
    })
}

fn at_most(most: usize, given: usize, path: &Path<'_>, report: &Report) {
    if given > most {
        let message = format_args!("Too many: {given}: must have at most {most} items");
        report.error(path, message);
    }
}
