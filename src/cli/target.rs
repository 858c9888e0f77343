//! Kinds and names on the command line, as kubectl takes them: `pods`, `po,svc`, `pod web db`, `pod/web svc/front`.

use clap::ValueEnum;
use serde_json::Value;

use super::args::Resource;
use super::client::Client;
use super::error::{CliError, Result};
use super::pod_path;
use crate::api::encode;
use crate::spec::{WorkloadKind, suggest};
use crate::types::InOrder;

/// The message for an empty name, with which the path of a request would be that of the list.
const NO_NAME: &str = "resource name may not be empty";

/// Kinds with the given names; no names: all objects.
pub(super) type Targets<K> = Vec<(K, Vec<String>)>;

/// Parses the words of a command line. Adjacent words of one kind are merged.
pub(super) fn targets<K: ValueEnum + PartialEq>(words: &[String]) -> Result<Targets<K>> {
    let Some((first, names)) = words.split_first() else {
        return Err(CliError::usage("say what: a kind, or KIND/NAME")
            .hint(format!("kinds are {}", kinds::<K>().join(", "))));
    };
    if first.contains('/') {
        return pairs(words);
    }
    let kinds: Result<Vec<K>> = first.split(',').map(kind).collect();
    let mut found: Targets<K> = Vec::new();
    for kind in kinds? {
        if !found.iter().any(|(known, _)| *known == kind) {
            let same = |name: &String| match name.split_once('/') {
                // Names of images and files contain slashes.
                Some((prefix, name)) if known::<K>(prefix).as_ref() == Some(&kind) => {
                    name.to_owned()
                }
                Some(_) | None => name.clone(),
            };
            let names: Vec<String> = names.iter().map(same).collect();
            if names.iter().any(String::is_empty) {
                return Err(CliError::usage(NO_NAME));
            }
            found.push((kind, names));
        }
    }
    Ok(found)
}

/// Parses `pod/web svc/front`.
fn pairs<K: ValueEnum + PartialEq>(words: &[String]) -> Result<Targets<K>> {
    let mut found: Targets<K> = Vec::new();
    for word in words {
        let pair = word.split_once('/').filter(|(_, name)| !name.is_empty());
        let Some((prefix, name)) = pair else {
            return Err(CliError::usage(format!("`{word}` is no KIND/NAME"))
                .hint("write all as KIND/NAME, or the kind once before the names"));
        };
        let kind = kind(prefix)?;
        match found.last_mut() {
            Some((last, names)) if *last == kind => names.push(name.to_owned()),
            Some(_) | None => found.push((kind, vec![name.to_owned()])),
        }
    }
    Ok(found)
}

fn kind<K: ValueEnum>(word: &str) -> Result<K> {
    known(word).ok_or_else(|| {
        let known = kinds::<K>();
        let short = known.join(", ");
        let names: Vec<&str> = known.iter().map(String::as_str).collect();
        let hint = match suggest::nearest(word, &names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("one of {short}"),
        };
        CliError::usage(format!("there is nothing of kind `{word}` here")).hint(hint)
    })
}

/// The kind of this name, which may have its API group, as in `deployment.apps`.
fn known<K: ValueEnum>(word: &str) -> Option<K> {
    let plain = match word.split_once('.') {
        Some((plain, "apps" | "v1.apps" | "batch" | "v1.batch" | "v1" | "v1.")) => plain,
        _ => word,
    };
    K::from_str(plain, true).ok()
}

fn kinds<K: ValueEnum>() -> Vec<String> {
    let values = K::value_variants().iter().filter_map(K::to_possible_value);
    values.map(|value| value.get_name().to_owned()).collect()
}

/// Parses any name; for clap.
pub(super) fn some_name(text: &str) -> std::result::Result<String, String> {
    match text {
        "" => Err(NO_NAME.to_owned()),
        text => Ok(text.to_owned()),
    }
}

