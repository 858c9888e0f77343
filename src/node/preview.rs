//! `coracle plan`: what saving the given files would change. The files are read as from the manifest directory, and
//! the planner itself judges each pod.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::commands::Reply;
use super::manifests::{InEffect, Loaded};
use super::{Input, Node, spawn, unblock};
use crate::api::PlannedFile;
use crate::plan::edit::{Changes, Edit};
use crate::plan::preview::{Held, Preview};
use crate::spec::encrypted::{self, Opened, Sealed};
use crate::spec::workload::CronJob;
use crate::spec::{ObjectKey, ObjectKind, Pins, PodKey, PodSpec, WorkloadKind};
use crate::sys::clock;
use crate::types::Gather;

/// The number of times that are shown of a CronJob.
const RUNS: usize = 3;

impl Node {
    /// Answers a client that wants a preview. Encrypted contents are decrypted beside the loop first.
    pub(super) fn preview_for(
        &self,
        bundle: Option<(String, Pins)>,
        files: Vec<PlannedFile>,
        reply: Reply<Value>,
    ) {
        let sealed = files
            .iter()
            .map(|file| encrypted::found(file.text.as_bytes()));
        let sealed: Vec<Sealed> = sealed.flatten().collect();
        if sealed.is_empty() {
            let _ = reply.try_send(Ok(self.preview(bundle.as_ref(), &files, &Opened::new())));
            return;
        }
        let (credentials, inputs) = (
            self.manifests.credentials.clone(),
            self.tools.inputs.clone(),
        );
        spawn(async move {
            let opened = unblock(move || credentials.open(sealed)).await;
            let input = Input::Opened {
                bundle,
                files,
                opened,
                reply,
            };
            let _ = inputs.send(input).await;
        });
    }

    /// `{"items": [{"file", "errors", "warnings", "changes": [{"kind", "namespace", "name", "change", …}]}]}`
    pub(super) fn preview(
        &self,
        bundle: Option<&(String, Pins)>,
        files: &[PlannedFile],
        opened: &Opened,
    ) -> Value {
        let given = bundle.map(|(name, images)| (name.as_str(), images));
        let (then, checked) = self.manifests.with(given, files, opened);
        let items = files.iter().zip(checked).map(|(file, checked)| {
            let both = (self.manifests.file(&checked.path), then.file(&checked.path));
            let changes = match checked.errors.is_empty() {
                true => self.changes(both, &then),
                false => Vec::new(),
            };
            json!({ "file": file.name, "errors": checked.errors, "warnings": checked.warnings, "changes": changes })
        });
        let mut items: Vec<Value> = items.collect();
        // What the bundle has now, and would not have any more.
        for (path, old) in bundle
            .into_iter()
            .flat_map(|(name, _)| self.manifests.of_bundle(name))
        {
            let changes = self.changes((Some(old), None), &then);
            if !changes.is_empty() {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                items.push(
                    json!({ "file": name, "errors": [], "warnings": [], "changes": changes }),
                );
            }
        }
        json!({ "items": items })
    }

