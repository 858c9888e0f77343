//! The container of a pod that a command means.

use serde_json::Value;

use super::client::Client;
use super::error::Result;
use super::pod_path;

/// kubectl's annotation with the name of the container that commands mean by default.
const DEFAULT: &str = "kubectl.kubernetes.io/default-container";

/// The given container, or else the default one of the pod.
pub(super) fn of(
    client: &Client,
    namespace: &str,
    pod: &str,
    given: Option<&str>,
) -> Result<String> {
    match given {
        Some(given) => Ok(given.to_owned()),
        None => Ok(announced(&client.get(&pod_path(namespace, pod))?, pod)),
    }
}

/// The default container. A choice among several that no annotation has made is announced on stderr.
pub(super) fn announced(pod: &Value, name: &str) -> String {
    let (container, all) = (default(pod), names(pod));
    if annotated(pod).is_none() && all.len() > 1 {
        let all = all.join(", ");
        eprintln!("Defaulted container \"{container}\" of pod {name} out of: {all}");
    }
    container
}

/// The container of the annotation, or else the first regular one.
pub(super) fn default(pod: &Value) -> String {
    let first = pod["spec"]["containers"][0]["name"].as_str();
    annotated(pod).or(first).unwrap_or_default().to_owned()
}

/// The container of the annotation, if the pod has it.
fn annotated(pod: &Value) -> Option<&str> {
    let named = pod["metadata"]["annotations"][DEFAULT].as_str()?;
    names(pod).iter().any(|one| one == named).then_some(named)
}

/// All containers: init containers, regular and ephemeral ones.
pub(super) fn names(pod: &Value) -> Vec<String> {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let lists = lists.map(|list| pod["spec"][list].as_array());
    let all = lists.into_iter().flatten().flatten();
    all.filter_map(|c| c["name"].as_str().map(str::to_owned))
        .collect()
}
