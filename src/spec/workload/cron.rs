//! CronJobs: Jobs at set times of the wall clock (`pkg/apis/batch/validation`). A document has one Job here, for its
//! template; [`CronJob::job`] makes those of its times of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::check::{not_negative, only};
use super::job::{host, label, pod_name};
use super::make::{get_mut, key, owner};
use super::schedule::{Schedule, is_too_often};
use super::{Update, Workload, WorkloadKey, WorkloadKind};
use crate::spec::decode::decode;
use crate::spec::error::{Path, Report};
use crate::spec::pod::{PodSpec, PodUid};
use crate::spec::value::Value;
use crate::spec::{convert, default, parse, rollback, uid};
use crate::types::{SharedText, Wall};

/// Annotation of a Job with the time that it was scheduled for.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// The field that names a time zone.
const ZONE: &str = "timeZone";
/// The most Jobs of a CronJob that are kept for their logs.
const MAX_HISTORY: i32 = 100;
/// The longest name: a minute since 1970 is added to it, and a pod's number.
const MAX_NAME: usize = 52;

/// Time zones by name, each as its file in the tz database (RFC 9636); the empty name is the node's own.
pub type Zones = BTreeMap<String, Vec<u8>>;

/// The time zones that a file names, and the node's own if it has CronJobs.
pub fn zones(bytes: &[u8]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let Ok(text) = std::str::from_utf8(bytes) else {
        return found;
    };
    // Nearly all files have none and are not parsed for it.
    if text.contains("CronJob") {
        found.insert(String::new());
        if text.contains(ZONE) {
            let values = parse::parse(text).unwrap_or_default();
            values.iter().for_each(|value| collect(value, &mut found));
        }
    }
    found
}

fn collect(value: &Value, found: &mut BTreeSet<String>) {
    if let Some(Value::List(items)) = value.get("items") {
        items.iter().for_each(|item| collect(item, found));
    }
    let zone = value.get("spec").and_then(|spec| spec.get(ZONE));
    if let Some(Value::String(zone)) = zone {
        found.insert(zone.clone());
    }
}

/// What becomes of a run that is due while an earlier one is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// It begins.
    Allow,
    /// It waits.
    Forbid,
    /// It takes the place of the other.
    Replace,
}

