//! Manifests for podman: those that `podman kube generate` prints, and those that a `.kube` unit plays. What podman
//! accepts and Kubernetes refuses is changed; everything else stays as it is written.

use std::path::Path;

use super::project::Project;
use super::text;
use super::tree::{Commented, Entries, entries, is_on, map, scalar, set, text as string};
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
    let mut keys = ["apiVersion:", "kind:"].into_iter();
    keys.all(|key| content.lines().any(|line| line.starts_with(key)))
}

/// Whether podman wrote a manifest: it says so, or remembers how it made the containers.
pub(super) fn is_of_podman(content: &str) -> bool {
    let mut lines = content.lines().map(str::trim_start);
    lines.any(|line| {
        line.starts_with("# Created with podman-")
            || OF_ENGINES.iter().any(|start| line.starts_with(start))
    })
}

/// A project of the files that are manifests. `given` is the value of `--name`.
pub(super) fn load(
    files: &[(String, String)],
    given: Option<&str>,
) -> Result<Option<Project>, String> {
    let Some((first, _)) = files.first() else {
        return Ok(None);
    };
    if given.is_some() {
        return Err("manifests have names of their own: --name is for what has none".to_owned());
    }
    let stem = Path::new(first).file_stem().unwrap_or_default();
    let file = match stem.to_string_lossy() {
        stem if stem == "-" => "pod".to_owned(),
        stem => stem.into_owned(),
    };
    for (name, text) in files.iter().filter(|_| files.len() > 1) {
        // Of all together, an error would not say which one has it.
        parsed(name, text)?;
    }
    let texts: Vec<&str> = files.iter().map(|(_, text)| &**text).collect();
    Ok(Some(Project {
        origin: "kube",
        // Of several files, one may have the claims of another.
        manifests: vec![(file, texts.join("\n---\n"))],
        ..Project::default()
    }))
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
        let whole = Value::Map(std::mem::take(document));
        let kind = scalar(&whole, "kind").unwrap_or_default();
        let metadata = whole.get("metadata");
        let name = metadata.and_then(|metadata| scalar(metadata, "name"));
        self.of = format!("{kind} {}", name.unwrap_or_default());
        self.unconfined.clear();
        let Value::Map(mut fields) = whole else {
            return;
        };
        // What an API server would have written.
        let status = fields.iter().any(|(key, _)| key == "status");
        self.changed |= status;
        fields.retain(|(key, _)| key != "status");
        if let Some(metadata) = inner(&mut fields, "metadata") {
            self.metadata(metadata);
            if let Some(namespace) = namespace.filter(|_| kind != "Namespace") {
                self.changed = true;
                set(metadata, "namespace", string(namespace));
            }
        }
        let metadata = fields.iter().find(|(key, _)| key == "metadata");
        let namespace = metadata.and_then(|(_, metadata)| scalar(metadata, "namespace"));
        if let Some(spec) = inner(&mut fields, "spec") {
            match &*kind {
                "Pod" => self.pod(spec, namespace.as_deref()),
                CLAIM => self.claim(spec),
                "CronJob" => {
                    let job = inner(spec, "jobTemplate").and_then(|job| inner(job, "spec"));
                    self.template(job, namespace.as_deref());
                }
                _ => self.template(Some(spec), namespace.as_deref()),
            }
        } else if kind == CLAIM {
            let mut spec = Entries::new();
            self.claim(&mut spec);
            set(&mut fields, "spec", Value::Map(spec));
        }
        *document = fields;
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
        let made = |(key, _): &(String, Value)| key == "creationTimestamp";
        self.changed |= metadata.iter().any(made);
        metadata.retain(|entry| !made(entry));
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
            metadata.retain(|(key, _)| key != "annotations");
        }
    }

    /// Turns the seccomp filter off for a container that has none under podman.
    fn seccomp(&mut self, container: &mut Entries) {
        let written = Value::Map(container.clone());
        let name = scalar(&written, "name").unwrap_or_default();
        if !self.unconfined.contains(&name) {
            return;
        }
        let security = written.get("securityContext").cloned();
        let mut security = entries(security.as_ref()).to_vec();
        if !security.iter().any(|(key, _)| key == "seccompProfile") {
            let profile = map([("type", string("Unconfined"))]);
            set(&mut security, "seccompProfile", profile);
            set(container, "securityContext", Value::Map(security));
        }
    }

    /// Gives an object a name that Kubernetes allows.
    fn name(&mut self, place: &mut Entries, key: &str, is_refused: fn(&str) -> bool) {
        let entry = place.iter_mut().find(|(k, _)| k == key);
        let Some((_, Value::String(name))) = entry else {
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
        let Some((_, Value::String(name))) = place.iter_mut().find(|(key, _)| key == "name") else {
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
        let own_ids = spec.iter().any(|(key, value)| {
            key == "hostUsers" && value.scalar_text().as_deref() == Some("false")
        });
        let mut volumes = Names::new();
        for volume in maps(spec, "volumes") {
            self.volume_name(volume, &mut volumes);
            self.tmpfs(volume);
            if let Some(claim) = inner(volume, "persistentVolumeClaim") {
                self.name(claim, "claimName", |name| dns_subdomain(name).is_some());
                let claim = Value::Map(claim.clone());
                if let Some(name) = scalar(&claim, "claimName") {
                    self.claims.push((name, namespace.map(str::to_owned)));
                }
            }
        }
        for key in ["initContainers", "containers"] {
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
        let tmpfs = |path: &Entries| {
            path.iter()
                .any(|(key, value)| key == "path" && *value == string("tmpfs"))
        };
        if inner(volume, "hostPath").is_some_and(|path| tmpfs(path)) {
            volume.retain(|(key, _)| key != "hostPath");
            set(volume, "emptyDir", map([("medium", string("Memory"))]));
            self.changed = true;
        }
    }

    /// Takes the options of a mount from its path, as in `/data:ro`.
    fn options(&mut self, mount: &mut Entries) {
        let path = mount.iter_mut().find(|(key, _)| key == "mountPath");
        let Some((_, Value::String(path))) = path else {
            return;
        };
        let Some((place, options)) = path.clone().rsplit_once(':').map(owned) else {
            return;
        };
        if options.split(',').all(|option| OPTIONS.contains(&option)) {
            *path = place;
            self.changed = true;
            if options.split(',').any(|option| option == "ro") {
                set(mount, "readOnly", Value::Bool(true));
            }
            if options.split(',').any(|option| option == "U") {
                self.lost(mount, "not carried over: `U`: its files keep their owner");
            }
        }
    }

    /// A privileged container has all of /proc without the field; another one would need IDs of its own for it.
    fn proc_mount(&mut self, security: &mut Entries, own_ids: bool) {
        let all = |(key, value): &(String, Value)| {
            key == "procMount" && value.scalar_text().as_deref() == Some("Unmasked")
        };
        if own_ids || !security.iter().any(all) {
            return;
        }
        security.retain(|entry| !all(entry));
        self.changed = true;
        if !is_on(&Value::Map(security.clone()), "privileged") {
            let what = "not carried over: `procMount: Unmasked`: it needs `hostUsers: false`";
            self.lost(security, what);
        }
    }

    /// Adds what a claim needs and podman leaves out: access modes and a size.
    fn claim(&mut self, spec: &mut Entries) {
        let has = |spec: &Entries, key: &str| spec.iter().any(|(k, _)| k == key);
        if !has(spec, "accessModes") {
            self.changed = true;
            let modes = Value::List(vec![string("ReadWriteOnce")]);
            set(spec, "accessModes", modes);
        }
        if !has(spec, "resources") {
            self.lost(spec, "it had no size so far; this one is the limit");
            set(spec, "resources", size());
        }
    }

    /// Makes the claims that pods name and no document defines: podman creates such volumes by itself.
    fn missing_claims(&mut self, all: &[Value]) -> Vec<Value> {
        let mut made: Vec<Value> = Vec::new();
        let name_of = |document: &Value| {
            let metadata = document.get("metadata")?;
            let is_claim = scalar(document, "kind").as_deref() == Some(CLAIM);
            let named = scalar(metadata, "name").filter(|_| is_claim)?;
            Some((named, scalar(metadata, "namespace")))
        };
        for claim in std::mem::take(&mut self.claims) {
            let known = |document: &Value| name_of(document).as_ref() == Some(&claim);
            if all.iter().chain(&made).any(known) {
                continue;
            }
            let (name, namespace) = claim;
            let mut metadata = vec![("name".to_owned(), string(name.clone()))];
            if let Some(namespace) = namespace {
                set(&mut metadata, "namespace", string(namespace));
            }
            let mut document = vec![
                ("apiVersion".to_owned(), string("v1")),
                ("kind".to_owned(), string(CLAIM)),
                ("metadata".to_owned(), Value::Map(metadata)),
            ];
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

fn owned((a, b): (&str, &str)) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

fn size() -> Value {
    map([("requests", map([("storage", string("10Gi"))]))])
}

/// The mapping of a key.
fn inner<'e>(entries: &'e mut Entries, key: &str) -> Option<&'e mut Entries> {
    match entries.iter_mut().find(|(k, _)| k == key) {
        Some((_, Value::Map(inner))) => Some(inner),
        _ => None,
    }
}

/// The mappings in the list of a key.
fn maps<'e>(entries: &'e mut Entries, key: &str) -> impl Iterator<Item = &'e mut Entries> {
    let list = entries.iter_mut().find(|(k, _)| k == key);
    let items = match list {
        Some((_, Value::List(items))) => items.as_mut_slice(),
        _ => &mut [],
    };
    items.iter_mut().filter_map(|item| match item {
        Value::Map(inner) => Some(inner),
        _ => None,
    })
}
