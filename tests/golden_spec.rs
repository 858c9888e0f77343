//! Golden files: every manifest in `fixtures/spec` converts to the text of the `.expected` file beside it. The diff is
//! the review: `UPDATE_GOLDEN=1 cargo test --test golden_spec` writes the files again.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coracle::spec::PodSpec;
use coracle::spec::convert::{self, ConvertContext};

const CONTEXT: ConvertContext<'_> = ConvertContext::of("node-1");

fn fixtures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/spec");
    let mut files: Vec<PathBuf> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no fixtures in {}", dir.display());
    files
}

/// The spec without its manifest, which is shown separately, as YAML.
fn render(pod: &PodSpec) -> String {
    let manifest = serde_yaml::to_string(&pod.manifest.pod()).unwrap();
    let bare = PodSpec {
        manifest: Arc::default(),
        ..pod.clone()
    };
    let bare = format!("{bare:#?}");
    let (head, tail) = bare.split_once("    manifest: ").unwrap();
    let (_, tail) = tail.split_once("\n    },\n").unwrap();
    format!("{manifest}---\n{head}{tail}\n")
}

fn convert_file(path: &Path) -> String {
    let bytes = fs::read(path).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let mut text = String::new();
    match convert::documents(&bytes, name, &CONTEXT) {
        Ok(found) => {
            writeln!(text, "{} pods", found.pods.len()).unwrap();
            for pod in &found.pods {
                text.push_str(&render(pod));
            }
            for warning in found.all_warnings() {
                writeln!(text, "warning: {warning}").unwrap();
            }
            for workload in &found.workloads {
                writeln!(text, "{} {workload:#?}", workload.key).unwrap();
            }
            for (key, object) in found.configuration.iter() {
                let manifest = serde_yaml::to_string(&object.shown()).unwrap();
                writeln!(text, "{}\n{manifest}", key.short()).unwrap();
            }
            for service in &found.services {
                let manifest = serde_yaml::to_string(&service.manifest).unwrap();
                writeln!(text, "service\n{manifest}---\n{:#?}", service.spec).unwrap();
            }
        }
        Err(errors) => {
            for error in &errors {
                writeln!(text, "{error}").unwrap();
            }
        }
    }
    text
}

#[test]
fn every_fixture_converts_as_expected() {
    let mut differences = String::new();
    for path in fixtures() {
        let expected_path = path.with_extension("expected");
        let actual = convert_file(&path);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&expected_path, &actual).unwrap();
            continue;
        }
        let expected = fs::read_to_string(&expected_path).unwrap_or_default();
        if expected != actual {
            writeln!(differences, "{}:", expected_path.display()).unwrap();
            diff(&expected, &actual, &mut differences);
        }
    }
    assert!(differences.is_empty(), "\n{differences}");
}

/// The lines that differ at each position; enough to see what changed.
fn diff(expected: &str, actual: &str, out: &mut String) {
    let expected: Vec<&str> = expected.lines().collect();
    let actual: Vec<&str> = actual.lines().collect();
    for index in 0..expected.len().max(actual.len()) {
        let (old, new) = (expected.get(index), actual.get(index));
        if old != new {
            for (sign, line) in [('-', old), ('+', new)] {
                if let Some(line) = line {
                    writeln!(out, "  {sign} {line}").unwrap();
                }
            }
        }
    }
}

#[test]
fn bad_fixtures_are_rejected_and_the_others_are_not() {
    for path in fixtures() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let result = convert::documents(&fs::read(&path).unwrap(), name, &CONTEXT);
        assert_eq!(
            result.is_err(),
            name.starts_with("bad-"),
            "{name}: {result:?}"
        );
    }
}

#[test]
fn an_admitted_pod_reads_back_the_same() {
    for path in fixtures() {
        let bytes = fs::read(&path).unwrap();
        let Ok(found) = convert::documents(&bytes, "x.yaml", &CONTEXT) else {
            continue;
        };
        for pod in found.pods {
            let json = pod.manifest.json().into_bytes();
            let again = convert::admitted(&json).unwrap_or_else(|errors| panic!("{errors:?}"));
            assert_eq!(again, pod, "{}", path.display());
        }
        for service in found.services {
            let json = serde_json::to_vec(&service.manifest).unwrap();
            let again = convert::documents(&json, "x.json", &CONTEXT).unwrap();
            assert_eq!(again.services, [service], "{}", path.display());
        }
    }
}