/// Parses a pod's name, maybe written as `pod/NAME`; for clap.
pub(super) fn pod_name(text: &str) -> std::result::Result<String, String> {
    named(text, &["pod", "pods", "po"], "a pod")
}

/// Parses a pod's name, or the kind and name of a document that stands for pods; for clap. See [`pod_of`].
pub(super) fn pod_or_owner(text: &str) -> std::result::Result<String, String> {
    match owner(text) {
        Some(_) => Ok(text.to_owned()),
        None => named(text, &["pod", "pods", "po"], "a pod").map_err(|error| match text {
            "" => error,
            _ => "NAME or pod/NAME, deployment/NAME or the like".to_owned(),
        }),
    }
}

/// Parses a pod's name, or the kind and name of what has pods: a [`Source`]; for clap. See [`pod_of`].
pub(super) fn pod_or_source(text: &str) -> std::result::Result<String, String> {
    match Source::of(text) {
        Some(_) => Ok(text.to_owned()),
        None => named(text, &["pod", "pods", "po"], "a pod").map_err(|error| match text {
            "" => error,
            _ => "NAME or pod/NAME, deployment/NAME or the like, service/NAME".to_owned(),
        }),
    }
}

/// The kind and name of a document that stands for pods.
pub(super) fn owner(text: &str) -> Option<(WorkloadKind, &str)> {
    match Source::of(text)? {
        Source::Workload(kind, name) => Some((kind, name)),
        Source::Service(_) => None,
    }
}

/// What has pods: a document that they are made from, or a service that selects them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source<'a> {
    Workload(WorkloadKind, &'a str),
    Service(&'a str),
}

impl<'a> Source<'a> {
    /// Of `deployment/NAME`, `svc/NAME` and the like.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        let (kind, name) = text.split_once('/').filter(|(_, name)| !name.is_empty())?;
        match known::<Resource>(kind)? {
            Resource::Services => Some(Self::Service(name)),
            other => Some(Self::Workload(other.workload()?, name)),
        }
    }

    /// The path of its object.
    pub(super) fn path(self, namespace: &str) -> String {
        match self {
            Self::Workload(kind, name) => workload_path(kind, namespace, name),
            Self::Service(name) => {
                let (namespace, name) = (encode(namespace), encode(name));
                format!("/api/v1/namespaces/{namespace}/services/{name}")
            }
        }
    }

    /// Its pods.
    pub(super) fn pods(self, client: &Client, namespace: &str) -> Result<Vec<Value>> {
        let object = client.get(&self.path(namespace))?;
        match self {
            Self::Workload(kind, _) => {
                let pods = client.get(&pod_path(namespace, ""))?;
                // Those of a CronJob belong to its Jobs.
                let owner = match kind {
                    WorkloadKind::CronJob => newest_job(client, namespace, &object)?,
                    _ => Some(object),
                };
                let owner = owner.unwrap_or_default();
                Ok(pods_of(&owner, &pods).cloned().collect())
            }
            Self::Service(_) => pods_behind(client, namespace, &object),
        }
    }
}

