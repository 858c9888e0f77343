//! Manifests for podman: those that `podman kube generate` prints, and those that a `.kube` unit plays. What podman
//! accepts and Kubernetes refuses is changed; everything else stays as it is written.

use std::path::Path;

use super::container::unconfined;
use super::mounts::{access_modes, request};
use super::text;
use super::tree::{
    Commented, Entries, entries, find, find_mut, has, is_yes, map_of_texts, remove, set, set_on,
    set_text,
};
use super::words::{first_free, object_name};
use crate::spec::names::{dns_label, dns_subdomain, qualified_name};
use crate::spec::parse;
use crate::spec::value::Value;

const CLAIM: &str = "PersistentVolumeClaim";

/// Annotations by which podman and CRI-O remember how a container was made.
const OF_ENGINES: [&str; 3] = [SETTING, "io.kubernetes.cri-o.", "bind-mount-options"];

const SETTING: &str = "io.podman.annotations.";

/// Settings of podman that the manifest has anyway, or that mean nothing to a pod here.
const MEANINGLESS: [&str; 6] = [
    "autoremove",
    "cid-file",
    "init",
    "label",
    "privileged",
    "publish-all",
];

/// What the path of a mount may end with, after a colon.
const OPTIONS: [&str; 8] = ["z", "Z", "U", "rw", "ro", "exec", "suid", "dev"];

/// Names as they are written, and as Kubernetes allows them.
type Names = Vec<(String, String)>;

/// Whether a text looks like manifests.
pub(super) fn is_manifest(content: &str) -> bool {
    let has = |key: &str| content.lines().any(|line| line.starts_with(key));
    has("apiVersion:") && has("kind:")
}

/// Whether podman wrote a manifest: it says so, or remembers how it made the containers.
pub(super) fn is_of_podman(content: &str) -> bool {
    let mut lines = content.lines().map(str::trim_start);
    lines.any(|line| {
        line.starts_with("# Created with podman-")
            || OF_ENGINES.iter().any(|start| line.starts_with(start))
    })
}

/// The name and the text of files that are manifests, at least one. `given` is the value of `--name`.
pub(super) fn load(
    files: &[(String, String)],
    given: Option<&str>,
) -> Result<(String, String), String> {
    if given.is_some() {
        return Err("manifests have names of their own: --name is for what has none".to_owned());
    }
    let stem = Path::new(&files[0].0).file_stem().unwrap_or_default();
    let file = match stem.to_string_lossy() {
        stem if stem == "-" => "pod".to_owned(),
        stem => stem.into_owned(),
    };
    for (name, text) in files.iter().filter(|_| files.len() > 1) {
        // Of all together, an error would not say which one has it.
        parsed(name, text)?;
    }
    // Of several files, one may have the claims of another.
    let texts: Vec<&str> = files.iter().map(|(_, text)| &**text).collect();
    Ok((file, texts.join("\n---\n")))
}

/// Returns manifests that Kubernetes accepts, and remarks on what changed. `file` names them in errors.
pub(super) fn converted(
    file: &str,
    content: &str,
    namespace: Option<&str>,
) -> Result<(String, Vec<String>), String> {
    let documents = parsed(file, content)?;
    let mut changes = Changes::default();
    let mut all = Vec::new();
    for mut document in documents {
        if let Value::Map(document) = &mut document {
            changes.document(document, namespace);
            all.push(Value::Map(std::mem::take(document)));
        }
    }
    let claims = changes.missing_claims(&all);
    if !changes.changed && claims.is_empty() {
        return Ok((content.to_owned(), Vec::new()));
    }
    let documents = claims.iter().chain(&all).map(text::yaml);
    let documents: Vec<String> = documents.collect();
    Ok((documents.join("---\n"), changes.remarks))
}

fn parsed(file: &str, content: &str) -> Result<Vec<Value>, String> {
    parse::parse(content).map_err(|problem| {
        let (line, column) = problem.at.unwrap_or((1, 1));
        format!("{file}:{line}:{column}: {}", problem.message)
    })
}

#[derive(Default)]
struct Changes {
    changed: bool,
    remarks: Vec<String>,
    /// The claims that pods name, each with its namespace.
    claims: Vec<(String, Option<String>)>,
    /// The document's containers that run without a seccomp filter under podman.
    unconfined: Vec<String>,
    /// The document that is changed.
    of: String,
}

impl Changes {
    /// Notes a change, with a comment at its place.
    fn lost(&mut self, place: &mut dyn Commented, what: &str) {
        let sentence = format!("kube: {}: {what}", self.of);
        self.changed = true;
        if !self.remarks.contains(&sentence) {
            self.remarks.push(sentence.clone());
        }
        place.comment(sentence);
    }

