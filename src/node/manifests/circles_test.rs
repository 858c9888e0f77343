//! Circles of pods over files, with real files.

use std::collections::BTreeMap;
use std::fs;

use super::super::Inherited;
use super::*;
use crate::api::FileState;

struct Folder(PathBuf, Manifests);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("coracle-circles-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let manifests = Manifests::new(path.clone(), "n".into(), BTreeMap::new());
        Self(path, manifests)
    }

    /// Writes `<pod>.yaml`, whose pod starts after this.
    fn write(&self, pod: &str, after: &str) {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, annotations: {{coracle.dev/after: '{after}'}}}}\n\
             spec:\n  containers: [{{name: c, image: a}}]\n"
        );
        let text = match after {
            "" => text.replace(", annotations: {coracle.dev/after: ''}", ""),
            _ => text,
        };
        fs::write(self.0.join(format!("{pod}.yaml")), text).unwrap();
    }

    fn scan(&mut self) {
        self.1.scan(0, &BTreeSet::new(), true, &BTreeSet::new());
    }

    /// The pods in force, with what they start after.
    fn in_force(&self) -> Vec<String> {
        let mut pods: Vec<String> = (self.1.desired().pods.values())
            .map(|pod| {
                let after = pod.after.iter().map(|item| item.need.to_string());
                format!("{} {}", pod.key.name, after.collect::<Vec<_>>().join(","))
            })
            .collect();
        pods.sort();
        pods
    }

    /// The errors of the refused files.
    fn refused(&self) -> Vec<String> {
        let rows = self.1.status().into_iter();
        let rows = rows.filter(|row| row.state == FileState::Rejected);
        rows.flat_map(|row| row.errors).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const END: &str =
    "; remove one of them from the annotation `coracle.dev/after` of the one before it";
const BEGIN: &str = "pods wait for each other in a circle, so none of them could start: ";

#[test]
fn all_files_of_a_circle_are_refused_and_name_it_until_one_of_them_changes() {
    let mut folder = Folder::new("all");
    folder.write("a", "b:ready");
    folder.write("b", "c");
    folder.write("c", "a, d");
    folder.write("d", "");
    folder.write("e", "a");
    folder.scan();
    assert_eq!(folder.in_force(), ["d ", "e default/a"]);
    let pods = ["`default/a`", "`default/b`", "`default/c`"];
    let files = ["a.yaml", "b.yaml", "c.yaml"];
    for (own, error) in folder.refused().iter().enumerate() {
        let file = files[own];
        assert!(error.starts_with(&format!("{file}: {BEGIN}")), "{error}");
        assert!(error.ends_with(END), "{error}");
        for (other, pod) in pods.iter().enumerate() {
            let file = if own == other {
                String::new()
            } else {
                format!(" (`{}`)", files[other])
            };
            assert!(error.contains(&format!("{pod}{file}")), "{error}");
        }
    }
    assert_eq!(folder.refused().len(), 3);
    folder.write("b", "d");
    folder.scan();
    assert_eq!(folder.refused(), [""; 0]);
    let all = [
        "a default/b:ready",
        "b default/d",
        "c default/a,default/d",
        "d ",
        "e default/a",
    ];
    assert_eq!(folder.in_force(), all);
}

#[test]
fn an_edit_that_closes_a_circle_is_refused_and_what_is_in_force_stays() {
    let mut folder = Folder::new("edit");
    folder.write("a", "");
    folder.write("b", "a");
    folder.scan();
    let before = folder.in_force();
    folder.write("a", "b");
    folder.scan();
    let error = format!(
        "a.yaml: {BEGIN}`default/b` (`b.yaml`) -> `default/a` -> `default/b` (`b.yaml`){END}"
    );
    let other = format!("a.yaml: {BEGIN}`default/a` -> `default/b` (`b.yaml`) -> `default/a`{END}");
    let refused = folder.refused();
    assert!(refused == [error] || refused == [other], "{refused:?}");
    assert_eq!(folder.in_force(), before);
    folder.write("self", "self");
    folder.scan();
    assert!(
        folder
            .refused()
            .iter()
            .any(|e| e.contains("`default/self` -> `default/self`"))
    );
    assert_eq!(folder.in_force(), before);
}

#[test]
fn after_an_agent_restart_running_pods_keep_the_order_they_had() {
    for (a, b, expected) in [
        // Only one file has changed.
        ("b", "a", ["a ", "b default/a"]),
        // Both have, to a circle.
        ("b:ready", "a:ready", ["a ", "b default/a"]),
    ] {
        let mut folder = Folder::new("restart");
        folder.write("a", "");
        folder.write("b", "a");
        folder.scan();
        let before = folder.1.desired().pods.into_values();
        let inherited = before.map(|pod| {
            let file = folder.0.join(format!("{}.yaml", pod.key.name));
            let pods = vec![pod];
            (
                file,
                Inherited {
                    pods,
                    ..Inherited::default()
                },
            )
        });
        folder.1 = Manifests::new(folder.0.clone(), "n".into(), inherited.collect());
        folder.write("a", a);
        folder.write("b", b);
        folder.scan();
        assert_eq!(folder.in_force(), expected, "{a} {b}");
        assert!(!folder.refused().is_empty(), "{a} {b}");
    }
}
