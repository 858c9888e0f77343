//! The identity of a pod: its UID depends on the fields that need a new pod, and on nothing else.

use super::*;

#[test]
fn the_uid_ignores_only_spelling_and_fields_that_may_change() {
    let uid = one(POD).uid;
    assert_eq!(uid.as_str().len(), 32);
    for (sentence, from, to) in [
        ("quoting", "name: c\n", "name: \"c\"\n"),
        ("a comment", "spec:", "# comment\nspec:"),
        ("a quantity spelt differently", "500m", "\"0.5\""),
        ("another unit", "1Gi", "1024Mi"),
        (
            "requests equal to limits",
            "{limits: {cpu: 500m, memory: 1Gi}}",
            "{limits: {cpu: 500m, memory: 1Gi}, requests: {memory: 1Gi}}",
        ),
        (
            "default namespace",
            "{name: a}",
            "{name: a, namespace: default}",
        ),
        ("labels", "{name: a}", "{name: a, labels: {x: y}}"),
        ("annotations", "{name: a}", "{name: a, annotations: {x: y}}"),
        (
            "a default spelt out",
            "spec:",
            "spec:\n  restartPolicy: Always",
        ),
        (
            "false where it is the default",
            "spec:",
            "spec:\n  hostNetwork: false",
        ),
        ("an empty list", "spec:", "spec:\n  volumes: []"),
        (
            "an empty object",
            "image: c:1",
            "image: c:1\n    securityContext: {}",
        ),
        (
            "the grace period",
            "spec:",
            "spec:\n  terminationGracePeriodSeconds: 5",
        ),
        (
            "a probe",
            "image: c:1",
            "image: c:1\n    livenessProbe: {exec: {command: [x]}}",
        ),
        ("status", "spec:", "status: {phase: Failed}\nspec:"),
        ("the image", "image: c:1", "image: c:2"),
        ("a limit", "500m", "501m"),
    ] {
        let changed = POD.replacen(from, to, 1);
        assert_ne!(changed, POD, "{sentence}");
        assert_eq!(one(&changed).uid, uid, "{sentence}");
    }
    for (sentence, from, to) in [
        ("the name", "{name: a}", "{name: b}"),
        ("the namespace", "{name: a}", "{name: a, namespace: b}"),
        ("a command", "image: c:1", "image: c:1\n    command: [x]"),
        ("an argument", "image: c:1", "image: c:1\n    args: ['']"),
        (
            "the restart policy",
            "spec:",
            "spec:\n  restartPolicy: Never",
        ),
        (
            "escalation forbidden",
            "image: c:1",
            "image: c:1\n    securityContext: {allowPrivilegeEscalation: false}",
        ),
        (
            "another class",
            "limits: {cpu: 500m, memory: 1Gi}",
            "requests: {cpu: 500m, memory: 1Gi}",
        ),
        (
            "a limit of what cannot be resized",
            "500m, memory: 1Gi",
            "500m, memory: 1Gi, ephemeral-storage: 1Gi",
        ),
        (
            "huge pages, which cannot be resized either",
            "500m, memory: 1Gi",
            "500m, memory: 1Gi, hugepages-2Mi: 4Mi",
        ),
        (
            "an init container",
            "  containers:",
            "  initContainers: [{name: i, image: i:1}]\n  containers:",
        ),
        (
            "a container's restart policy",
            "image: c:1",
            "image: c:1\n    restartPolicy: OnFailure",
        ),
    ] {
        let changed = POD.replacen(from, to, 1);
        assert_ne!(changed, POD, "{sentence}");
        assert_ne!(one(&changed).uid, uid, "{sentence}");
    }
}

#[test]
fn of_init_containers_the_uid_ignores_only_probes_and_images_of_sidecars() {
    let with = |init: &str| {
        let list = format!("  initContainers: [{init}]\n  containers:");
        one(&POD.replacen("  containers:", &list, 1)).uid
    };
    let plain = with("{name: i, image: i:1, restartPolicy: Always}");
    let probed =
        "{name: i, image: i:1, restartPolicy: Always, startupProbe: {exec: {command: [x]}}}";
    assert_eq!(with(probed), plain);
    assert_ne!(with("{name: i, image: i:1}"), plain);
    let image = with("{name: i, image: i:2, restartPolicy: Always}");
    assert_eq!(image, plain, "it changes in place");
}

#[test]
fn the_uid_does_not_depend_on_the_node() {
    let other = ConvertContext::of("other");
    let pods = convert::documents(POD.as_bytes(), "x", &other)
        .unwrap()
        .pods;
    assert_eq!(pods[0].uid, one(POD).uid);
}

#[test]
fn each_pod_made_from_a_template_has_a_uid_of_its_own() {
    let pod = one(POD);
    assert_eq!(pod.uid, pod.template);
    let mut seen = std::collections::BTreeSet::from([pod.uid.clone()]);
    let mut previous = pod.uid.clone();
    for _ in 0..100 {
        previous = coracle::spec::uid::next(&pod.template, &previous);
        assert!(coracle::spec::uid::is_derived(&previous));
        assert!(seen.insert(previous.clone()), "{previous} is not new");
    }
    let other = coracle::spec::uid::next(&"another".into(), &pod.uid);
    assert!(seen.insert(other));
    let again = pod.with_uid(&previous);
    assert_eq!(
        again.manifest.metadata().uid.as_deref(),
        Some(previous.as_str())
    );
    let json = again.manifest.json().into_bytes();
    assert_eq!(convert::admitted(&json).unwrap(), again);
}
