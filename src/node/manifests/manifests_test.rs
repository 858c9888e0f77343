//! The manifest directory, with real files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Inherited, Manifests, Scan};
use crate::api::FileState;
use crate::spec::PodSpec;

pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("coracle-manifests-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn write(&self, file: &str, pod: &str, image: &str) -> PathBuf {
        let path = self.0.join(file);
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}}}\nspec:\n  containers: [{{name: c, image: {image}}}]\n"
        );
        fs::write(&path, text).unwrap();
        path
    }

    pub(super) fn manifests(&self) -> Manifests {
        Manifests::new(self.0.clone(), "n".into(), BTreeMap::new())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn of_pods(pods: Vec<Arc<PodSpec>>) -> Inherited {
    Inherited {
        pods,
        ..Inherited::default()
    }
}

pub(super) fn scan_all(manifests: &mut Manifests) -> Scan {
    manifests.scan(0, &BTreeSet::new(), true, &BTreeSet::new())
}

pub(super) fn pods(manifests: &Manifests) -> Vec<String> {
    manifests
        .desired()
        .pods
        .values()
        .map(|pod| format!("{}={}", pod.key.name, pod.containers[0].image))
        .collect()
}

pub(super) fn errors(manifests: &Manifests) -> Vec<String> {
    let rows = manifests.status().into_iter();
    rows.flat_map(|row| row.errors).collect()
}

#[test]
fn what_editors_leave_is_no_manifest_and_neither_are_folders() {
    let folder = Folder::new();
    for name in [
        ".hidden.yaml",
        "web.yaml~",
        ".web.yaml.swp",
        "web.swp",
        "web.yaml.bak",
        "web.yaml.orig",
        "web.yaml.dpkg-old",
        "web.yaml.rpmsave",
        "web.env",
    ] {
        folder.write(name, "no", "a:1");
    }
    fs::create_dir(folder.0.join("sub")).unwrap();
    nix::unistd::mkfifo(&folder.0.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("/nowhere", folder.0.join("dangling")).unwrap();
    folder.write("yes", "yes", "a:1");
    let mut manifests = folder.manifests();
    assert!(scan_all(&mut manifests).changed);
    assert_eq!(pods(&manifests), ["yes=a:1"]);
}

#[test]
fn a_link_to_a_disk_that_is_away_keeps_its_pods_and_is_tried_again() {
    let (folder, disk) = (Folder::new(), Folder::new());
    let target = disk.write("web.yaml", "web", "a:1");
    let link = folder.0.join("web.yaml");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let mut manifests = folder.manifests();
    scan_all(&mut manifests);
    assert_eq!(pods(&manifests), ["web=a:1"]);
    let away = target.with_extension("away");
    fs::rename(&target, &away).unwrap();
    let scan = scan_all(&mut manifests);
    assert_eq!(scan.again_in_ms, Some(super::AGAIN_MS));
    assert_eq!(pods(&manifests), ["web=a:1"]);
    let why = errors(&manifests).concat();
    assert!(why.starts_with("web.yaml: No such file"), "{why}");
    assert!(!manifests.all_in_effect());
    fs::rename(&away, &target).unwrap();
    assert_eq!(scan_all(&mut manifests).again_in_ms, None);
    assert!(errors(&manifests).is_empty());
    fs::remove_file(&link).unwrap();
    scan_all(&mut manifests);
    assert!(pods(&manifests).is_empty());
}

#[test]
fn a_file_still_being_written_is_read_once_it_is_closed_or_has_settled() {
    let folder = Folder::new();
    let mut manifests = folder.manifests();
    scan_all(&mut manifests);
    let path = folder.write("a.yaml", "a", "a:1");
    let nothing = BTreeSet::new();
    let running = BTreeSet::new();
    let first = manifests.scan(1000, &nothing, false, &running);
    assert_eq!((first.changed, first.again_in_ms), (false, Some(500)));
    folder.write("a.yaml", "a", "longer:1");
    assert_eq!(
        manifests.scan(1400, &nothing, false, &running).again_in_ms,
        Some(500),
        "it changed meanwhile"
    );
    assert!(manifests.scan(1900, &nothing, false, &running).changed);
    assert_eq!(pods(&manifests), ["a=longer:1"]);
    folder.write("a.yaml", "a", "closed:1");
    assert!(
        manifests
            .scan(2000, &[path].into(), false, &running)
            .changed,
        "closed after writing"
    );
    assert_eq!(pods(&manifests), ["a=closed:1"]);
    assert_eq!(
        manifests.scan(9000, &nothing, false, &running),
        Scan::default()
    );
}

#[test]
fn a_file_that_is_missing_for_a_moment_stays_in_force() {
    let folder = Folder::new();
    let path = folder.write("a.yaml", "a", "a:1");
    let mut manifests = folder.manifests();
    scan_all(&mut manifests);
    let (nothing, running) = (BTreeSet::new(), BTreeSet::new());
    let scan = |manifests: &mut super::Manifests, at| {
        let scan = manifests.scan(at, &nothing, false, &running);
        (scan.changed, scan.again_in_ms)
    };
    // vim renames the file to its backup, then writes a new one.
    let copy = path.with_extension("yaml~");
    fs::rename(&path, &copy).unwrap();
    assert_eq!(scan(&mut manifests, 1000), (false, Some(500)));
    assert_eq!(scan(&mut manifests, 1499), (false, Some(1)));
    assert_eq!(pods(&manifests), ["a=a:1"]);
    folder.write("a.yaml", "a", "b:1");
    assert_eq!(scan(&mut manifests, 1600), (false, Some(500)));
    assert_eq!(scan(&mut manifests, 2100), (true, None));
    assert_eq!(pods(&manifests), ["a=b:1"]);
    // A renamed file is gone at once.
    let other = path.with_file_name("b.yaml");
    fs::rename(&path, &other).unwrap();
    manifests.scan(3000, &[other.clone()].into(), false, &running);
    assert_eq!(manifests.status().len(), 1);
    assert_eq!(pods(&manifests), ["a=b:1"]);
    fs::remove_file(other).unwrap();
    assert_eq!(scan(&mut manifests, 4000), (false, Some(500)));
    assert_eq!(scan(&mut manifests, 4500), (true, None));
    assert!(pods(&manifests).is_empty());
}

#[test]
fn a_broken_edit_keeps_the_version_before_in_force() {
    let folder = Folder::new();
    folder.write("a.yaml", "a", "a:1");
    let mut manifests = folder.manifests();
    scan_all(&mut manifests);
    fs::write(folder.0.join("a.yaml"), "kind: Pod\nspec: [").unwrap();
    assert!(scan_all(&mut manifests).changed);
    assert_eq!(pods(&manifests), ["a=a:1"]);
    let states: Vec<FileState> = manifests.status().iter().map(|row| row.state).collect();
    assert_eq!(states, [FileState::Rejected, FileState::Superseded]);
    assert!(!manifests.all_in_effect());
    fs::remove_file(folder.0.join("a.yaml")).unwrap();
    scan_all(&mut manifests);
    assert!(
        pods(&manifests).is_empty(),
        "only removing the file removes the pod"
    );
}

#[test]
fn a_directory_out_of_reach_changes_nothing_until_it_is_back() {
    let folder = Folder::new();
    folder.write("a.yaml", "a", "a:1");
    let mut manifests = folder.manifests();
    scan_all(&mut manifests);
    let away = folder.0.with_extension("away");
    fs::rename(&folder.0, &away).unwrap();
    assert!(scan_all(&mut manifests).changed);
    assert_eq!(pods(&manifests), ["a=a:1"]);
    assert_eq!(manifests.status()[0].state, FileState::Rejected);
    fs::rename(&away, &folder.0).unwrap();
    assert!(scan_all(&mut manifests).changed);
    assert_eq!(manifests.status()[0].state, FileState::Loaded);
}

#[test]
fn a_name_taken_by_another_file_is_refused_until_it_is_free() {
    let folder = Folder::new();
    folder.write("b.yaml", "same", "b:1");
    let mut manifests = folder.manifests();
    scan_all(&mut manifests);
    folder.write("a.yaml", "same", "a:1");
    scan_all(&mut manifests);
    assert_eq!(pods(&manifests), ["same=b:1"]);
    let errors = manifests
        .status()
        .into_iter()
        .flat_map(|row| row.errors)
        .collect::<Vec<_>>();
    assert_eq!(
        errors,
        ["a.yaml: pod `default/same` is already defined by `b.yaml`"]
    );
    fs::remove_file(folder.0.join("b.yaml")).unwrap();
    scan_all(&mut manifests);
    assert_eq!(pods(&manifests), ["same=a:1"]);
}

#[test]
fn a_renamed_file_is_the_same_pod() {
    let folder = Folder::new();
    folder.write("a.yaml", "a", "a:1");
    let mut manifests = folder.manifests();
    scan_all(&mut manifests);
    let before = manifests.desired();
    fs::rename(folder.0.join("a.yaml"), folder.0.join("z.yaml")).unwrap();
    scan_all(&mut manifests);
    assert_eq!(manifests.desired(), before);
}

#[test]
fn pods_of_a_former_agent_stay_while_their_file_is_broken() {
    let folder = Folder::new();
    let path = folder.write("a.yaml", "a", "a:1");
    let mut first = folder.manifests();
    scan_all(&mut first);
    let recovered = first.desired().pods.into_values().collect();
    fs::write(&path, "broken: [").unwrap();
    let mut second = Manifests::new(
        folder.0.clone(),
        "n".into(),
        [(path.clone(), of_pods(recovered))].into(),
    );
    scan_all(&mut second);
    assert_eq!(pods(&second), ["a=a:1"]);
    assert_eq!(second.sources().into_values().collect::<Vec<_>>(), [path]);
}

#[test]
fn once_files_were_read_nothing_inherited_comes_back() {
    let folder = Folder::new();
    let path = folder.write("a.yaml", "a", "old:1");
    let gone = folder.write("gone.yaml", "gone", "g:1");
    let mut first = folder.manifests();
    scan_all(&mut first);
    let by = |name: &str| {
        first
            .desired()
            .pods
            .into_values()
            .filter(|pod| *pod.key.name == *name)
            .collect()
    };
    let by = |name: &str| of_pods(by(name));
    let inherited = [(path, by("a")), (gone.clone(), by("gone"))].into();
    let mut second = Manifests::new(folder.0.clone(), "n".into(), inherited);
    scan_all(&mut second);
    folder.write("a.yaml", "a", "newer:1");
    fs::remove_file(gone).unwrap();
    scan_all(&mut second);
    let away = folder.0.with_extension("away");
    fs::rename(&folder.0, &away).unwrap();
    scan_all(&mut second);
    assert_eq!(pods(&second), ["a=newer:1"]);
    fs::rename(&away, &folder.0).unwrap();
    scan_all(&mut second);
    assert_eq!(pods(&second), ["a=newer:1"]);
}

#[test]
fn a_fifo_instead_of_a_file_or_folder_is_refused_at_once() {
    let folder = Folder::new();
    let pipe = folder.0.join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut manifests = Manifests::new(pipe, "n".into(), BTreeMap::new());
    scan_all(&mut manifests);
    assert!(manifests.unreadable.is_some());
}

fn class(name: &str, value: i32, more: &str) -> String {
    format!(
        "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: {name}}}\nvalue: {value}\n{more}"
    )
}

fn pod_of(name: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers: [{{name: c, image: i}}]\n{more}"
    )
}

/// Name, class and priority of the wanted pods.
fn priorities(manifests: &Manifests) -> Vec<(String, String, i32)> {
    let desired = manifests.desired().pods;
    let mut found: Vec<_> = desired
        .values()
        .map(|pod| {
            let spec = pod.manifest.spec();
            assert_eq!(spec.priority.unwrap_or(0), pod.priority);
            let class = spec.priority_class_name.unwrap_or_default();
            (pod.key.name.to_string(), class, pod.priority)
        })
        .collect();
    found.sort();
    found
}

fn row(name: &str, class: &str, priority: i32) -> (String, String, i32) {
    (name.to_owned(), class.to_owned(), priority)
}

#[test]
fn a_pod_may_name_the_class_of_any_file_and_waits_until_there_is_one() {
    let folder = Folder::new();
    let file = |name: &str| folder.0.join(name);
    let gold = pod_of("a", "  priorityClassName: gold\n");
    fs::write(file("a.yaml"), &gold).unwrap();
    fs::write(file("b.yaml"), pod_of("b", "")).unwrap();
    let mut manifests = folder.manifests();
    scan_all(&mut manifests);
    assert_eq!(priorities(&manifests), [row("b", "", 0)]);
    let error = "a.yaml:6:3: spec.priorityClassName: Not found: \"gold\"; no manifest file has a PriorityClass of that \
                 name; this file counts as soon as one does";
    assert_eq!(manifests.status()[0].errors, [error]);
    assert!(!manifests.all_in_effect());

    // The class arrives in a file that is read later, and that file also brings a default.
    let usual = class("usual", 5, "globalDefault: true\n");
    fs::write(
        file("z.yaml"),
        format!("{}---\n{usual}", class("gold", 1000, "")),
    )
    .unwrap();
    assert!(scan_all(&mut manifests).changed);
    assert_eq!(
        priorities(&manifests),
        [row("a", "gold", 1000), row("b", "usual", 5)]
    );
    assert!(manifests.all_in_effect());
    let uids: Vec<_> = manifests.desired().pods.into_keys().collect();

    // Another value reaches the pods, which stay the same.
    fs::write(
        file("z.yaml"),
        format!("{}---\n{usual}", class("gold", 2000, "")),
    )
    .unwrap();
    assert!(scan_all(&mut manifests).changed);
    assert_eq!(
        priorities(&manifests),
        [row("a", "gold", 2000), row("b", "usual", 5)]
    );
    assert_eq!(
        manifests.desired().pods.into_keys().collect::<Vec<_>>(),
        uids
    );
    assert!(!scan_all(&mut manifests).changed);

    // Without the class the pod stays as it is; its file says what is wrong.
    fs::write(file("z.yaml"), &usual).unwrap();
    assert!(scan_all(&mut manifests).changed);
    assert_eq!(
        priorities(&manifests),
        [row("a", "gold", 2000), row("b", "usual", 5)]
    );
    assert_eq!(manifests.status()[0].errors, [error]);

    // A broken file of classes leaves them in force.
    fs::write(file("z.yaml"), "kind: [").unwrap();
    scan_all(&mut manifests);
    assert_eq!(priorities(&manifests)[1], row("b", "usual", 5));
    fs::remove_file(file("z.yaml")).unwrap();
    scan_all(&mut manifests);
    assert_eq!(priorities(&manifests)[1], row("b", "", 0));
    let shown = manifests.priority_classes();
    let names: Vec<_> = shown.iter().map(|c| c.metadata.name.clone()).collect();
    let built_in = ["system-cluster-critical", "system-node-critical"];
    assert_eq!(names, built_in.map(|name| Some(name.to_owned())));
}

#[test]
fn the_content_of_an_immutable_config_map_stays_and_its_labels_may_change() {
    let folder = Folder::new();
    let write = |color: &str, label: &str| {
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c, labels: {{l: {label}}}}}\nimmutable: true\ndata: {{color: {color}}}\n"
        );
        fs::write(folder.0.join("c.yaml"), text).unwrap();
    };
    let mut manifests = folder.manifests();
    let scanned = |manifests: &mut Manifests| {
        scan_all(manifests);
        let rows = manifests.status().into_iter();
        let errors: Vec<String> = rows.flat_map(|row| row.errors).collect();
        let all = manifests.all_configuration();
        let map = all.get(crate::spec::ObjectKind::ConfigMap, "default", "c");
        let color = map.and_then(|map| map.value("color").map(<[u8]>::to_vec));
        (String::from_utf8(color.unwrap()).unwrap(), errors)
    };
    write("blue", "a");
    assert_eq!(scanned(&mut manifests), ("blue".to_owned(), vec![]));
    write("blue", "other");
    assert_eq!(scanned(&mut manifests), ("blue".to_owned(), vec![]));
    write("crimson", "other");
    let (color, errors) = scanned(&mut manifests);
    assert_eq!(color, "blue");
    let expected = "c.yaml: config map `default/c`: data: Forbidden: field is immutable when `immutable` is set";
    assert!(
        errors.len() == 1 && errors[0].starts_with(expected),
        "{errors:?}"
    );
}

