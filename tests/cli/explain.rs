//! `coracle explain`: kubectl's layout, without an agent.

use super::{coracle, text};

fn page(words: &[&str]) -> String {
    let all: Vec<&str> = ["explain"].iter().chain(words).copied().collect();
    let out = coracle(&all);
    assert!(out.status.success(), "{words:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

#[test]
fn a_field_is_shown_as_kubectl_shows_it() {
    let expected = "\
GROUP:      apps
KIND:       Deployment
VERSION:    v1

FIELD: strategy <DeploymentStrategy>


DESCRIPTION:
    How pods of an earlier template are replaced.

FIELDS:
  rollingUpdate\t<RollingUpdateDeployment>
    How far a rolling update goes at once.

  type\t<string>
  enum: Recreate, RollingUpdate
    Recreate stops all before the first new one starts. Default: RollingUpdate


";
    assert_eq!(page(&["deployment.spec.strategy"]), expected);
    let expected = "\
KIND:       Pod
VERSION:    v1

FIELD: restartPolicy <string>
ENUM:
    Always
    Never
    OnFailure

DESCRIPTION:
    When containers that have ended run again. Default: Always

";
    assert_eq!(page(&["pod.spec.restartPolicy"]), expected);
}

#[test]
fn all_fields_below_are_shown_without_texts() {
    let all = page(&["pods", "--recursive"]);
    for line in [
        "  spec\t<PodSpec> -required-\n",
        "    containers\t<[]Container> -required-\n",
        "      livenessProbe\t<Probe>\n        exec\t<ExecAction>\n          command\t<[]string>\n",
        "      volumeDevices\t<[]VolumeDevice> -refused-\n",
    ] {
        assert!(all.contains(line), "{line} in {all}");
    }
}

#[test]
fn what_is_refused_says_what_to_use_instead() {
    let refused = page(&["pod.spec.volumes.nfs"]);
    assert!(
        refused.contains("FIELD: nfs <NFSVolumeSource> -refused-"),
        "{refused}"
    );
    assert!(refused.contains("`hostPath` volume"), "{refused}");
    let out = coracle(&["explain", "hpa"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        text(&out.stderr).contains("write the number of pods"),
        "{}",
        text(&out.stderr)
    );
    let out = coracle(&["explain", "pod.spec.containres.image"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(
        text(&out.stderr).contains("did you mean `pod.spec.containers.image`?"),
        "{}",
        text(&out.stderr)
    );
}

#[test]
fn json_has_the_fields_for_programs() {
    let shown = page(&["config.coracle.bundle", "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["kind"], "KubeletConfiguration");
    let names: Vec<&str> = shown["fields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["interval", "key", "readyWithin", "source"]);
    let shown = page(&["pod.spec.nodeName", "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (&shown["support"], &shown["type"]),
        (&"ignored".into(), &"string".into())
    );
}