/// The newest Job that a CronJob has made and not removed.
fn newest_job(client: &Client, namespace: &str, cron: &Value) -> Result<Option<Value>> {
    let namespace = encode(namespace);
    let jobs = client.get(&format!("/apis/batch/v1/namespaces/{namespace}/jobs"))?;
    let own = pods_of(cron, &jobs);
    let newest = own.max_by_key(|job| {
        let metadata = &job["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        (text("creationTimestamp"), text("name"))
    });
    Ok(newest.cloned())
}

/// The pods that a service selects.
pub(super) fn pods_behind(client: &Client, namespace: &str, service: &Value) -> Result<Vec<Value>> {
    let path = format!(
        "{}?labelSelector={}",
        pod_path(namespace, ""),
        encode(&selector_of(service)?)
    );
    let mut pods = client.get(&path)?;
    match pods["items"].take() {
        Value::Array(pods) => Ok(pods),
        _ => Ok(Vec::new()),
    }
}

/// A service's selector, as requests have it.
fn selector_of(service: &Value) -> Result<String> {
    let selector = service["spec"]["selector"].as_object();
    let Some(selector) = selector.filter(|selector| !selector.is_empty()) else {
        let name = service["metadata"]["name"].as_str().unwrap_or_default();
        let error = CliError::new(format!(
            "service {name} has no selector: it leads to no pod"
        ));
        return Err(error.hint("name the pod"));
    };
    let pair =
        |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
    Ok(selector.iter().map(pair).collect::<Vec<_>>().join(","))
}

/// The pod that is meant: of a Deployment, a service or the like the first that is ready, or else the first.
pub(super) fn pod_of(client: &Client, namespace: &str, text: &str) -> Result<String> {
    let Some(source) = Source::of(text) else {
        return Ok(text.to_owned());
    };
    let pods = source.pods(client, namespace)?;
    let Some((first, count)) = first_ready(pods.iter()) else {
        return Err(no_pods(text));
    };
    if count > 1 {
        eprintln!("Found {count} pods, using pod/{first}");
    }
    Ok(first)
}

/// The error of a KIND/NAME without pods.
pub(super) fn no_pods(text: &str) -> CliError {
    CliError::new(format!("{text} has no pods"))
        .hint(format!("`coracle describe {text}` shows why"))
}

/// The name of the first of these pods, ready ones before others, and their number. Pods that are going away do not
/// count.
pub(super) fn first_ready<'p>(pods: impl Iterator<Item = &'p Value>) -> Option<(String, usize)> {
    let name = |pod: &Value| {
        pod["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let is_ready = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    let mut pods: Vec<&Value> = pods
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        .collect();
    pods.order_by_key(|pod| (!is_ready(pod), name(pod)));
    Some((name(pods.first()?), pods.len()))
}

/// The path of a document that stands for pods.
pub(super) fn workload_path(kind: WorkloadKind, namespace: &str, name: &str) -> String {
    let plural = format!("{}s", kind.as_str().to_lowercase());
    let root = match kind.version() {
        "v1" => "api/v1".to_owned(),
        version => format!("apis/{version}"),
    };
    let (namespace, name) = (encode(namespace), encode(name));
    format!("/{root}/namespaces/{namespace}/{plural}/{name}")
}

/// The pods, or Jobs, of a list that were made from this document.
pub(super) fn pods_of<'p>(owner: &'p Value, list: &'p Value) -> impl Iterator<Item = &'p Value> {
    let uid = &owner["metadata"]["uid"];
    let items = list["items"].as_array().into_iter().flatten();
    items.filter(move |pod| {
        let owners = pod["metadata"]["ownerReferences"].as_array();
        owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == *uid))
    })
}

/// Parses a node's name, maybe written as `node/NAME`; for clap.
pub(super) fn node_name(text: &str) -> std::result::Result<String, String> {
    named(text, &["node", "nodes", "no"], "the node")
}