#[test]
fn classes_that_only_one_file_can_have_are_conflicts_and_files_that_need_each_other_wait() {
    let folder = Folder::new();
    let file = |name: &str| folder.0.join(name);
    fs::write(file("a.yaml"), class("usual", 5, "globalDefault: true\n")).unwrap();
    fs::write(file("b.yaml"), class("other", 6, "globalDefault: true\n")).unwrap();
    fs::write(file("c.yaml"), class("usual", 7, "")).unwrap();
    let mut manifests = folder.manifests();
    scan_all(&mut manifests);
    let errors: Vec<_> = manifests
        .status()
        .into_iter()
        .flat_map(|f| f.errors)
        .collect();
    assert_eq!(
        errors,
        [
            "b.yaml: the default priority class (`usual`) is already defined by `a.yaml`",
            "c.yaml: priority class `usual` is already defined by `a.yaml`",
        ]
    );
    // Each file is taken whole or not at all: neither of these can be the first.
    for (own, needed) in [("x", "y"), ("y", "x")] {
        let pod = pod_of(own, &format!("  priorityClassName: {needed}\n"));
        let text = format!("{pod}---\n{}", class(own, 1, ""));
        fs::write(file(&format!("{own}.yaml")), text).unwrap();
    }
    scan_all(&mut manifests);
    assert!(manifests.desired().pods.is_empty());
    // A chain resolves in whatever order it is read.
    fs::write(file("y.yaml"), class("y", 3, "")).unwrap();
    scan_all(&mut manifests);
    assert_eq!(priorities(&manifests), [row("x", "y", 3)]);
}

