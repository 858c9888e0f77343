//! Jobs: pods that run until they have succeeded a number of times (`pkg/apis/batch/validation`). A document has one
//! pod here, that of the first index at its first try; [`PodSpec::of_job`] makes all others of it when they are due.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::{Deserialize, Serialize};

use super::WorkloadKey;
use super::check::not_negative;
use super::success::{self, SuccessRule};
use super::written::Spec;
use crate::spec::error::{Path, Report};
use crate::spec::pod::{PodSpec, PodUid};
use crate::spec::{convert, default, names, uid};

/// The most completions of a Job.
pub const MAX_COMPLETIONS: u32 = 10_000;

/// Limits of `podFailurePolicy`: rules, and exit codes of a rule.
const MAX_RULES: usize = 20;
const MAX_CODES: usize = 255;

/// Label and annotation of a pod with its index.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Labels of a pod with the UID of its Job.
pub const CONTROLLER_UID: [&str; 2] = ["batch.kubernetes.io/controller-uid", "controller-uid"];
/// Label of a pod with the edition of its Job. Pods that former versions made have it as [`CONTROLLER_UID`].
pub(in crate::spec) const EDITION: &str = "coracle.dev/job-edition";
/// Labels of a pod with the name of its Job.
const JOB_NAME: [&str; 2] = ["batch.kubernetes.io/job-name", "job-name"];
/// The variable with a pod's index.
const VARIABLE: &str = "JOB_COMPLETION_INDEX";

/// What a Job asks for (Kubernetes API: `batch/v1` Job).
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// So many indexes have to succeed; `None`: once one pod has succeeded, no other is started.
    pub completions: Option<u32>,
    /// So many pods may run at once.
    pub parallelism: u32,
    /// Pods know their index.
    pub indexed: bool,
    /// With more failures the Job has failed.
    pub backoff_limit: u32,
    /// With more failures an index has failed.
    pub backoff_limit_per_index: Option<u32>,
    /// With more failed indexes the Job has failed.
    pub max_failed_indexes: Option<u32>,
    /// After so long the Job has failed, in milliseconds.
    pub deadline_ms: Option<u64>,
    /// The pods go so long after its end, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// No pod runs.
    pub suspended: bool,
    /// What becomes of failed pods; the first rule that fits counts.
    pub rules: Vec<Rule>,
    /// The Job is also complete once one of these is met.
    pub success: Vec<SuccessRule>,
}

impl Job {
    /// Whether no pod of it comes, as its file is.
    pub fn is_idle(&self) -> bool {
        let none = self.parallelism == 0 || self.completions == Some(0);
        none || self.suspended || self.deadline_ms == Some(0)
    }
}

/// A rule of `podFailurePolicy`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// What to do.
    pub action: Action,
    /// With which pods.
    pub when: When,
}

/// What a failed pod means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The Job has failed.
    FailJob,
    /// Its index has failed.
    FailIndex,
    /// Nothing: there will be another one.
    Ignore,
    /// It counts.
    Count,
}

