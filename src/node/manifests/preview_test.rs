//! Previews of unsaved files beside the saved ones.

use std::path::PathBuf;

use super::*;

fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers: [{{name: c, image: {image}}}]\n---\n"
    )
}

fn file(save_as: &str, text: &str) -> PlannedFile {
    PlannedFile {
        name: format!("here/{save_as}"),
        save_as: (save_as != "-").then(|| save_as.to_owned()),
        text: text.to_owned(),
        strict: false,
    }
}

/// `a.yaml` has the pod `a`, `b.yaml` the pods `b` and `c`.
fn saved() -> InEffect {
    let empty = InEffect {
        path: PathBuf::from("/m"),
        node_name: "n".into(),
        ..InEffect::default()
    };
    let (then, checked) = empty.with(
        None,
        &[
            file("a.yaml", &pod("a", "i:1")),
            file("b.yaml", &(pod("b", "i:1") + &pod("c", "i:1"))),
        ],
        &Opened::new(),
    );
    assert!(
        checked.iter().all(|one| one.errors.is_empty()),
        "{checked:?}"
    );
    then
}

fn pods(files: &InEffect) -> Vec<String> {
    let all = files.files.iter().flat_map(|(path, loaded)| {
        let file = path.display().to_string();
        loaded
            .pods
            .iter()
            .map(move |pod| format!("{file} {}={}", pod.key.name, pod.containers[0].image))
    });
    all.collect()
}

#[test]
fn a_strict_plan_refuses_a_file_with_documents_that_are_passed_over() {
    let other = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: i}\n";
    let text = pod("a", "i:2") + other;
    for strict in [false, true] {
        let file = PlannedFile {
            strict,
            ..file("a.yaml", &text)
        };
        let (_, checked) = saved().with(None, &[file], &Opened::new());
        let [one] = &checked[..] else {
            panic!("one file: {checked:?}");
        };
        let (said, silent) = match strict {
            true => (&one.errors, &one.warnings),
            false => (&one.warnings, &one.errors),
        };
        assert!(said.concat().contains("Ingress"), "{strict}: {checked:?}");
        assert!(silent.is_empty(), "{strict}: {checked:?}");
    }
}

#[test]
fn each_file_takes_the_place_it_would_have() {
    for (save_as, text, expected) in [
        (
            "a.yaml",
            pod("a", "i:2"),
            ["/m/a.yaml a=i:2", "/m/b.yaml b=i:1", "/m/b.yaml c=i:1"].as_slice(),
        ),
        (
            "b.yaml",
            pod("c", "i:2"),
            &["/m/a.yaml a=i:1", "/m/b.yaml c=i:2"],
        ),
        (
            "-",
            pod("c", "i:2"),
            &["/m/a.yaml a=i:1", "/m/b.yaml c=i:2"],
        ),
        (
            "-",
            pod("d", "i:2"),
            &[
                "/m/a.yaml a=i:1",
                "/m/b.yaml b=i:1",
                "/m/b.yaml c=i:1",
                "/m/stdin.yaml d=i:2",
            ],
        ),
    ] {
        let (then, checked) = saved().with(None, &[file(save_as, &text)], &Opened::new());
        assert!(checked[0].errors.is_empty(), "{:?}", checked[0].errors);
        assert_eq!(pods(&then), expected);
    }
}

#[test]
fn what_would_be_refused_is_said_and_changes_nothing() {
    for (save_as, text, error) in [
        (
            "c.yaml",
            pod("a", "i:2"),
            "c.yaml: pod `default/a` is already defined by `a.yaml`",
        ),
        (
            ".c.yaml",
            pod("d", "i:2"),
            "here/.c.yaml: the agent ignores files of such names",
        ),
    ] {
        let (_, checked) = saved().with(None, &[file(save_as, &text)], &Opened::new());
        assert_eq!(checked[0].errors, [error]);
    }
    let (then, checked) = saved().with(None, &[file("a.yaml", "kind: [")], &Opened::new());
    assert!(
        checked[0].errors[0].starts_with("here/a.yaml:"),
        "{checked:?}"
    );
    assert_eq!(pods(&then), pods(&saved()));
}

#[test]
fn files_that_are_given_together_are_checked_together() {
    let class = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 7\n---\n";
    let named = pod("d", "i:1").replace("spec:\n", "spec:\n  priorityClassName: high\n");
    // `c` moves to another file, and a file needs what a later one brings.
    let files = [
        file("b.yaml", &pod("b", "i:1")),
        file("d.yaml", &(pod("c", "i:1") + &named)),
        file("e.yaml", class),
    ];
    let (then, checked) = saved().with(None, &files, &Opened::new());
    assert!(
        checked.iter().all(|one| one.errors.is_empty()),
        "{checked:?}"
    );
    assert_eq!(
        pods(&then),
        [
            "/m/a.yaml a=i:1",
            "/m/b.yaml b=i:1",
            "/m/d.yaml c=i:1",
            "/m/d.yaml d=i:1"
        ]
    );
    let twice = [
        file("d.yaml", &pod("d", "i:1")),
        file("d.yaml", &pod("e", "i:1")),
    ];
    let (_, checked) = saved().with(None, &twice, &Opened::new());
    assert!(
        checked[1].errors[0].contains("another file given here"),
        "{checked:?}"
    );
}