#[test]
fn files_beyond_the_bound_are_named_and_those_in_force_stay() {
    let folder = Folder::new();
    folder.write("zz.yaml", "last", "a:1");
    let mut manifests = folder.manifests();
    scan_all(&mut manifests);
    // Empty ones cost the least to read.
    for number in 0..super::files::MAX_FILES + 5 {
        fs::write(folder.0.join(format!("f{number:05}.yaml")), "").unwrap();
    }
    assert!(scan_all(&mut manifests).changed);
    assert_eq!(pods(&manifests), ["last=a:1"]);
    let first = format!("f{:05}.yaml", super::files::MAX_FILES - 1);
    let rows = manifests.status();
    let broken = rows
        .iter()
        .find(|row| row.path.ends_with(&first))
        .expect("named");
    assert_eq!(broken.state, FileState::Rejected);
    let error = format!(
        "{first}: there are more than {} manifest files: 6 are not read, this one first",
        super::files::MAX_FILES
    );
    assert_eq!(broken.errors, [error]);
    assert!(!manifests.all_in_effect());
    for number in 0..6 {
        fs::remove_file(folder.0.join(format!("f{number:05}.yaml"))).unwrap();
    }
    assert!(scan_all(&mut manifests).freed_bytes > 0);
    // The places of removed files are taken by the others with the next scan at the latest.
    scan_all(&mut manifests);
    assert!(manifests.all_in_effect());
}