    fn document(&mut self, document: &mut Entries, namespace: Option<&str>) {
        let kind = said(document, "kind").unwrap_or_default();
        let metadata = entries(find(document, "metadata"));
        self.of = format!("{kind} {}", said(metadata, "name").unwrap_or_default());
        self.unconfined.clear();
        // What an API server would have written.
        self.changed |= has(document, "status");
        remove(document, "status");
        let mut own = None;
        if let Some(metadata) = inner(document, "metadata") {
            self.metadata(metadata);
            if let Some(namespace) = namespace.filter(|_| kind != "Namespace") {
                self.changed = true;
                set_text(metadata, "namespace", namespace);
            }
            own = said(metadata, "namespace");
        }
        let namespace = own.as_deref();
        if let Some(spec) = inner(document, "spec") {
            match &*kind {
                "Pod" => self.pod(spec, namespace),
                CLAIM => self.claim(spec),
                "CronJob" => {
                    let job = inner(spec, "jobTemplate").and_then(|job| inner(job, "spec"));
                    self.template(job, namespace);
                }
                _ => self.template(Some(spec), namespace),
            }
        } else if kind == CLAIM {
            let mut spec = Entries::new();
            self.claim(&mut spec);
            set(document, "spec", Value::Map(spec));
        }
    }

    /// The pods of a workload document.
    fn template(&mut self, spec: Option<&mut Entries>, namespace: Option<&str>) {
        let Some(template) = spec.and_then(|spec| inner(spec, "template")) else {
            return;
        };
        if let Some(metadata) = inner(template, "metadata") {
            self.metadata(metadata);
        }
        if let Some(spec) = inner(template, "spec") {
            self.pod(spec, namespace);
        }
    }

    fn metadata(&mut self, metadata: &mut Entries) {
        self.changed |= has(metadata, "creationTimestamp");
        remove(metadata, "creationTimestamp");
        self.name(metadata, "name", |name| dns_subdomain(name).is_some());
        let Some(annotations) = inner(metadata, "annotations") else {
            return;
        };
        let mut lost = Vec::new();
        annotations.retain(|(key, value)| {
            let of_engine = OF_ENGINES.iter().any(|start| key.starts_with(start));
            if let Some(setting) = key.strip_prefix(SETTING).filter(|_| of_engine) {
                let (setting, container) = setting.split_once('/').unwrap_or((setting, ""));
                let value = value.scalar_text().unwrap_or_default();
                match (setting, &*value) {
                    (setting, _) if MEANINGLESS.contains(&setting) => {}
                    ("seccomp", "unconfined") => self.unconfined.push(container.to_owned()),
                    _ => lost.push(format!("`{key}: {value}`: only podman knows it")),
                }
            } else if !of_engine && qualified_name(key).is_some() {
                lost.push(format!("the annotation `{key}`: it has no valid name"));
            } else if !of_engine {
                return true;
            }
            self.changed = true;
            false
        });
        for what in lost {
            self.lost(annotations, &format!("not carried over: {what}"));
        }
        if annotations.is_empty() {
            remove(metadata, "annotations");
        }
    }

    /// Turns the seccomp filter off for a container that has none under podman.
    fn seccomp(&mut self, container: &mut Entries) {
        let name = said(container, "name").unwrap_or_default();
        if !self.unconfined.contains(&name) {
            return;
        }
        let mut security = entries(find(container, "securityContext")).to_vec();
        if !has(&security, "seccompProfile") {
            set(&mut security, "seccompProfile", unconfined());
            set(container, "securityContext", Value::Map(security));
        }
    }

    /// Gives an object a name that Kubernetes allows.
    fn name(&mut self, place: &mut Entries, key: &str, is_refused: fn(&str) -> bool) {
        let Some(Value::String(name)) = find_mut(place, key) else {
            return;
        };
        if !name.is_empty() && is_refused(name) {
            let allowed = object_name(name);
            let what = format!("the {key} `{name}` is `{allowed}` here");
            *name = allowed;
            self.lost(place, &what);
        }
    }

    /// The same for a pod's volume and its mounts, whose long names may begin alike.
    fn volume_name(&mut self, place: &mut Entries, volumes: &mut Names) {
        let Some(Value::String(name)) = find_mut(place, "name") else {
            return;
        };
        let known = volumes.iter().find(|(written, _)| written == name);
        let allowed = known.map(|(_, allowed)| allowed.clone());
        let allowed = allowed.unwrap_or_else(|| {
            let wish = match dns_label(name) {
                None => name.clone(),
                Some(_) => object_name(name),
            };
            let taken = |wish: &str| volumes.iter().any(|(_, allowed)| allowed == wish);
            first_free(&wish, &mut |wish| !taken(wish))
        });
        self.changed |= *name != allowed;
        if known.is_none() {
            volumes.push((name.clone(), allowed.clone()));
        }
        *name = allowed;
    }