/// Which failed pods.
#[derive(Debug, Clone, PartialEq)]
pub enum When {
    /// Those with a container that ended with one of these codes, or with none of them.
    ExitCodes {
        /// This container; `None`: any.
        container: Option<String>,
        /// With none of them.
        not: bool,
        /// The exit codes.
        codes: Vec<i32>,
    },
    /// Those with one of these conditions: types and statuses.
    Conditions(Vec<(String, String)>),
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Policy {
    rules: Vec<WrittenRule>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WrittenRule {
    action: String,
    on_exit_codes: Option<ExitCodes>,
    on_pod_conditions: Vec<OnCondition>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ExitCodes {
    container_name: Option<String>,
    operator: String,
    values: Vec<i32>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct OnCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

/// Checks what is particular to a Job.
pub(super) fn job(spec: &Spec, pod: &Pod, path: &Path<'_>, report: &Report) -> Job {
    let number = |given: Option<i32>, field: &str| {
        let given = given?;
        not_negative(given, &path.field(field), report);
        u32::try_from(given).ok()
    };
    let ms = |given: Option<i64>, field: &str| {
        let given = given?;
        not_negative(given, &path.field(field), report);
        u64::try_from(given).ok()?.checked_mul(1000)
    };
    let written = spec.completions;
    let most = [
        (written, "completions", MAX_COMPLETIONS.cast_signed()),
        (spec.parallelism, "parallelism", super::MAX_REPLICAS),
    ];
    for (given, field, most) in most {
        if let Some(given) = given.filter(|given| *given > most) {
            let detail = format_args!("must be less than or equal to {most} on one node");
            report.invalid(&path.field(field), given, detail);
        }
    }
    let completions = match (written, spec.parallelism) {
        (None, None) => Some(1),
        (given, _) => number(given, "completions"),
    };
    let indexed = match spec.completion_mode.as_str() {
        "" | "NonIndexed" => false,
        "Indexed" => true,
        other => {
            let supported = ["Indexed", "NonIndexed"];
            report.unsupported(&path.field("completionMode"), other, &supported);
            false
        }
    };
    if indexed && written.is_none() {
        let message = "Required value: when completion mode is Indexed";
        report.error(&path.field("completions"), message);
    }
    let per_index = number(spec.backoff_limit_per_index, "backoffLimitPerIndex");
    let max_failed = number(spec.max_failed_indexes, "maxFailedIndexes");
    if let Some(given) = per_index.filter(|_| !indexed) {
        let at = path.field("backoffLimitPerIndex");
        report.invalid(&at, given, "requires indexed job");
    }
    if max_failed.is_some() && per_index.is_none() {
        let at = path.field("backoffLimitPerIndex");
        report.error(&at, "Required value: when maxFailedIndexes is specified");
    }
    if let (Some(most), Some(all)) = (max_failed, completions)
        && most > all
    {
        let at = path.field("maxFailedIndexes");
        report.invalid(&at, most, "must be less than or equal to completions");
    }
    check_replacement(spec, path, report);
    let never = pod
        .spec
        .as_ref()
        .and_then(|pod| pod.restart_policy.as_deref())
        == Some("Never");
    if per_index.is_some() && !never {
        only_never("backoffLimitPerIndex", path, report);
    }
    let fallback = match per_index {
        Some(_) => i32::MAX.unsigned_abs(),
        None => 6,
    };
    Job {
        completions,
        parallelism: number(spec.parallelism, "parallelism").unwrap_or(1),
        indexed,
        backoff_limit: number(spec.backoff_limit, "backoffLimit").unwrap_or(fallback),
        backoff_limit_per_index: per_index,
        max_failed_indexes: max_failed,
        deadline_ms: ms(spec.active_deadline_seconds, "activeDeadlineSeconds"),
        ttl_ms: ms(
            spec.ttl_seconds_after_finished.map(i64::from),
            "ttlSecondsAfterFinished",
        ),
        suspended: spec.suspend,
        rules: rules((spec, pod), never, per_index.is_some(), path, report),
        success: success::rules(
            spec.success_policy.as_ref(),
            completions.filter(|_| indexed),
            &path.field("successPolicy"),
            report,
        ),
    }
}

/// Kubernetes' own controller of Jobs, which a Job may name.
const CONTROLLER: &str = "kubernetes.io/job-controller";

/// Whether a server made this selector, as in a Job that a client has saved. Pods get the label of the Job that it becomes.
pub(super) fn is_made(selector: &LabelSelector) -> bool {
    let labels = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    let mut names = labels.map(|(name, _)| name.as_str()).peekable();
    names.peek().is_some()
        && names.all(|name| CONTROLLER_UID.contains(&name))
        && expressions.is_empty()
}

/// Checks the host name of an indexed Job's last pod.
pub(super) fn check_hosts(key: &WorkloadKey, job: &Job, at: &Path<'_>, report: &Report) {
    let last = job.completions.filter(|_| job.indexed);
    let last = last.and_then(|count| count.checked_sub(1));
    let host = last.map(|index| host(key, index));
    // What is wrong with the name itself is said already.
    if names::dns_label(&key.name).is_some() {
        return;
    }
    if let Some(host) = host.filter(|host| names::dns_label(host).is_some()) {
        // Upstream's words.
        let why = format_args!("will not able to create pod with invalid DNS label: {host}");
        report.invalid(at, &*key.name, why);
    }
}

fn check_replacement(spec: &Spec, path: &Path<'_>, report: &Report) {
    let at = path.field("podReplacementPolicy");
    match spec.pod_replacement_policy.as_str() {
        "" | "TerminatingOrFailed" | "Failed" => {}
        other => report.unsupported(&at, other, &["Failed", "TerminatingOrFailed"]),
    }
    if spec
        .managed_by
        .as_deref()
        .is_some_and(|by| by != CONTROLLER)
    {
        let why = "there is no other controller here";
        report.refuse(&path.field("managedBy"), why, "remove it");
    }
    let written = spec.selector.as_ref().filter(|selector| !is_made(selector));
    if written.is_some() && spec.manual_selector != Some(true) {
        report.error_hint(
            &path.field("selector"),
            "Invalid value: `selector` not auto-generated",
            "remove it: pods belong to the Job whose name they have".to_owned(),
        );
    }
}

/// Containers that restart by themselves would never be counted.
fn only_never(field: &str, path: &Path<'_>, report: &Report) {
    let at = path.field("template");
    let at = at.field("spec");
    report.error(
        &at.field("restartPolicy"),
        format_args!("Invalid value: only \"Never\" is supported when {field} is specified"),
    );
}

fn rules(
    (spec, pod): (&Spec, &Pod),
    never: bool,
    per_index: bool,
    path: &Path<'_>,
    report: &Report,
) -> Vec<Rule> {
    let Some(policy) = &spec.pod_failure_policy else {
        return Vec::new();
    };
    if !never {
        only_never("podFailurePolicy", path, report);
    }
    if spec.pod_replacement_policy == "TerminatingOrFailed" {
        let at = path.field("podReplacementPolicy");
        report.unsupported(&at, "TerminatingOrFailed", &["Failed"]);
    }
    let at = path.field("podFailurePolicy");
    let list = at.field("rules");
    if policy.rules.len() > MAX_RULES {
        report.error(
            &list,
            format_args!(
                "Too many: {}: must have at most {MAX_RULES} items",
                policy.rules.len()
            ),
        );
    }
    let spec = pod.spec.iter();
    let all = spec.flat_map(|spec| {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
    });
    let names: Vec<&str> = all.map(|container| &*container.name).collect();
    let rules = policy.rules.iter().enumerate();
    let of = (per_index, names.as_slice());
    let rules = rules.filter_map(|(index, rule)| one(rule, of, &list.index(index), report));
    rules.collect()
}

fn one(
    rule: &WrittenRule,
    (per_index, names): (bool, &[&str]),
    path: &Path<'_>,
    report: &Report,
) -> Option<Rule> {
    let at = path.field("action");
    let action = match rule.action.as_str() {
        "FailJob" => Action::FailJob,
        "FailIndex" => {
            if !per_index {
                report.invalid(
                    &at,
                    "FailIndex",
                    "requires the backoffLimitPerIndex to be set",
                );
            }
            Action::FailIndex
        }
        "Ignore" => Action::Ignore,
        "Count" => Action::Count,
        other => {
            report.unsupported(&at, other, &["Count", "FailIndex", "FailJob", "Ignore"]);
            return None;
        }
    };
    let when = match (&rule.on_exit_codes, rule.on_pod_conditions.as_slice()) {
        (Some(codes), []) => {
            let at = path.field("onExitCodes");
            let not = match codes.operator.as_str() {
                "In" => false,
                "NotIn" => true,
                other => {
                    report.unsupported(&at.field("operator"), other, &["In", "NotIn"]);
                    false
                }
            };
            check_codes(codes, names, &at, report);
            When::ExitCodes {
                container: codes.container_name.clone(),
                not,
                codes: codes.values.clone(),
            }
        }
        (None, conditions @ [_, ..]) => {
            let pair = |on: &OnCondition| {
                let status = match on.status.as_str() {
                    "" => "True",
                    given => given,
                };
                (on.type_.clone(), status.to_owned())
            };
            When::Conditions(conditions.iter().map(pair).collect())
        }
        _ => {
            report.error(
                path,
                "Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
            );
            return None;
        }
    };
    Some(Rule { action, when })
}

/// The API server's rules for exit codes (`validatePodFailurePolicyRuleOnExitCodes`).
fn check_codes(codes: &ExitCodes, names: &[&str], path: &Path<'_>, report: &Report) {
    if let Some(name) = &codes.container_name
        && !names.contains(&name.as_str())
    {
        report.invalid(
            &path.field("containerName"),
            name,
            "must be one of the container or initContainer names in the pod template",
        );
    }
    let (values, at) = (&codes.values, path.field("values"));
    if values.is_empty() {
        report.error(&at, "Invalid value: []: at least one value is required");
    }
    if values.len() > MAX_CODES {
        report.error(
            &at,
            format_args!(
                "Too many: {}: must have at most {MAX_CODES} items",
                values.len()
            ),
        );
    }
    for (index, value) in values.iter().enumerate() {
        let at = at.index(index);
        if *value == 0 && codes.operator == "In" {
            report.invalid(&at, 0, "must not be 0 for the In operator");
        }
        if values[..index].contains(value) {
            report.duplicate(&at, *value);
        }
    }
    if !values.is_sorted() {
        report.invalid(&at, values, "must be ordered");
    }
}

/// Gives a pod the labels of its Job.
pub(super) fn label(pod: &mut Pod, key: &WorkloadKey, edition: &PodUid) {
    let labels = pod.metadata.labels.get_or_insert_default();
    for name in JOB_NAME {
        labels.insert(name.to_owned(), key.name.to_string());
    }
    for name in CONTROLLER_UID {
        labels.insert(name.to_owned(), key.uid().to_string());
    }
    labels.insert(EDITION.to_owned(), edition.to_string());
}

/// Prepares the template for [`PodSpec::of_job`]; `edition` tells this Job from earlier ones of its name.
pub(super) fn prepare(pod: &mut Pod, key: &WorkloadKey, edition: &PodUid, indexed: bool) {
    label(pod, key, edition);
    pod.metadata.name = Some(pod_name(key, 0, 0));
    let Some(spec) = pod.spec.as_mut().filter(|_| indexed) else {
        return;
    };
    let index = EnvVar {
        name: VARIABLE.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: Some("v1".to_owned()),
                field_path: format!("metadata.annotations['{INDEX}']"),
            }),
            ..EnvVarSource::default()
        }),
    };
    let init = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(init) {
        let env = container.env.get_or_insert_default();
        if env.iter().all(|other| other.name != VARIABLE) {
            env.push(index.clone());
        }
    }
    spec.hostname.get_or_insert_with(|| host(key, 0));
    with_index(pod, 0);
}