#[test]
fn a_bundle_that_cannot_be_read_may_have_documents_that_are_not_known() {
    let (folder, bundles) = (Folder::new(), Folder::new());
    let mut manifests = folder.manifests().with_bundles(bundles.0.clone());
    scan_all(&mut manifests);
    assert!(manifests.all_in_effect());
    let state = bundles.0.join("site/state.json");
    fs::create_dir(bundles.0.join("site")).unwrap();
    fs::write(&state, "{").unwrap();
    assert!(scan_all(&mut manifests).changed);
    assert!(!manifests.all_in_effect());
    assert!(!scan_all(&mut manifests).changed);
    fs::remove_dir_all(bundles.0.join("site")).unwrap();
    assert!(scan_all(&mut manifests).changed);
    assert!(manifests.all_in_effect());
}

#[test]
fn files_that_are_too_large_together_are_refused_until_there_is_room() {
    let folder = Folder::new();
    // As large as a file may be. They are no YAML, but that takes reading them.
    let number = super::MAX_TOTAL / super::files::MAX_FILE;
    for at in 0..=number {
        let file = fs::File::create(folder.0.join(format!("{at}.yaml"))).unwrap();
        file.set_len(super::files::MAX_FILE).unwrap();
    }
    folder.write("c.yaml", "c", "a:1");
    let mut manifests = folder.manifests();
    scan_all(&mut manifests);
    let errors = |manifests: &Manifests| -> Vec<String> {
        let rows = manifests.status().into_iter();
        rows.flat_map(|row| row.errors).collect()
    };
    let too_large = format!(
        "{number}.yaml: the manifest files are larger than 64 MiB together: this one is not read"
    );
    assert!(
        errors(&manifests).contains(&too_large),
        "{:?}",
        errors(&manifests)
    );
    assert_eq!(pods(&manifests), ["c=a:1"]);
    fs::remove_file(folder.0.join("0.yaml")).unwrap();
    scan_all(&mut manifests);
    assert!(!errors(&manifests).contains(&too_large));
}