    /// The changes of one file between two versions.
    fn changes(
        &self,
        (old, new): (Option<&Loaded>, Option<&Loaded>),
        then: &InEffect,
    ) -> Vec<Value> {
        let compared = |kind: &str, of: &dyn Fn(&Loaded) -> Vec<Plain>| {
            let here = (
                old.map(of).unwrap_or_default(),
                new.map(of).unwrap_or_default(),
            );
            let all = |files: &InEffect| files.all().flat_map(of).collect();
            let mut found = Vec::new();
            compare(kind, here, (all(&self.manifests), all(then)), &mut found);
            found
        };
        let mut changes = Vec::new();
        for kind in WorkloadKind::ALL {
            let of = &|file: &Loaded| workloads(file, kind);
            changes.extend(compared(kind.as_str(), of));
        }
        let crons = new.into_iter().flat_map(|new| &new.workloads);
        for (workload, cron) in crons.filter_map(|all| Some((all, all.cron.as_ref()?))) {
            let (namespace, name) = (&workload.key.namespace, &workload.key.name);
            let same = |change: &&mut Value| {
                change["kind"] == "CronJob"
                    && change["namespace"] == **namespace
                    && change["name"] == **name
            };
            if let Some(change) = changes.iter_mut().find(same)
                && change["change"] != "None"
            {
                change["runs"] = runs(cron);
            }
        }
        let pods = new.into_iter().flat_map(|new| &new.pods);
        changes.extend(pods.map(|pod| self.pod(pod)));
        let stays = keys(then.all());
        let here = keys(old.into_iter());
        for key in here.difference(&stays) {
            changes.push(entry("Pod", &key.namespace, &key.name, "Remove"));
        }
        for (kind, of) in [
            ("Service", services as fn(&Loaded) -> Vec<Plain>),
            ("PriorityClass", classes),
        ] {
            changes.extend(compared(kind, &of));
        }
        for kind in ObjectKind::ALL {
            let mut found = compared(kind.as_str(), &|file| objects(file, kind));
            for change in found.iter_mut().filter(|change| change["change"] != "None") {
                let text = |field: &str| change[field].as_str().unwrap_or_default().to_owned();
                let key = ObjectKey::new(kind, &text("namespace"), &text("name"));
                change["pods"] = self.touched(&key, then);
            }
            changes.append(&mut found);
        }
        changes
    }

    /// The pods that there are and that have their content from an object, each with what a change of it does.
    fn touched(&self, key: &ObjectKey, then: &InEffect) -> Value {
        if !matches!(key.kind, ObjectKind::ConfigMap | ObjectKind::Secret) {
            return json!([]);
        }
        let now: BTreeSet<&PodKey> = self.state.pods.values().map(|pod| &pod.spec.key).gather();
        let pods = then.all().flat_map(|loaded| &loaded.pods);
        let pods = pods.filter(|pod| now.contains(&pod.key) && pod.references().contains(key));
        let touched = pods.map(|pod| {
            let effect = match (
                pod.restarts_on_change(),
                pod.references_of_volumes().contains(key),
            ) {
                (true, _) => "Replace",
                (false, true) => "Files",
                (false, false) => "NextStart",
            };
            json!({ "namespace": pod.key.namespace, "name": pod.key.name, "effect": effect })
        });
        touched.collect()
    }

    fn pod(&self, pod: &PodSpec) -> Value {
        let key = &pod.key;
        let one = |change| entry("Pod", &key.namespace, &key.name, change);
        let held = |mut shown: Value, hold: Option<Held>| {
            if let Some(Held { rejection, victims }) = hold {
                let victims = victims.iter();
                let victims = victims.map(|v| json!({ "namespace": v.namespace, "name": v.name }));
                shown["held"] = json!({ "reason": rejection.reason.as_str(), "message": rejection.message,
                                        "preempts": victims.collect::<Vec<_>>() });
            }
            shown
        };
        let (edit, waits, hold) = match self.state.preview(pod) {
            Preview::Create { hold } => return held(one("Create"), hold),
            Preview::CreateAfter { hold } => return held(one("CreateAfter"), hold),
            Preview::Edit { edit, waits, hold } => (edit, waits, hold),
        };
        let mut shown = match edit {
            Edit::None => one("None"),
            Edit::Replace(paths) => {
                let mut shown = one("Replace");
                shown["because"] = paths.into();
                shown
            }
            Edit::InPlace(Changes {
                live,
                images,
                resizes,
            }) => {
                let mut shown = one("Edit");
                let images = images.iter().map(|image| {
                    json!({ "container": image.container, "from": image.from, "to": image.to,
                            "restarts": image.restarts })
                });
                let resizes = resizes.iter().map(|resize| {
                    json!({ "container": resize.container, "field": resize.field, "from": resize.from,
                            "to": resize.to, "restarts": resize.restarts })
                });
                shown["live"] = live.into();
                shown["images"] = images.collect();
                shown["resizes"] = resizes.collect();
                shown
            }
        };
        if let Some(refusal) = waits {
            shown["resizePending"] =
                json!({ "reason": refusal.reason(), "message": refusal.message });
        }
        held(shown, hold)
    }
}

