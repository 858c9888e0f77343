//! Documents that move between files, and files that want the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use super::super::tests::{Folder, errors, scan_all};
use super::super::{Inherited, Manifests};
use crate::layout::Layout;
use crate::node::sources;
use crate::spec::convert::ConvertContext;

/// Writes a file; `content` has one word for each document: a pod `name` or `name=image`, `svc/name`, `cm/name=value` or
/// `deploy/name=image`.
fn write(folder: &Folder, file: &str, content: &str) {
    let document = |word: &str| {
        let (name, value) = word.split_once('=').unwrap_or((word, "i"));
        let pod = format!("{{containers: [{{name: c, image: '{value}:1'}}]}}");
        match name.split_once('/') {
            Some(("svc", name)) => format!(
                "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{selector: {{a: b}}, ports: [{{port: 80}}]}}\n"
            ),
            Some(("cm", name)) => {
                format!(
                    "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{v: '{value}'}}\n"
                )
            }
            Some((_, name)) => format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  selector: {{matchLabels: {{a: b}}}}\n  \
                 template: {{metadata: {{labels: {{a: b}}}}, spec: {pod}}}\n"
            ),
            None => format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {pod}\n"),
        }
    };
    let documents: Vec<String> = content.split_whitespace().map(document).collect();
    fs::write(folder.0.join(file), documents.join("---\n")).unwrap();
}

/// The documents in force by their files, in the words of [`write`].
fn in_force(manifests: &Manifests) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for (path, entry) in &manifests.entries {
        let Some(loaded) = &entry.applied else {
            continue;
        };
        let image = |image: &str| image.trim_end_matches(":1").to_owned();
        let plain = |name: &str, value: String| match value.as_str() {
            "i" => name.to_owned(),
            value => format!("{name}={value}"),
        };
        let pods = loaded.pods.iter().map(|pod| {
            let value = image(&pod.containers[0].image);
            match &pod.workload {
                Some(workload) => format!("deploy/{}", plain(&workload.name, value)),
                None => plain(&pod.key.name, value),
            }
        });
        let services = loaded.services.iter();
        let services = services.map(|s| format!("svc/{}", s.spec.key.name));
        let maps = loaded.configuration.iter().map(|(key, object)| {
            let value = object.value("v").unwrap_or_default();
            format!("cm/{}={}", key.name, String::from_utf8_lossy(value))
        });
        let file = path.file_stem().unwrap_or_default();
        let all = pods.chain(services).chain(maps).collect();
        found.insert(file.to_string_lossy().into_owned(), all);
    }
    found
}

fn expected(files: &[(&str, &str)]) -> BTreeMap<String, BTreeSet<String>> {
    let words = |content: &str| content.split_whitespace().map(str::to_owned).collect();
    let files = files.iter();
    files
        .map(|(file, content)| ((*file).to_owned(), words(content)))
        .collect()
}

#[test]
fn what_moves_to_another_file_goes_on_whichever_way_it_sorts() {
    for (sentence, before, steps) in [
        (
            "to an earlier file, which was saved first",
            &[("a", "z"), ("b", "x k")][..],
            &[&[("a", "z x")][..], &[("b", "k")]][..],
        ),
        (
            "to an earlier file, both at once",
            &[("a", "z"), ("b", "x k")],
            &[&[("a", "z x"), ("b", "k")]],
        ),
        (
            "to a later file, both at once",
            &[("a", "x z"), ("b", "k")],
            &[&[("a", "z"), ("b", "k x")]],
        ),
        (
            "services and ConfigMaps",
            &[("a", "svc/z cm/z=1"), ("b", "svc/x cm/x=1 k")],
            &[&[("a", "svc/z cm/z=1 svc/x cm/x=1"), ("b", "k")]],
        ),
        (
            "two files exchange theirs",
            &[("a", "x"), ("b", "y")],
            &[&[("a", "y")], &[("b", "x")]],
        ),
        (
            "three files are renumbered",
            &[("a", "x"), ("b", "y"), ("c", "z")],
            &[&[("a", "y"), ("b", "z"), ("c", "x")]],
        ),
        (
            "each takes the name of the next",
            &[("a", "p"), ("b", "q"), ("c", "r"), ("d", "s")],
            &[&[("a", "q"), ("b", "r"), ("c", "s"), ("d", "t")]],
        ),
    ] {
        let folder = Folder::new();
        for (file, content) in before {
            write(&folder, &format!("{file}.yaml"), content);
        }
        let mut manifests = folder.manifests();
        scan_all(&mut manifests);
        assert_eq!(in_force(&manifests), expected(before), "{sentence}");
        for step in steps {
            for (file, content) in *step {
                write(&folder, &format!("{file}.yaml"), content);
            }
            scan_all(&mut manifests);
        }
        let mut then: BTreeMap<&str, &str> = before.iter().copied().collect();
        then.extend(steps.iter().flat_map(|step| step.iter().copied()));
        let then: Vec<(&str, &str)> = then.into_iter().collect();
        assert_eq!(in_force(&manifests), expected(&then), "{sentence}");
        assert_eq!(errors(&manifests), [""; 0], "{sentence}");
    }
}