    fn pod(&mut self, spec: &mut Entries, namespace: Option<&str>) {
        let is_no_label = |name: &str| dns_label(name).is_some();
        self.name(spec, "hostname", is_no_label);
        let own_ids = said(spec, "hostUsers").as_deref() == Some("false");
        let mut volumes = Names::new();
        for volume in maps(spec, "volumes") {
            self.volume_name(volume, &mut volumes);
            self.tmpfs(volume);
            if let Some(claim) = inner(volume, "persistentVolumeClaim") {
                self.name(claim, "claimName", |name| dns_subdomain(name).is_some());
                if let Some(name) = said(claim, "claimName") {
                    self.claims.push((name, namespace.map(str::to_owned)));
                }
            }
        }
        for key in &["initContainers", "containers"] {
            for container in maps(spec, key) {
                self.seccomp(container);
                self.name(container, "name", is_no_label);
                for mount in maps(container, "volumeMounts") {
                    self.volume_name(mount, &mut volumes);
                    self.options(mount);
                }
                if let Some(security) = inner(container, "securityContext") {
                    self.proc_mount(security, own_ids);
                }
            }
        }
    }

    /// podman prints a tmpfs as if it were a path of the node.
    fn tmpfs(&mut self, volume: &mut Entries) {
        let path = entries(find(volume, "hostPath"));
        if said(path, "path").as_deref() == Some("tmpfs") {
            remove(volume, "hostPath");
            set(volume, "emptyDir", map_of_texts(&[("medium", "Memory")]));
            self.changed = true;
        }
    }

    /// Takes the options of a mount from its path, as in `/data:ro`.
    fn options(&mut self, mount: &mut Entries) {
        let path = said(mount, "mountPath").unwrap_or_default();
        let Some((place, options)) = path.rsplit_once(':') else {
            return;
        };
        let options: Vec<&str> = options.split(',').collect();
        if options.iter().all(|option| OPTIONS.contains(option)) {
            set_text(mount, "mountPath", place);
            self.changed = true;
            if options.contains(&"ro") {
                set_on(mount, "readOnly");
            }
            if options.contains(&"U") {
                self.lost(mount, "not carried over: `U`: its files keep their owner");
            }
        }
    }

    /// A privileged container has all of /proc without the field; another one would need IDs of its own for it.
    fn proc_mount(&mut self, security: &mut Entries, own_ids: bool) {
        if own_ids || said(security, "procMount").as_deref() != Some("Unmasked") {
            return;
        }
        remove(security, "procMount");
        self.changed = true;
        if !said(security, "privileged").is_some_and(|word| is_yes(&word)) {
            let what = "not carried over: `procMount: Unmasked`: it needs `hostUsers: false`";
            self.lost(security, what);
        }
    }

    /// Adds what a claim needs and podman leaves out: access modes and a size.
    fn claim(&mut self, spec: &mut Entries) {
        if !has(spec, "accessModes") {
            self.changed = true;
            set(spec, "accessModes", access_modes());
        }
        if !has(spec, "resources") {
            self.lost(spec, "it had no size so far; this one is the limit");
            set(spec, "resources", request());
        }
    }

    /// Makes the claims that pods name and no document defines: podman creates such volumes by itself.
    fn missing_claims(&mut self, all: &[Value]) -> Vec<Value> {
        let mut made: Vec<Value> = Vec::new();
        let name_of = |document: &Value| {
            let metadata = entries(document.get("metadata"));
            let is_claim = said(entries(Some(document)), "kind").as_deref() == Some(CLAIM);
            let named = said(metadata, "name").filter(|_| is_claim)?;
            Some((named, said(metadata, "namespace")))
        };
        for claim in std::mem::take(&mut self.claims) {
            let known = |document: &Value| name_of(document).as_ref() == Some(&claim);
            if all.iter().chain(&made).any(known) {
                continue;
            }
            let (name, namespace) = claim;
            let mut metadata = Entries::new();
            set_text(&mut metadata, "name", &name);
            if let Some(namespace) = namespace {
                set_text(&mut metadata, "namespace", &namespace);
            }
            let mut document = Entries::new();
            set_text(&mut document, "apiVersion", "v1");
            set_text(&mut document, "kind", CLAIM);
            set(&mut document, "metadata", Value::Map(metadata));
            self.of = format!("{CLAIM} {name}");
            self.lost(
                &mut document,
                "podman made this volume by itself; this one is new, and its data is to be copied",
            );
            let mut spec = Entries::new();
            self.claim(&mut spec);
            set(&mut document, "spec", Value::Map(spec));
            made.push(Value::Map(document));
        }
        made
    }
}

/// What a manifest says for a key, if it is a scalar.
fn said(entries: &[(String, Value)], key: &str) -> Option<String> {
    let value = find(entries, key).filter(|value| **value != Value::Null)?;
    value.scalar_text()
}

/// The mapping of a key.
fn inner<'e>(entries: &'e mut Entries, key: &str) -> Option<&'e mut Entries> {
    match find_mut(entries, key) {
        Some(Value::Map(inner)) => Some(inner),
        _ => None,
    }
}

/// The mappings in the list of a key.
fn maps<'e>(entries: &'e mut Entries, key: &str) -> impl Iterator<Item = &'e mut Entries> {
    let items = match find_mut(entries, key) {
        Some(Value::List(items)) => items.as_mut_slice(),
        _ => &mut [],
    };
    items.iter_mut().filter_map(|item| match item {
        Value::Map(inner) => Some(inner),
        _ => None,
    })
}