fn named(text: &str, kinds: &[&str], what: &str) -> std::result::Result<String, String> {
    match text.split_once('/') {
        None => some_name(text),
        Some((kind, name))
            if kinds.contains(&kind.to_ascii_lowercase().as_str()) && !name.is_empty() =>
        {
            Ok(name.to_owned())
        }
        Some(_) => Err(format!("this is about {what}: NAME or {}/NAME", kinds[0])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_names_are_read_as_kubectl_reads_them() {
        use Resource::{Files, Images, Nodes, Pods, Services};
        for (line, expected) in [
            ("pods", vec![(Pods, vec![])]),
            ("po,svc", vec![(Pods, vec![]), (Services, vec![])]),
            ("pod,pods,po", vec![(Pods, vec![])]),
            (
                "deployment.apps/a",
                vec![(Resource::Deployments, vec!["a"])],
            ),
            ("jobs.batch", vec![(Resource::Jobs, vec![])]),
            ("pod a b", vec![(Pods, vec!["a", "b"])]),
            ("pod pod/a", vec![(Pods, vec!["a"])]),
            ("po,svc a", vec![(Pods, vec!["a"]), (Services, vec!["a"])]),
            ("pod/a", vec![(Pods, vec!["a"])]),
            (
                "pod/a pods/b svc/c Node/d",
                vec![
                    (Pods, vec!["a", "b"]),
                    (Services, vec!["c"]),
                    (Nodes, vec!["d"]),
                ],
            ),
            (
                "images docker.io/library/busybox",
                vec![(Images, vec!["docker.io/library/busybox"])],
            ),
            (
                "files /etc/coracle/manifests/a.yaml",
                vec![(Files, vec!["/etc/coracle/manifests/a.yaml"])],
            ),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let found = targets::<Resource>(&words).expect(line);
            let expected: Targets<Resource> = expected
                .into_iter()
                .map(|(kind, names)| (kind, names.into_iter().map(str::to_owned).collect()))
                .collect();
            assert_eq!(found, expected, "{line}");
        }
        for (line, words) in [
            ("pod/a b", "`b` is no KIND/NAME"),
            ("pod/", "`pod/` is no KIND/NAME"),
            ("pod ", "resource name may not be empty"),
            ("pod a ", "resource name may not be empty"),
            ("pod pod/", "resource name may not be empty"),
            ("ingresses", "there is nothing of kind `ingresses` here"),
            ("podz", "did you mean `pods`?"),
            ("pods,ingresses", "`ingresses`"),
        ] {
            let words_of: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let error = targets::<Resource>(&words_of).expect_err(line);
            assert!(error.to_string().contains(words), "{line}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn what_has_pods_is_a_document_or_a_service() {
        use WorkloadKind::Deployment;
        for (text, expected) in [
            ("deploy/web", Some(Source::Workload(Deployment, "web"))),
            ("svc/web", Some(Source::Service("web"))),
            ("Service/web", Some(Source::Service("web"))),
            ("svc/", None),
            ("configmap/web", None),
            ("web", None),
        ] {
            assert_eq!(Source::of(text), expected, "{text}");
        }
        for (text, wanted) in [
            ("svc/web", Ok("svc/web")),
            ("pod/web", Ok("web")),
            ("web", Ok("web")),
            ("", Err("may not be empty")),
            ("configmap/web", Err("service/NAME")),
        ] {
            match (pod_or_source(text), wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{text}"),
                (Err(error), Err(wanted)) => assert!(error.contains(wanted), "{text}: {error}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
        // Commands that act on all pods of a document do not take services.
        assert!(owner("svc/web").is_none());
        let error = pod_or_owner("svc/web").unwrap_err();
        assert!(error.contains("deployment/NAME"), "{error}");
    }

    #[test]
    fn a_service_without_a_selector_leads_to_no_pod() {
        use serde_json::json;
        let named = |spec: Value| json!({ "metadata": { "name": "web" }, "spec": spec });
        let both = named(json!({ "selector": { "app": "web", "tier": "front" } }));
        assert_eq!(selector_of(&both).as_deref(), Ok("app=web,tier=front"));
        for spec in [json!({}), json!({ "selector": {} })] {
            let error = selector_of(&named(spec)).unwrap_err().to_string();
            assert!(error.contains("service web has no selector"), "{error}");
        }
    }

    #[test]
    fn a_pods_name_may_have_its_kind_before_it() {
        for (text, expected) in [
            ("web", Ok("web")),
            ("pod/web", Ok("web")),
            ("po/web", Ok("web")),
            ("svc/web", Err(())),
            ("pod/", Err(())),
            ("", Err(())),
        ] {
            assert_eq!(
                pod_name(text).as_deref().map_err(|_| ()),
                expected,
                "{text}"
            );
        }
    }
}
