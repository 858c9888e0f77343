//! Manifests as other tools print them: `helm template`, `kubectl get -o yaml`, kustomize, editors on other systems.

use std::fs;
use std::path::{Path, PathBuf};

use super::{coracle, text};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/foreign")
        .join(name)
}

/// Exit code and output of `coracle validate`.
fn validated(path: &Path, flags: &[&str]) -> (Option<i32>, String) {
    let path = path.to_str().unwrap();
    let words: Vec<&str> = ["validate", path]
        .into_iter()
        .chain(flags.iter().copied())
        .collect();
    let out = coracle(&words);
    (out.status.code(), text(&out.stdout) + &text(&out.stderr))
}

fn folder(name: &str) -> PathBuf {
    let folder =
        std::env::temp_dir().join(format!("coracle-foreign-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn files_of_one_directory_may_not_define_the_same() {
    let folder = folder("twice");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {nodeName: other, containers: [{name: c, image: i}]}\n";
    let service = |name: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{type: NodePort, selector: {{a: b}}, ports: [{{port: 80, nodePort: 30080}}]}}\n"
        )
    };
    fs::write(folder.join("a.yaml"), pod.to_owned() + &service("a")).unwrap();
    fs::write(folder.join("b.yaml"), pod.to_owned() + &service("b")).unwrap();
    fs::write(folder.join("c.yaml"), "# nothing yet\n").unwrap();
    let (code, said) = validated(&folder, &[]);
    assert_eq!(code, Some(1), "{said}");
    for wanted in [
        "b.yaml: pod `default/web` is already defined by `a.yaml`",
        "b.yaml: node port 30080 of service `default/b` (also of service `default/a`) is already defined by `a.yaml`",
        "a.yaml: pod default/web: spec.nodeName: accepted, but the node that reads it runs it itself, whatever its name",
        "c.yaml: ok: no documents",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    // Files that are named need not be meant for one node.
    let (a, b) = (folder.join("a.yaml"), folder.join("b.yaml"));
    let (code, said) = validated(&a, &[b.to_str().unwrap()]);
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_priority_class_may_be_in_another_file_of_the_directory() {
    let folder = folder("classes");
    let write = |file: &str, text: String| fs::write(folder.join(file), text).unwrap();
    let pod = |name: &str, class: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{priorityClassName: {class}, containers: [{{name: c, image: i}}]}}\n"
        )
    };
    write("a.yaml", pod("known", "high"));
    write("b.yaml", pod("unknown", "low"));
    write(
        "c.yaml",
        "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 1000\n".to_owned(),
    );
    let (code, said) = validated(&folder, &[]);
    let (_, alone) = validated(&folder.join("a.yaml"), &[]);
    // As the agent has it.
    let own = pod("known", "high").replace("high,", "high, priority: 7,");
    write("a.yaml", own);
    let (_, other) = validated(&folder, &[]);
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("no PriorityClass `high`"), "{said}");
    assert!(said.contains("no PriorityClass `low`"), "{said}");
    assert!(alone.contains("no PriorityClass `high`"), "{alone}");
    assert!(other.contains("must be 1000"), "{other}");
}

#[test]
fn what_helm_and_kubectl_print_is_accepted() {
    for (name, parts) in [
        (
            "helm-template.yaml",
            &[
                "deployment default/release-shop",
                "service default/release-shop",
                "release-shop-test-connection",
                "Ingress is not supported",
            ][..],
        ),
        (
            "kubectl-get.yaml",
            &[
                "ok: default/web",
                "deployment default/api",
                "persistentvolumeclaim default/data",
                "volumes[0]: accepted, but there is no API server to log in to",
            ],
        ),
    ] {
        let (code, said) = validated(&fixture(name), &[]);
        assert_eq!(code, Some(0), "{name}: {said}");
        for part in parts {
            assert!(said.contains(part), "{name}: {part} is not in {said}");
        }
    }
}

#[test]
fn line_ends_and_marks_of_other_systems_do_not_matter() {
    let folder = folder("crlf");
    for name in ["helm-template.yaml", "kubectl-get.yaml", "mixed.yaml"] {
        let unix = fs::read_to_string(fixture(name)).unwrap();
        let path = folder.join(name);
        fs::write(&path, format!("\u{feff}{}", unix.replace('\n', "\r\n"))).unwrap();
        let (code, said) = validated(&path, &[]);
        assert_eq!(code, Some(0), "{name}: {said}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn kinds_that_pods_run_without_are_passed_over_or_with_strict_refused() {
    let kinds = [
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "ClusterRole",
        "RoleBinding",
        "Ingress",
        "NetworkPolicy",
        "CustomResourceDefinition",
        "ServiceMonitor",
    ];
    let (code, said) = validated(&fixture("mixed.yaml"), &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("ok: default/web"), "{said}");
    let (strict, refused) = validated(&fixture("mixed.yaml"), &["--strict"]);
    assert_eq!(strict, Some(1), "{refused}");
    for kind in kinds {
        let named = format!("{kind} is not supported");
        let warned = said
            .lines()
            .find(|line| line.starts_with("warning: ") && line.contains(&named));
        assert!(warned.is_some(), "{kind}: {said}");
        assert!(refused.contains(&named), "{kind}: {refused}");
    }
}

#[test]
fn a_directory_of_kustomize_is_refused_with_the_command_to_type() {
    let folder = folder("kustomize");
    fs::copy(fixture("mixed.yaml"), folder.join("web.yaml")).unwrap();
    fs::write(folder.join("web.env"), "A=1\n").unwrap();
    assert_eq!(
        validated(&folder, &[]).0,
        Some(0),
        "files of variables are no manifests"
    );
    fs::write(folder.join("kustomization.yaml"), "resources: [web.yaml]\n").unwrap();
    for command in ["validate", "plan"] {
        let out = coracle(&[command, folder.to_str().unwrap()]);
        let error = text(&out.stderr);
        assert!(!out.status.success());
        let typed = format!("kubectl kustomize {} > FILE", folder.display());
        assert!(error.contains(&typed), "{command}: {error}");
    }
    let (code, said) = validated(&folder.join("kustomization.yaml"), &[]);
    assert_eq!(code, Some(1));
    assert!(said.contains("kubectl kustomize"), "{said}");
    fs::remove_dir_all(folder).unwrap();
}