#[test]
fn files_that_exchange_names_are_not_kept_from_it_by_a_third_one() {
    let folder = Folder::new();
    for (file, content) in [("a", "x"), ("b", "y")] {
        write(&folder, &format!("{file}.yaml"), content);
    }
    let mut manifests = folder.manifests();
    scan_all(&mut manifests);
    for (file, content) in [("0", "x=other"), ("a", "y"), ("b", "x")] {
        write(&folder, &format!("{file}.yaml"), content);
    }
    scan_all(&mut manifests);
    assert_eq!(in_force(&manifests), expected(&[("a", "y"), ("b", "x")]));
    assert_eq!(
        errors(&manifests),
        ["0.yaml: pod `default/x` is already defined by `b.yaml`"]
    );
}

#[test]
fn after_an_agent_restart_the_file_in_force_stays_in_force() {
    for (sentence, first, later, then) in [
        (
            "another image",
            ("b", "p"),
            ("a", "p=other"),
            &[("b", "p")][..],
        ),
        ("the same pod", ("b", "p"), ("a", "p"), &[("b", "p")]),
        (
            "a service and a ConfigMap",
            ("b", "svc/s cm/c=1"),
            ("a", "cm/c=2 svc/s"),
            &[("b", "svc/s cm/c=1")],
        ),
        (
            "a Deployment",
            ("b", "deploy/d"),
            ("a", "deploy/d=other"),
            &[("b", "deploy/d")],
        ),
        (
            "a file that had something else in force keeps that",
            ("a", "z"),
            ("a", "z=new p=other"),
            &[("a", "z"), ("b", "p")],
        ),
    ] {
        let (folder, run) = (Folder::new(), Folder::new());
        let layout = Layout {
            root: run.0.clone(),
            run_dir: run.0.clone(),
            log_dir: run.0.clone(),
        };
        fs::create_dir_all(layout.configuration_dir()).unwrap();
        if first.0 == "a" {
            write(&folder, "b.yaml", "p");
        }
        write(&folder, &format!("{}.yaml", first.0), first.1);
        let mut manifests = folder.manifests();
        scan_all(&mut manifests);
        write(&folder, &format!("{}.yaml", later.0), later.1);
        scan_all(&mut manifests);
        assert_eq!(in_force(&manifests), expected(then), "{sentence}");
        let refused = errors(&manifests);
        sources::write(&layout, &manifests);

        let running = manifests.desired().pods.into_values().collect();
        let inherited: BTreeMap<PathBuf, Inherited> =
            sources::inherited(&layout, running, &ConvertContext::of("n"));
        let mut manifests = Manifests::new(folder.0.clone(), "n".into(), inherited);
        let before = manifests.desired();
        scan_all(&mut manifests);
        assert_ne!(manifests.desired(), before, "{sentence}");
        assert_eq!(in_force(&manifests), expected(then), "{sentence}");
        assert_eq!(errors(&manifests), refused, "{sentence}");
        // What was edited meanwhile counts.
        write(&folder, "b.yaml", "");
        scan_all(&mut manifests);
        assert_eq!(errors(&manifests), [""; 0], "{sentence}");
    }
}

#[test]
fn the_file_of_another_bundle_is_named_with_its_bundle() {
    use super::super::bundles::{Folder as Bundle, Record, State};
    use crate::images::BundleFile;

    let (folder, bundles) = (Folder::new(), Folder::new());
    for name in ["one", "two"] {
        let bundle = Bundle::of(&bundles.0, name);
        let pod = |name: &str| {
            write(&folder, "pod.txt", name);
            fs::read_to_string(folder.0.join("pod.txt")).unwrap()
        };
        let files = ["x.yaml", "y.yaml"].map(|file| BundleFile {
            name: file.to_owned(),
            text: pod(match (name, file) {
                ("one", _) => &file[..1],
                _ => "y",
            }),
        });
        let current = bundle.write(None, &Record::default(), &files).unwrap();
        let state = State {
            current,
            ..State::default()
        };
        bundle.commit(&state).unwrap();
    }
    fs::remove_file(folder.0.join("pod.txt")).unwrap();
    let mut manifests = folder.manifests().with_bundles(bundles.0.clone());
    scan_all(&mut manifests);
    let mut expected = vec![
        "x.yaml: pod `default/y` is already defined by bundle `one` (y.yaml)",
        "y.yaml: pod `default/y` is already defined by bundle `one` (y.yaml)",
    ];
    assert_eq!(errors(&manifests), expected);
    write(&folder, "own.yaml", "x");
    scan_all(&mut manifests);
    let mut said = errors(&manifests);
    said.sort();
    expected.insert(
        0,
        "own.yaml: pod `default/x` is already defined by bundle `one` (x.yaml)",
    );
    assert_eq!(said, expected);
}