/// When a CronJob runs next.
fn runs(cron: &CronJob) -> Value {
    if cron.suspended {
        return json!([]);
    }
    let now = clock::wall_us().div_euclid(1_000_000);
    let next = |at: &i64| cron.schedule.next(*at, &cron.zone);
    let times = std::iter::successors(next(&now), next).take(RUNS);
    times.map(|at| cron.shown(at)).collect()
}

/// Namespace, name and content of an object that is replaced as a whole.
type Plain = (String, String, Value);

fn plain<T: Clone + serde::Serialize>(
    object: &T,
    metadata: fn(&mut T) -> &mut ObjectMeta,
) -> Plain {
    let mut object = object.clone();
    let meta = metadata(&mut object);
    // The time of its file.
    meta.creation_timestamp = None;
    let namespace = meta.namespace.clone().unwrap_or_default();
    let name = meta.name.clone().unwrap_or_default();
    (
        namespace,
        name,
        serde_json::to_value(&object).unwrap_or_default(),
    )
}

fn services(file: &Loaded) -> Vec<Plain> {
    let services = file.services.iter();
    services
        .map(|s| plain(&s.manifest, |s| &mut s.metadata))
        .collect()
}

fn classes(file: &Loaded) -> Vec<Plain> {
    let classes = file.classes.iter();
    classes
        .map(|class| plain(class, |class| &mut class.metadata))
        .collect()
}

/// The documents of a kind that stand for pods.
fn workloads(file: &Loaded, kind: WorkloadKind) -> Vec<Plain> {
    let all = file.workloads.iter().filter(|all| all.key.kind == kind);
    let plain = all.map(|workload| {
        let manifest = serde_json::from_str(&workload.manifest.text()).unwrap_or_default();
        let key = &workload.key;
        (key.namespace.to_string(), key.name.to_string(), manifest)
    });
    plain.collect()
}

/// The configuration documents of a kind. Their content is compared and never shown.
fn objects(file: &Loaded, kind: ObjectKind) -> Vec<Plain> {
    let all = file
        .configuration
        .iter()
        .filter(|(key, _)| key.kind == kind);
    let plain =
        all.map(|(key, object)| (key.namespace.clone(), key.name.clone(), object.manifest()));
    plain.collect()
}

/// Lists the objects of one file that are new, changed or removed; `all_old` and `all_new` are those of all files.
fn compare(
    kind: &str,
    (old, new): (Vec<Plain>, Vec<Plain>),
    (all_old, all_new): (Vec<Plain>, Vec<Plain>),
    changes: &mut Vec<Value>,
) {
    let same = |one: &Plain, other: &Plain| (&one.0, &one.1) == (&other.0, &other.1);
    for one in &new {
        let change = match all_old.iter().find(|other| same(one, other)) {
            None => "Create",
            Some(other) if other.2 == one.2 => "None",
            Some(_) => "Edit",
        };
        changes.push(entry(kind, &one.0, &one.1, change));
    }
    for one in old
        .iter()
        .filter(|one| !all_new.iter().any(|other| same(one, other)))
    {
        changes.push(entry(kind, &one.0, &one.1, "Remove"));
    }
}

fn keys<'l>(files: impl Iterator<Item = &'l Loaded>) -> BTreeSet<PodKey> {
    let pods = files.flat_map(|loaded| &loaded.pods);
    pods.map(|pod| pod.key.clone()).gather()
}

fn entry(kind: &str, namespace: &str, name: &str, change: &str) -> Value {
    json!({ "kind": kind, "namespace": namespace, "name": name, "change": change })
}