fn with_index(pod: &mut Pod, index: u32) {
    let metadata = &mut pod.metadata;
    for all in [&mut metadata.annotations, &mut metadata.labels] {
        all.get_or_insert_default()
            .insert(INDEX.to_owned(), index.to_string());
    }
}

pub(super) fn host(key: &WorkloadKey, index: u32) -> String {
    format!("{}-{index}", key.name)
}

pub(super) fn pod_name(key: &WorkloadKey, index: u32, number: u32) -> String {
    format!("{}-{index}-{number}", key.name)
}

/// The index of a Job's pod, and how many there were before it, by its name.
pub fn place(pod: &PodSpec) -> Option<(u32, u32)> {
    let mut parts = pod.key.name.rsplitn(3, '-');
    let number = parts.next()?.parse().ok()?;
    Some((parts.next()?.parse().ok()?, number))
}

impl PodSpec {
    /// Returns the pod of this index and number, of the one of index and number 0.
    ///
    /// # Errors
    /// `None` if it were no valid pod: its name is too long.
    pub fn of_job(&self, index: u32, number: u32) -> Option<Self> {
        let key = self.workload.as_ref()?;
        let mut pod = self.manifest.pod();
        pod.metadata.name = Some(pod_name(key, index, number));
        let annotations = pod.metadata.annotations.as_ref();
        if annotations.is_some_and(|all| all.contains_key(INDEX)) {
            with_index(&mut pod, index);
            let first = Some(host(key, 0));
            if let Some(spec) = pod.spec.as_mut().filter(|spec| spec.hostname == first) {
                spec.hostname = Some(host(key, index));
            }
        }
        let uid = PodUid::from(uid::of(&pod).as_str());
        default::identity(&mut pod.metadata, &uid, &uid);
        let made = convert::admitted(&serde_json::to_vec(&pod).ok()?).ok()?;
        Some(made)
    }
}