/// What a CronJob asks for (Kubernetes API: `batch/v1` CronJob).
#[derive(Debug, Clone, PartialEq)]
pub struct CronJob {
    /// When it runs.
    pub schedule: Schedule,
    /// The same and the time zone, as they are written.
    pub written: String,
    /// The time zone of the schedule.
    pub zone: TimeZone,
    /// What becomes of a run while another is at work.
    pub concurrency: Concurrency,
    /// A run may begin so late, in seconds.
    pub deadline_s: Option<i64>,
    /// So many Jobs that have succeeded are kept.
    pub keep_succeeded: usize,
    /// So many Jobs that have failed are kept.
    pub keep_failed: usize,
    /// Nothing begins.
    pub suspended: bool,
    /// The time zone is written.
    zoned: bool,
    /// A Job with a name in place of a time's.
    template: Workload,
    /// Its first pod.
    first: PodSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Written {
    metadata: ObjectMeta,
    spec: Spec,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Spec {
    schedule: String,
    time_zone: Option<String>,
    concurrency_policy: String,
    starting_deadline_seconds: Option<i64>,
    successful_jobs_history_limit: Option<i32>,
    failed_jobs_history_limit: Option<i32>,
    suspend: bool,
}

/// A document whose template is still to be made.
#[derive(Debug)]
pub(in crate::spec) struct Draft {
    key: WorkloadKey,
    manifest: Arc<str>,
    spec: Spec,
    schedule: Schedule,
    zone: TimeZone,
    concurrency: Concurrency,
}

/// Reads all of a document but its template. Returns that, too, as a Job.
pub(in crate::spec) fn read(
    value: &mut Value,
    zones: &Zones,
    path: &Path<'_>,
    report: &Report,
) -> Option<(Draft, Value)> {
    report.begin(path);
    let version = Value::String(WorkloadKind::CronJob.version().to_owned());
    if let Some(given) = get_mut(value, "apiVersion") {
        *given = version.clone();
    }
    let manifest = Arc::from(parse::json(value));
    value.remove("apiVersion");
    value.remove("kind");
    only(value, path, &["metadata", "spec"], report);
    let at = path.field("spec");
    let Some(spec @ Value::Map(_)) = get_mut(value, "spec") else {
        report.required(&at);
        return None;
    };
    let fields = super::written::fields(WorkloadKind::CronJob);
    only(spec, &at, fields, report);
    let template = spec.get("jobTemplate").cloned().unwrap_or(Value::Null);
    spec.remove("jobTemplate");
    let Written { mut metadata, spec } = decode(value, path, report)?;
    let key = key(WorkloadKind::CronJob, &mut metadata, path, report);
    rollback::refuse(&metadata, path, report, "a CronJob is not rolled out");
    let schedule = schedule(&spec, &at, report);
    let zone = zone(&spec, zones, &at.field(ZONE), report);
    let concurrency = match spec.concurrency_policy.as_str() {
        "" | "Allow" => Concurrency::Allow,
        "Forbid" => Concurrency::Forbid,
        "Replace" => Concurrency::Replace,
        other => {
            let supported = ["Allow", "Forbid", "Replace"];
            report.unsupported(&at.field("concurrencyPolicy"), other, &supported);
            Concurrency::Allow
        }
    };
    if let Some(deadline) = spec.starting_deadline_seconds {
        not_negative(deadline, &at.field("startingDeadlineSeconds"), report);
    }
    for (given, field) in [
        (
            spec.successful_jobs_history_limit,
            "successfulJobsHistoryLimit",
        ),
        (spec.failed_jobs_history_limit, "failedJobsHistoryLimit"),
    ] {
        let (given, at) = (given.unwrap_or(0), at.field(field));
        not_negative(given, &at, report);
        if given > MAX_HISTORY {
            let detail = format_args!("must be less than or equal to {MAX_HISTORY} on one node");
            report.invalid(&at, given, detail);
        }
    }
    let job = as_job(template, &key, &at.field("jobTemplate"), report)?;
    let draft = Draft {
        key,
        manifest,
        // An error refuses the document; its pods are checked all the same.
        schedule: schedule.or_else(|| Schedule::parse("@yearly").ok())?,
        zone: zone.unwrap_or(TimeZone::UTC),
        concurrency,
        spec,
    };
    Some((draft, job))
}

fn schedule(spec: &Spec, path: &Path<'_>, report: &Report) -> Option<Schedule> {
    let at = path.field("schedule");
    let text = spec.schedule.as_str();
    if text.is_empty() {
        report.required(&at);
        return None;
    }
    if text.contains("TZ=") {
        let message = format_args!(
            "Invalid value: {text:?}: cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        );
        let hint =
            "write the schedule without it, and `timeZone: Europe/Berlin` or the like beside it";
        report.error_hint(&at, message, hint.to_owned());
        return None;
    }
    if is_too_often(text) {
        let what =
            "it runs once a minute, the shortest time between runs: Jobs are named by the minute";
        report.warn(&at, what);
    }
    Schedule::parse(text)
        .inspect_err(|problem| {
            let message = format!("Invalid value: {text:?}: {problem}");
            match problem.contains("above maximum (6)") {
                true => report.error_hint(&at, message, "Sunday is 0".to_owned()),
                false => report.error(&at, message),
            }
        })
        .ok()
}

fn zone(spec: &Spec, zones: &Zones, at: &Path<'_>, report: &Report) -> Option<TimeZone> {
    let read = |name: &str| TimeZone::tzif(name, zones.get(name)?).ok();
    match spec.time_zone.as_deref() {
        None => Some(read("").unwrap_or(TimeZone::UTC)),
        Some("") => {
            report.invalid(at, "", "must be nil or non-empty string");
            None
        }
        Some(name) if name.eq_ignore_ascii_case("local") => {
            let detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
            report.invalid(at, name, detail);
            None
        }
        Some(name @ ("UTC" | "Etc/UTC")) => Some(read(name).unwrap_or(TimeZone::UTC)),
        Some(name) => {
            let zone = read(name);
            if zone.is_none() {
                report.error_hint(
                    at,
                    format_args!("Invalid value: {name:?}: unknown time zone {name}"),
                    "names are those of files in /usr/share/zoneinfo (Debian's package `tzdata`), `UTC` is always known; \
                     without `timeZone` the schedule is in the node's own"
                        .to_owned(),
                );
            }
            zone
        }
    }
}

/// The template as a Job of the longest name that one of them has.
fn as_job(template: Value, key: &WorkloadKey, path: &Path<'_>, report: &Report) -> Option<Value> {
    let Value::Map(_) = template else {
        match template {
            Value::Null => report.required(path),
            other => report.error(
                path,
                format_args!("must be a mapping, not {}", other.kind()),
            ),
        }
        return None;
    };
    let mut template = template;
    only(&mut template, path, &["metadata", "spec"], report);
    let mut metadata = match template.get("metadata") {
        Some(Value::Map(entries)) => entries.clone(),
        _ => Vec::new(),
    };
    // As in Kubernetes, the Jobs' names are made here.
    metadata.retain(|(key, _)| !["name", "generateName", "namespace"].contains(&key.as_str()));
    let text = |key: &str, value: &str| (key.to_owned(), Value::String(value.to_owned()));
    let name = match key.name.is_empty() || key.name.len() > MAX_NAME {
        true => "cronjob",
        false => &key.name,
    };
    metadata.push(text("name", &format!("{name}-00000000")));
    metadata.push(text("namespace", &key.namespace));
    let spec = template.get("spec").cloned().unwrap_or(Value::Null);
    Some(Value::Map(vec![
        text("apiVersion", WorkloadKind::Job.version()),
        text("kind", WorkloadKind::Job.as_str()),
        ("metadata".to_owned(), Value::Map(metadata)),
        ("spec".to_owned(), spec),
    ]))
}

impl Draft {
    /// The document's key.
    pub(in crate::spec) fn key(&self) -> &WorkloadKey {
        &self.key
    }

    /// The whole document; `template` and `first` were made of its template.
    pub(in crate::spec) fn finish(self, template: Workload, first: PodSpec) -> Workload {
        let spec = self.spec;
        let zone = spec.time_zone.as_deref().unwrap_or_default();
        let limit = |given: Option<i32>, default| {
            given.map_or(default, |given| usize::try_from(given).unwrap_or(0))
        };
        let cron = CronJob {
            written: format!("{} {zone}", spec.schedule),
            zoned: spec.time_zone.is_some(),
            schedule: self.schedule,
            zone: self.zone,
            concurrency: self.concurrency,
            deadline_s: spec.starting_deadline_seconds,
            keep_succeeded: limit(spec.successful_jobs_history_limit, 3),
            keep_failed: limit(spec.failed_jobs_history_limit, 1),
            suspended: spec.suspend,
            template,
            first,
        };
        Workload {
            written: Arc::default(),
            resumed: false,
            edition: Arc::default(),
            formerly: None,
            rollback: false,
            history: 0,
            revision: uid::hash(&self.manifest).0,
            key: self.key,
            pods: Vec::new(),
            update: Update::Recreate,
            ordered: false,
            min_ready_ms: 0,
            steady_ms: 0,
            progress_deadline_ms: None,
            paused: false,
            job: None,
            cron: Some(Box::new(cron)),
            retention: None,
            manifest: SharedText::of(&self.manifest),
            modified: Wall::default(),
        }
    }
}

/// The name of the Job of a time: with the minute since 1970, as upstream.
pub fn job_key(cron: &WorkloadKey, at: i64) -> WorkloadKey {
    WorkloadKey {
        kind: WorkloadKind::Job,
        namespace: cron.namespace.clone(),
        name: format!("{}-{}", cron.name, at.div_euclid(60)).into(),
    }
}

impl CronJob {
    /// The Job of this time, and its first pod.
    pub fn job(&self, owner_key: &WorkloadKey, at: i64) -> Option<(Workload, PodSpec)> {
        let key = job_key(owner_key, at);
        let edition = key.uid();
        let mut manifest: serde_json::Value =
            serde_json::from_str(&self.template.manifest.text()).ok()?;
        let metadata = &mut manifest["metadata"];
        metadata["name"] = (*key.name).into();
        metadata["annotations"][SCHEDULED] = self.shown(at).into();
        metadata["ownerReferences"] = serde_json::to_value([owner(owner_key)]).ok()?;
        let first = self.first.of_cron(&key, &edition)?;
        let job = Workload {
            pods: vec![first.key.clone()],
            revision: Arc::clone(&edition.0),
            formerly: None,
            manifest: SharedText::of(&manifest.to_string()),
            key,
            ..self.template.clone()
        };
        Some((job, first))
    }

    /// A Job goes so long after its end, in milliseconds.
    pub fn ttl_ms(&self) -> Option<u64> {
        self.template.job.as_ref()?.ttl_ms
    }

    /// A time as the annotation has it: in the time zone that is written, or in UTC.
    pub fn shown(&self, at: i64) -> String {
        let at = Timestamp::from_second(at).unwrap_or_default();
        let offset = self.zone.to_offset(at);
        match self.zoned && offset.seconds() != 0 {
            true => at.display_with_offset(offset).to_string(),
            false => at.to_string(),
        }
    }
}

impl PodSpec {
    /// The first pod of the Job of this name, of the template's.
    fn of_cron(&self, key: &WorkloadKey, edition: &PodUid) -> Option<Self> {
        let template = self.workload.as_ref()?;
        let mut pod = self.manifest.pod();
        pod.metadata.name = Some(pod_name(key, 0, 0));
        pod.metadata.owner_references = Some(vec![owner(key)]);
        label(&mut pod, key, edition);
        let first = Some(host(template, 0));
        if let Some(spec) = pod.spec.as_mut().filter(|spec| spec.hostname == first) {
            spec.hostname = Some(host(key, 0));
        }
        let uid = PodUid::from(uid::of(&pod).as_str());
        default::identity(&mut pod.metadata, &uid, &uid);
        convert::admitted(&serde_json::to_vec(&pod).ok()?).ok()
    }
}