#[test]
fn a_secret_that_cannot_be_decrypted_is_refused_and_tried_again_after_a_minute() {
    let folder = Folder::new();
    let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: db}\nencryptedData: QUJDRA==\n";
    fs::write(folder.0.join("s.yaml"), text).unwrap();
    let mut manifests = folder.manifests();
    let nothing = BTreeSet::new();
    let first = manifests.scan(1_000, &nothing, true, &BTreeSet::new());
    assert_eq!((first.changed, first.again_in_ms), (true, Some(60_000)));
    let refused = errors(&manifests);
    let expected = "s.yaml:4:1: encryptedData: could not be decrypted: ";
    assert!(
        refused.len() == 1 && refused[0].starts_with(expected),
        "{refused:?}"
    );
    let early = manifests.scan(60_000, &nothing, false, &BTreeSet::new());
    assert_eq!((early.changed, early.again_in_ms), (false, Some(1_000)));
    let again = manifests.scan(61_000, &nothing, false, &BTreeSet::new());
    assert_eq!((again.changed, again.again_in_ms), (true, Some(60_000)));
    // Nothing is tried again once the file asks for nothing.
    fs::write(
        folder.0.join("s.yaml"),
        text.replace("encryptedData: QUJDRA==", ""),
    )
    .unwrap();
    let plain = manifests.scan(62_000, &nothing, true, &BTreeSet::new());
    assert_eq!((plain.changed, plain.again_in_ms), (true, None));
    assert!(errors(&manifests).is_empty());
}
