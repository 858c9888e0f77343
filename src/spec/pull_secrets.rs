//! Secrets with credentials for registries: those that a pod names, or without any those of its service account, as the
//! API server fills them in (Kubernetes docs: Pull an Image from a Private Registry).

use std::borrow::Cow;

use k8s_openapi::api::core::v1::PodSpec as Written;

use super::configuration::{Configuration, Object, ObjectKey, ObjectKind};
use super::pod::PodSpec;

/// What pull secrets have.
#[derive(Debug, Default)]
pub struct PullSecrets<'c> {
    /// Names and documents, in the format of docker's `config.json`.
    pub found: Vec<(String, Cow<'c, [u8]>)>,
    /// The names of those that are not there, or have no such document.
    pub missing: Vec<String>,
}

/// The key of the document, by the type of the Secret.
const DOCUMENT: &str = ".dockerconfigjson";

/// The same in the format of docker before 1.7, which is the part `auths` of today's.
const FORMER_DOCUMENT: &str = ".dockercfg";

/// The pull secrets of a pod.
pub fn of<'c>(pod: &PodSpec, configuration: &'c Configuration) -> PullSecrets<'c> {
    let namespace = &pod.key.namespace;
    let mut secrets = PullSecrets::default();
    let mut names = pod.pull_secrets.clone();
    if names.is_empty() {
        let account = configuration.get(ObjectKind::ServiceAccount, namespace, account(pod));
        if let Some(Object::ServiceAccount(account)) = account.map(|object| &**object) {
            let written = account.image_pull_secrets.iter().flatten();
            names = written.map(|secret| secret.name.clone()).collect();
        }
    }
    for name in names {
        let secret = configuration.get(ObjectKind::Secret, namespace, &name);
        match secret.and_then(|secret| document(secret)) {
            Some(document) => secrets.found.push((name, document)),
            None => secrets.missing.push(name),
        }
    }
    secrets
}

/// The documents whose changes may let a pull succeed that failed.
pub(crate) fn references(pod: &PodSpec) -> Vec<ObjectKey> {
    let namespace = &pod.key.namespace;
    let key = |kind, name: &str| ObjectKey::new(kind, namespace, name);
    let names = &pod.pull_secrets;
    match names.is_empty() {
        true => vec![key(ObjectKind::ServiceAccount, account(pod))],
        false => names
            .iter()
            .map(|name| key(ObjectKind::Secret, name))
            .collect(),
    }
}

/// The names in a pod's manifest.
pub(super) fn of_manifest(spec: &Written) -> Vec<String> {
    let written = spec.image_pull_secrets.iter().flatten();
    let names = written.map(|secret| secret.name.clone());
    names.filter(|name| !name.is_empty()).collect()
}

fn account(pod: &PodSpec) -> &str {
    pod.service_account.as_deref().unwrap_or("default")
}

fn document(secret: &Object) -> Option<Cow<'_, [u8]>> {
    if let Some(document) = secret.value(DOCUMENT) {
        return Some(Cow::Borrowed(document));
    }
    let former = secret.value(FORMER_DOCUMENT)?;
    Some(Cow::Owned([b"{\"auths\":", former, b"}"].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::convert::{ConvertContext, documents};

    const SECRETS: &str = "---
apiVersion: v1
kind: Secret
metadata: {name: one}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: '{\"auths\": {}}'}
---
apiVersion: v1
kind: Secret
metadata: {name: old}
type: kubernetes.io/dockercfg
stringData: {.dockercfg: '{\"r.example\": {}}'}
---
apiVersion: v1
kind: Secret
metadata: {name: other}
stringData: {password: x}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default}
imagePullSecrets: [{name: one}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot}
imagePullSecrets: [{name: old}, {name: none}]
";

    #[test]
    fn secrets_of_the_pod_come_before_those_of_its_account() {
        let one = ("one", "{\"auths\": {}}");
        let old = ("old", "{\"auths\":{\"r.example\": {}}}");
        for (spec, found, missing) in [
            ("", vec![one], vec![]),
            ("imagePullSecrets: [{name: old}], ", vec![old], vec![]),
            (
                "imagePullSecrets: [{name: other}, {name: one}, {name: ''}], serviceAccountName: robot, ",
                vec![one],
                vec!["other"],
            ),
            ("serviceAccountName: robot, ", vec![old], vec!["none"]),
            ("serviceAccountName: nobody, ", vec![], vec![]),
        ] {
            let pod = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{{spec}containers: [{{name: c, image: i}}]}}\n"
            );
            let text = pod + SECRETS;
            let read = documents(text.as_bytes(), "f", &ConvertContext::of("n")).expect("valid");
            let secrets = of(&read.pods[0], &read.configuration);
            let shown: Vec<(&str, &str)> = secrets
                .found
                .iter()
                .map(|(name, text)| (name.as_str(), std::str::from_utf8(text).expect("text")))
                .collect();
            assert_eq!(
                (shown, secrets.missing),
                (found, missing.iter().map(ToString::to_string).collect()),
                "{spec}"
            );
        }
    }
}
