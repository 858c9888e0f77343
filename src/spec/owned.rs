//! What another document of the same file makes by itself: `kubectl get all -o yaml` prints a Deployment, its ReplicaSet
//! and their pods. A cluster removes such dependents (garbage collection by `ownerReferences`); run here, they would be
//! there twice.

use std::collections::BTreeSet;

use super::kinds;
use super::value::Value;
use super::workload::{TEMPLATE_HASH, WorkloadKind};

/// Marks a Job of `kubectl create job --from`, which the CronJob does not make again.
const BY_HAND: &str = "cronjob.kubernetes.io/instantiate";

/// The documents of a file that stand for pods: kind, namespace and name.
#[derive(Debug, Default)]
pub(super) struct Makers(BTreeSet<(WorkloadKind, String, String)>);

impl Makers {
    /// Adds a document, or the items of a list.
    pub(super) fn find(&mut self, value: &Value) {
        let kind = text(value, "kind").unwrap_or_default();
        self.add(&kind, value);
        let of = kind.strip_suffix("List").unwrap_or_default();
        for item in list(value.get("items")) {
            self.add(&text(item, "kind").unwrap_or_else(|| of.to_owned()), item);
        }
    }

    fn add(&mut self, kind: &str, value: &Value) {
        let named = value.get("metadata").and_then(|meta| text(meta, "name"));
        let kind = WorkloadKind::of(kind).filter(|_| is_built_in(value));
        if let Some((kind, name)) = kind.zip(named) {
            self.0.insert((kind, namespace(value), name));
        }
    }

    /// The document of the file that makes this one, for messages. Only pods, ReplicaSets of Deployments and Jobs of
    /// CronJobs are made by another document.
    pub(super) fn of(&self, kind: &str, value: &Value) -> Option<String> {
        let meta = value.get("metadata")?;
        let mut owners = list(meta.get("ownerReferences"));
        let owner = owners.find(|owner| owner.get("controller") == Some(&Value::Bool(true)))?;
        let maker = WorkloadKind::of(&text(owner, "kind")?).filter(|_| is_built_in(owner))?;
        let is_made = match maker {
            // Here the pods belong to the Deployment itself.
            WorkloadKind::Deployment => matches!(kind, "ReplicaSet" | "Pod"),
            WorkloadKind::CronJob => kind == "Job",
            WorkloadKind::ReplicaSet
            | WorkloadKind::ReplicationController
            | WorkloadKind::StatefulSet
            | WorkloadKind::DaemonSet
            | WorkloadKind::Job => kind == "Pod",
        };
        let by_hand = meta.get("annotations").and_then(|all| text(all, BY_HAND));
        if !is_made || by_hand.is_some() {
            return None;
        }
        let (name, namespace) = (text(owner, "name")?, namespace(value));
        // Without its ReplicaSet in the file, a pod shows by its label which Deployment is behind that.
        let hash = meta.get("labels").and_then(|all| text(all, TEMPLATE_HASH));
        let behind = match (maker, hash) {
            (WorkloadKind::ReplicaSet, Some(hash)) => {
                let name = name.strip_suffix(&hash);
                let name = name.and_then(|name| name.strip_suffix('-'));
                name.map(|name| (WorkloadKind::Deployment, name.to_owned()))
            }
            _ => None,
        };
        let mut makers = [Some((maker, name)), behind].into_iter().flatten();
        let (kind, name) = makers.find(|(kind, name)| {
            let key = (*kind, namespace.clone(), name.clone());
            self.0.contains(&key)
        })?;
        let kind = kind.as_str().to_lowercase();
        Some(format!("{kind} {namespace}/{name}"))
    }
}

/// Whether its version is not that of a kind that some program in a cluster has defined.
fn is_built_in(value: &Value) -> bool {
    text(value, "apiVersion").is_none_or(|version| !kinds::is_custom(&version))
}

fn namespace(value: &Value) -> String {
    let given = value
        .get("metadata")
        .and_then(|meta| text(meta, "namespace"));
    given.unwrap_or_else(|| "default".to_owned())
}

fn text(value: &Value, key: &str) -> Option<String> {
    let text = value.get(key)?.scalar_text()?;
    (!text.is_empty()).then_some(text)
}

fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    let items = match value {
        Some(Value::List(items)) => Some(items),
        _ => None,
    };
    items.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use crate::spec::convert::{ConvertContext, documents};

    const TEMPLATE: &str = "selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: \
                            [{name: c, image: i}]}}";

    fn owner(kind: &str, name: &str) -> String {
        format!(
            "ownerReferences: [{{apiVersion: apps/v1, kind: {kind}, name: {name}, uid: u, controller: true}}]"
        )
    }

    fn pod(owner: &str) -> String {
        let labels = "labels: {app: web, pod-template-hash: 5d4f}";
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: web-5d4f-x, {labels}, {owner}}}, spec: {{containers: [{{name: c, \
             image: i}}]}}}}"
        )
    }

    fn set(kind: &str, name: &str, owner: &str) -> String {
        let labels = "labels: {pod-template-hash: 5d4f}";
        format!(
            "{{apiVersion: apps/v1, kind: {kind}, metadata: {{name: {name}, {labels}, {owner}}}, spec: {{replicas: 1, {TEMPLATE}}}}}"
        )
    }

    #[test]
    fn what_another_document_makes_is_passed_over() {
        let deployment = set("Deployment", "web", "");
        let replicas = set("ReplicaSet", "web-5d4f", &owner("Deployment", "web"));
        let of_set = pod(&owner("ReplicaSet", "web-5d4f"));
        let list = |items: &[&str]| {
            format!(
                "{{apiVersion: v1, kind: List, items: [{}]}}",
                items.join(", ")
            )
        };
        for (text, pods, passed) in [
            (list(&[&of_set, &deployment, &replicas]), 1, 2),
            (format!("{deployment}\n---\n{of_set}\n"), 1, 1),
            (list(&[&replicas]), 1, 0),
            (of_set.clone(), 1, 0),
            (
                list(&[&deployment, &pod(&owner("Deployment", "web"))]),
                1,
                1,
            ),
            // The owner is absent, or in another namespace.
            (
                list(&[&deployment, &pod(&owner("ReplicaSet", "other-5d4f"))]),
                2,
                0,
            ),
            (
                list(&[
                    &deployment,
                    &pod(&format!(
                        "namespace: b, {}",
                        owner("ReplicaSet", "web-5d4f")
                    )),
                ]),
                2,
                0,
            ),
            (list(&[&deployment, &pod("")]), 2, 0),
        ] {
            let found = documents(text.as_bytes(), "a.yaml", &ConvertContext::of("node"));
            let found = found.unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
            assert_eq!(found.pods.len(), pods, "{text}");
            let said = |warning: &&String| warning.contains("makes it by itself");
            assert_eq!(
                found.warnings.iter().filter(said).count(),
                passed,
                "{:?}",
                found.warnings
            );
            let strict = ConvertContext {
                strict: true,
                ..ConvertContext::of("node")
            };
            assert_eq!(
                documents(text.as_bytes(), "a.yaml", &strict).is_err(),
                passed > 0,
                "{text}"
            );
        }
        // An owner does not make these.
        let of = owner("StatefulSet", "db");
        let map = format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: m, {of}}}}}");
        let claim = format!(
            "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: data-db-0, {of}}}, spec: {{accessModes: \
             [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}}}"
        );
        let own = set("Deployment", "web", &owner("Deployment", "web"));
        let custom = set("StatefulSet", "db", "").replace("apps/v1", "apps.kruise.io/v1beta1");
        let cron = "{apiVersion: batch/v1, kind: CronJob, metadata: {name: c}, spec: {schedule: '@daily', suspend: true, \
                    jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}}";
        let by_hand = format!(
            "{{apiVersion: batch/v1, kind: Job, metadata: {{name: j, annotations: {{cronjob.kubernetes.io/instantiate: manual}}, \
             {}}}, spec: {{template: {{spec: {{restartPolicy: Never, containers: [{{name: c, image: i}}]}}}}}}}}",
            owner("CronJob", "c")
        );
        for (text, pods, objects) in [
            (list(&[&set("StatefulSet", "db", ""), &map, &claim]), 1, 2),
            (own, 1, 0),
            (list(&[&custom, &pod(&of)]), 1, 0),
            (list(&[cron, &by_hand]), 1, 0),
        ] {
            let found = documents(text.as_bytes(), "a.yaml", &ConvertContext::of("node"));
            let found = found.unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
            let counted = (found.pods.len(), found.configuration.iter().count());
            assert_eq!(counted, (pods, objects), "{text}");
        }
        let set_and_pod = list(&[
            &pod(&owner("StatefulSet", "db")),
            &set("StatefulSet", "db", ""),
        ]);
        let found = documents(
            set_and_pod.as_bytes(),
            "a.yaml",
            &ConvertContext::of("node"),
        );
        let found = found.expect("valid");
        let warning = "items[0].metadata.ownerReferences: statefulset default/db makes it by itself; remove this document";
        let said = found.warnings.iter().find(|said| said.ends_with(warning));
        assert!(
            said.is_some_and(|said| said.starts_with("a.yaml:1:")),
            "{:?}",
            found.warnings
        );
    }
}