/// Tells editions of a Job apart: by the template, by what makes it complete, and by its own labels and annotations.
pub(super) fn edition(
    pod: &Pod,
    completions: Option<u32>,
    job: &Job,
    metadata: &ObjectMeta,
) -> PodUid {
    let text = serde_json::to_string(&(
        uid::short(pod),
        (completions, job.indexed),
        (&metadata.namespace, &metadata.name),
        (&metadata.labels, &metadata.annotations),
    ));
    let mut text = text.unwrap_or_default();
    // Without a policy the text is that of versions that had none: their Jobs do not run again.
    if !job.success.is_empty() {
        text += &serde_json::to_string(&job.success).unwrap_or_default();
    }
    uid::hash(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_selectors_of_a_jobs_uid_are_made_by_servers() {
        let selector = |names: &[&str]| LabelSelector {
            match_labels: Some(
                names
                    .iter()
                    .map(|n| ((*n).to_owned(), "x".to_owned()))
                    .collect(),
            ),
            ..LabelSelector::default()
        };
        for (names, made) in [
            (&CONTROLLER_UID[..1], true),
            (&CONTROLLER_UID[1..], true),
            (&CONTROLLER_UID, true),
            (&[CONTROLLER_UID[0], "app"], false),
            (&["app"], false),
            (&[], false),
        ] {
            assert_eq!(is_made(&selector(names)), made, "{names:?}");
        }
    }
}
