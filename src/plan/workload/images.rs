//! The images that documents name beside those of their pods: a CronJob has none until it is due, others may have none
//! now, a rollout that fails goes back to the last good template, and one that was interrupted goes on to the new one.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::plan::NodeState;
use crate::spec::pod::ImageName;
use crate::types::Gather;

impl NodeState {
    /// The full names of these images.
    pub fn images_of_documents(&self) -> BTreeSet<String> {
        let asked = self.workloads.asked.iter();
        let asked = asked.flat_map(|asked| asked.workloads.values());
        let asked = asked.map(|workload| &workload.manifest);
        let histories = self.workloads.histories.all.values();
        let kept = histories.clone().flat_map(|history| {
            let mut good = history.revisions.iter();
            let good = good.find(|revision| history.good.as_ref() == Some(&revision.hash));
            let both = good.into_iter().chain(history.revisions.last());
            both.filter_map(|revision| revision.text.as_ref())
        });
        let to_come = histories.filter_map(|history| Some(&*history.instead.as_deref()?.text));
        let all = asked.chain(kept).map(|document| document.text());
        let all = all.chain(to_come.map(str::to_owned));
        all.flat_map(|document| images(&document)).gather()
    }
}

/// The images in a document's pod or template.
fn images(document: &str) -> Vec<String> {
    let document: Value = serde_json::from_str(document).unwrap_or_default();
    let paths = [
        "/spec",
        "/spec/template/spec",
        "/spec/jobTemplate/spec/template/spec",
    ];
    let pods = paths.iter().filter_map(|path| document.pointer(path));
    let each = |pod: &Value, field: &str| pod[field].as_array().cloned().unwrap_or_default();
    let names = pods.flat_map(|pod| {
        let containers = each(pod, "initContainers")
            .into_iter()
            .chain(each(pod, "containers"));
        let containers = containers.map(|container| container["image"].clone());
        let volumes = each(pod, "volumes").into_iter();
        let volumes = volumes.map(|volume| volume["image"]["reference"].clone());
        containers.chain(volumes).collect::<Vec<_>>()
    });
    let names = names.filter_map(|name| ImageName::parse(name.as_str()?).ok());
    names.map(|name| name.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_templates_without_pods_are_named() {
        let template = r#""template": {"spec": {"initContainers": [{"image": "a"}], "containers": [{"image": "b:1"}, {}],
            "volumes": [{"name": "c", "image": {"reference": "r.lan/c@sha256:0"}}, {"name": "d", "image": {"reference": "d"}}]}}"#;
        let expected = ["a:latest", "b:1", "d:latest"];
        let expected = expected.map(|name| format!("docker.io/library/{name}"));
        assert_eq!(images(&format!(r#"{{"spec": {{{template}}}}}"#)), expected);
        let cron = format!(r#"{{"spec": {{"jobTemplate": {{"spec": {{{template}}}}}}}}}"#);
        assert_eq!(images(&cron), expected);
        assert_eq!(
            images(r#"{"spec": {"containers": [{"image": "p"}]}}"#).len(),
            1
        );
        assert_eq!(images("{}"), Vec::<String>::new());
    }
}
