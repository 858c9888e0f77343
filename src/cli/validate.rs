//! `coracle validate`: checks manifests without an agent.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde::Serialize;

use super::args::ValidateArgs;
use super::error::{CliError, Result};
use super::put;
use super::table::one_line;
use crate::api::architecture;
use crate::config::{Effective, Files, node_name_of_host};
use crate::effects::credential::{self, Credentials};
use crate::spec::PodSecurity;
use crate::spec::conflicts::{self, conflicts};
use crate::spec::convert::{self, ConvertContext, Documents};
use crate::spec::encrypted::{self, Opened, Outcome};
use crate::spec::host_ports::{HostPort, host_ports};
use crate::spec::placement::node_labels;
use crate::spec::priority::{Others, PriorityClasses};
use crate::spec::workload::{cron, pod_names};
use crate::spec::{PodKey, PodSpec, ServiceAddress, ServiceSpec, after, is_manifest_file};
use crate::sys::zone;
use crate::types::{Gather, InOrder, ServiceRange};

/// Maximum size of a manifest, in bytes.
pub(super) const MAX_FILE: u64 = 10 << 20;

/// Results for one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Name as given on the command line.
    pub file: String,
    /// Errors.
    pub errors: Vec<String>,
    /// Warnings: valid, but without effect here.
    pub warnings: Vec<String>,
    /// `namespace/name` of its pods.
    pub pods: Vec<String>,
    /// `kind namespace/name` of its documents that stand for pods.
    pub workloads: Vec<String>,
    /// `namespace/name` of its services.
    pub services: Vec<String>,
    /// Names of its priority classes.
    pub priority_classes: Vec<String>,
    /// `kind namespace/name` of its configuration documents.
    pub configuration: Vec<String>,
}

/// Validates a file's bytes for a node that allows everything to pods.
pub fn validate_bytes(name: &str, bytes: &[u8]) -> Report {
    let (level, none) = ((PodSecurity::Privileged, false), PriorityClasses::new());
    let mut reports = [validated(level, name, bytes, &none)];
    add_circles(&mut reports);
    let [(report, _)] = reports;
    report
}

/// The report of one file by itself, for a node with this level, and what it defines. `beside`: the known priority classes
/// of other files.
fn validated(
    (pod_security, strict): (PodSecurity, bool),
    name: &str,
    bytes: &[u8],
    beside: &PriorityClasses,
) -> (Report, Documents) {
    let mut defined = Documents::default();
    let mut report = Report {
        file: name.to_owned(),
        ..Report::default()
    };
    let (opened, unread) = open(name, bytes);
    let context = ConvertContext {
        pod_security,
        strict,
        opened: &opened,
        zones: &zone::read(cron::zones(bytes)),
        ..ConvertContext::of("")
    };
    match convert::documents_beside(bytes, name, &context, Others::Some(beside)) {
        Ok(found) => {
            let with_file = |warning: String| match warning.starts_with(name) {
                true => warning,
                false => format!("{name}: {warning}"),
            };
            let warned = found.all_warnings().into_iter().map(with_file);
            report.warnings = warned.chain(unread).collect();
            let workloads = found.workloads.iter();
            report.workloads = workloads.map(|w| w.key.to_string()).collect();
            let pods = pod_names(found.pods.iter(), found.workloads.iter());
            report.pods = pods.iter().map(PodKey::to_string).collect();
            let services = found.services.iter();
            let classes = found.priority_classes.iter();
            let names = classes.filter_map(|class| class.metadata.name.clone());
            report.priority_classes = names.collect();
            let objects = found.configuration.iter();
            report.configuration = objects.map(|(key, _)| key.short()).collect();
            report.services = services.map(|s| s.spec.key.to_string()).collect();
            defined = found;
        }
        Err(errors) => {
            report.errors = errors.iter().map(ToString::to_string).collect();
            if super::convert::is_of_podman(bytes) {
                report.warnings.push(format!(
                    "{name}: podman wrote this; `coracle convert {name}` changes what Kubernetes refuses"
                ));
            }
        }
    }
    (report, defined)
}

/// The pods of a file that is valid by itself, or all its errors.
pub(super) fn pods(name: &str, bytes: &[u8]) -> std::result::Result<Vec<PodSpec>, Vec<String>> {
    let (level, none) = ((PodSecurity::Privileged, false), PriorityClasses::new());
    let (report, defined) = validated(level, name, bytes, &none);
    match report.errors.is_empty() {
        true => Ok(defined.pods),
        false => Err(report.errors),
    }
}

/// Decrypts the encrypted Secrets of a file as far as this machine can. What it has no key for is a warning, because the
/// manifest may be meant for another machine; the rest of the document is checked.
fn open(name: &str, bytes: &[u8]) -> (Opened, Vec<String>) {
    let mut warnings = Vec::new();
    let mut opened = Credentials::default().open(encrypted::found(bytes));
    for (sealed, outcome) in &mut opened {
        if let Outcome::Refused(why) = outcome
            && !credential::is_bad_everywhere(why)
        {
            let secret = format!("{}/{}", sealed.namespace, sealed.name);
            warnings.push(format!(
                "{name}: secret {secret}: its encrypted content was not checked: {why}; an agent on this machine would refuse it"
            ));
            *outcome = Outcome::Unread;
        }
    }
    (opened, warnings)
}

/// Adds the circles of pods that wait for each other to the reports of all files concerned.
fn add_circles(reports: &mut [(Report, Documents)]) {
    let circles = after::circles(reports.iter().flat_map(|(_, defined)| &defined.pods));
    for circle in circles {
        for (report, defined) in reports.iter_mut() {
            if defined
                .pods
                .iter()
                .any(|pod| circle.members.contains(&pod.key))
            {
                let sentence = circle.sentence(|key| format!("`{key}`"));
                report.errors.push(format!("{}: {sentence}", report.file));
            }
        }
    }
}

/// Checks the pods again by the priority classes of all files.
fn add_classes(level: (PodSecurity, bool), inputs: &[Input], reports: &mut [(Report, Documents)]) {
    let named = |class: &PriorityClass| {
        let name = class.metadata.name.clone().unwrap_or_default();
        (name, class.clone())
    };
    let all = reports.iter().flat_map(|(_, d)| &d.priority_classes);
    let classes: PriorityClasses = all.map(named).gather();
    let may_use = |report: &Report| report.errors.is_empty() && !classes.is_empty();
    let both = reports.iter_mut().zip(inputs);
    for (checked, input) in both.filter(|((report, _), _)| may_use(report)) {
        *checked = check(level, input, &classes);
    }
}

/// Warns of pods that would wait on this node for another one. Those of one template say it once.
fn add_elsewhere(node: &Node, reports: &mut [(Report, Documents)]) {
    for (report, defined) in reports {
        let mut said = BTreeSet::new();
        for pod in &defined.pods {
            let of = match &pod.workload {
                Some(workload) => workload.to_string(),
                None => format!("pod {}", pod.key),
            };
            if !pod.placement.matches(&node.name, &node.labels) && said.insert(of.clone()) {
                report.warnings.push(format!(
                    "{}: {of}: its nodeSelector or affinity does not match this machine as a node (`{}`), which would not \
                     run it; the settings `nodeLabels` and `coracle.nodeName` say what it has to match",
                    report.file, node.name
                ));
            }
        }
    }
}

/// Warns of services with an address that this machine's settings give to no service.
fn add_strange_addresses(node: &Node, reports: &mut [(Report, Documents)]) {
    for (report, defined) in reports {
        for ServiceSpec { key, address, .. } in defined.services.iter().map(|s| &s.spec) {
            let ServiceAddress::Given(given) = address else {
                continue;
            };
            for ip in given {
                let range = node.service_ranges.iter().find(|r| r.is_of_family(*ip));
                if let Some(range) = range.filter(|range| !range.holds(*ip)) {
                    report.warnings.push(format!(
                        "{}: service {key}: its clusterIP {ip} is not in the valid range of this machine, which is {range} \
                         (`coracle.serviceCIDR`): a host with that address cannot be reached from there",
                        report.file
                    ));
                }
            }
        }
    }
}

/// Warns of pods that need a port of the node which another one of the files has: only one of them can run.
fn add_shared_ports(reports: &mut [(Report, Documents)]) {
    let mut taken: BTreeMap<u16, Vec<(HostPort, PodKey)>> = BTreeMap::new();
    for (report, defined) in reports {
        for pod in &defined.pods {
            for port in host_ports(pod) {
                let others = taken.entry(port.number).or_default();
                let mut owners = others.iter().filter(|(other, _)| other.overlaps(&port));
                if let Some((_, owner)) = owners.find(|(_, owner)| *owner != pod.key) {
                    let (file, number, protocol) = (&report.file, port.number, port.protocol);
                    report.warnings.push(format!(
                        "{file}: pod {}: its hostPort {number}/{} is that of pod {owner}, too: only one of them can run",
                        pod.key,
                        protocol.as_str()
                    ));
                    continue;
                }
                others.push((port, pod.key.clone()));
            }
        }
    }
}

/// Reports objects that an earlier file of the directory defines already: the agent takes the first one. Files that are
/// named may be meant for several nodes, so that theirs are warnings.
fn add_conflicts(named: bool, reports: &mut [(Report, Documents)]) {
    for index in 0..reports.len() {
        let (earlier, rest) = reports.split_at_mut(index);
        let Some((report, defined)) = rest.first_mut() else {
            return;
        };
        let valid = earlier.iter().filter(|(other, _)| other.errors.is_empty());
        let others: Vec<(&Path, &Documents)> = valid
            .map(|(other, defined)| (Path::new(&other.file), defined))
            .collect();
        let path = PathBuf::from(&report.file);
        let name = conflicts::name(&path);
        // What contradicts itself is wrong on every node.
        let within = conflicts(&path, defined, &[]);
        let found = conflicts(&path, defined, &others).into_iter();
        let (within, found): (Vec<_>, Vec<_>) = found.partition(|what| within.contains(what));
        let file = report.file.clone();
        let with_file = |what: String| match what.strip_prefix(&name) {
            Some(rest) => format!("{file}{rest}"),
            None => what,
        };
        report.errors.extend(within.into_iter().map(with_file));
        let found = found.into_iter().map(with_file);
        match named {
            true => report.warnings.extend(found),
            false => report.errors.extend(found),
        }
    }
}

/// What the other files of a directory define already of a manifest that is to be saved there under this path.
pub(super) fn already_defined(path: &Path, bytes: &[u8]) -> Vec<String> {
    let level = (PodSecurity::Privileged, false);
    let folder = path.parent().unwrap_or(Path::new("."));
    // What is not there or not read defines nothing.
    let files = files(folder).unwrap_or_default();
    let files = files.iter().filter(|file| *file != path);
    let inputs: Vec<Input> = files.map(|file| Input::of(file)).collect();
    let none = PriorityClasses::new();
    let reports = inputs.iter().map(|input| check(level, input, &none));
    let mut reports: Vec<(Report, Documents)> = reports.collect();
    add_classes(level, &inputs, &mut reports);
    let (_, new) = validated(level, &conflicts::name(path), bytes, &none);
    let others: Vec<(&Path, &Documents)> = reports
        .iter()
        .filter(|(report, _)| report.errors.is_empty())
        .map(|(report, defined)| (Path::new(&report.file), defined))
        .collect();
    conflicts(path, &new, &others)
}

pub(super) fn run(args: &ValidateArgs) -> Result<ExitCode> {
    let node = Node::of_this_machine();
    let level = (
        args.pod_security.unwrap_or(node.pod_security),
        args.manifests.strict,
    );
    // Files that are named may belong together, as a shell lists those of a directory.
    let (folders, named): (Vec<PathBuf>, Vec<PathBuf>) = args
        .manifests
        .all_paths()
        .cloned()
        .partition(|path| path.is_dir());
    let mut reports = Vec::new();
    let groups = folders.into_iter().map(|folder| (false, vec![folder]));
    for (named, group) in groups.chain([(true, named)]) {
        let begin = reports.len();
        let mut inputs = Vec::new();
        for path in group {
            inputs.extend(files(&path)?.iter().map(|file| Input::of(file)));
        }
        let checked = inputs
            .iter()
            .map(|input| check(level, input, &PriorityClasses::new()));
        reports.extend(checked);
        add_classes(level, &inputs, &mut reports[begin..]);
        add_conflicts(named, &mut reports[begin..]);
        add_shared_ports(&mut reports[begin..]);
    }
    add_circles(&mut reports);
    add_elsewhere(&node, &mut reports);
    add_strange_addresses(&node, &mut reports);
    let reports: Vec<Report> = reports.into_iter().map(|(report, _)| report).collect();
    let text = match args.output.output {
        Some(_) => {
            let json = serde_json::to_string_pretty(&reports);
            json.map_err(|e| CliError::new("could not print").because(e))? + "\n"
        }
        None => reports.iter().map(show).collect(),
    };
    put(text.as_bytes())?;
    let bad = reports.iter().any(|report| !report.errors.is_empty());
    Ok(ExitCode::from(u8::from(bad)))
}

/// What this machine is as a node.
struct Node {
    name: String,
    labels: BTreeMap<String, String>,
    pod_security: PodSecurity,
    /// Those that are set.
    service_ranges: Vec<ServiceRange>,
}

impl Node {
    /// By this machine's settings. Without them, or with such that the agent would refuse, everything is allowed to pods.
    fn of_this_machine() -> Self {
        let files = Files::new(None, None).read().unwrap_or_default();
        let config = Effective::build(&files, &[]).ok().map(|s| s.config);
        let named = config.as_ref().map(|config| config.node_name.clone());
        let name = named.filter(|name| !name.is_empty()).unwrap_or_else(|| {
            let host = nix::unistd::gethostname().unwrap_or_default();
            node_name_of_host(&host.to_string_lossy())
        });
        let own = config.as_ref().map(|config| config.node_labels.clone());
        let ranges = config.iter().flat_map(|config| &config.service_cidrs);
        Self {
            labels: node_labels(&name, architecture(), &own.unwrap_or_default()),
            name,
            service_ranges: ranges
                .map(|range| ServiceRange::within(range.network(), range.broadcast()))
                .collect(),
            pod_security: config.map_or(PodSecurity::Privileged, |config| config.pod_security),
        }
    }
}

/// What kustomize calls its file.
const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// Returns the path itself, or the files that the agent would read in that directory.
pub(super) fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e| CliError::new(format!("could not read `{}`", path.display())).because(e);
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let (mut found, mut folder) = (Vec::new(), None);
    for entry in path.read_dir().map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let name = file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if KUSTOMIZATIONS.contains(&name.as_str()) {
            let dir = path.display();
            let error = format!("`{dir}` is built by kustomize: its files are no manifests yet");
            let hint = format!("build them: `kubectl kustomize {dir} > FILE`, and give that file");
            return Err(CliError::new(error).hint(hint));
        }
        // The agent refuses a link that leads nowhere: it may lead to a disk that is away.
        let dangling = file.is_symlink() && !file.exists();
        if (file.is_file() || dangling) && is_manifest_file(&name) {
            found.push(file);
        } else if file.is_dir() {
            folder = Some(file);
        }
    }
    found.order();
    if found.is_empty() {
        let error = CliError::new(format!("no manifests in `{}`", path.display())).code(3);
        return Err(match folder {
            Some(folder) => error.hint(format!(
                "folders inside are not read: name them, such as `{}`",
                folder.display()
            )),
            None => error,
        });
    }
    Ok(found)
}

/// A file that was read. Standard input and pipes can be read only once.
struct Input {
    name: String,
    content: std::io::Result<Vec<u8>>,
}

impl Input {
    fn of(file: &Path) -> Self {
        let name = match file.as_os_str() == "-" {
            true => "stdin".to_owned(),
            false => file.display().to_string(),
        };
        Self {
            name,
            content: read(file),
        }
    }
}

fn check(
    level: (PodSecurity, bool),
    input: &Input,
    beside: &PriorityClasses,
) -> (Report, Documents) {
    let failed = |error| {
        let report = Report {
            file: input.name.clone(),
            errors: vec![format!("{}: {error}", input.name)],
            ..Report::default()
        };
        (report, Documents::default())
    };
    match &input.content {
        Ok(bytes) if bytes.len() as u64 > MAX_FILE => failed("larger than 10 MiB".to_owned()),
        Ok(bytes) => validated(level, &input.name, bytes, beside),
        Err(error) => failed(format!("could not be read: {error}")),
    }
}

pub(super) fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut input: Box<dyn Read> = match file.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(file)?),
    };
    (&mut input).take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Formats what was found. File names and keys of manifests may have control characters, which are escaped.
fn show(report: &Report) -> String {
    let mut text = String::new();
    for (what, lines) in [("warning", &report.warnings), ("error", &report.errors)] {
        for line in lines {
            text.push_str(&format!("{what}: {}\n", one_line(line)));
        }
    }
    if report.errors.is_empty() {
        let services = report.services.iter().map(|s| format!("service {s}"));
        let classes = report.priority_classes.iter();
        let classes = classes.map(|class| format!("priorityclass {class}"));
        let pods = report.pods.iter().cloned();
        let objects = report.configuration.iter().cloned();
        let workloads = report.workloads.iter().cloned();
        let pods = pods.chain(workloads);
        let all: Vec<String> = pods.chain(services).chain(objects).chain(classes).collect();
        let all = match all.is_empty() {
            true => "no documents".to_owned(),
            false => all.join(", "),
        };
        let ok = format!("{}: ok: {all}", report.file);
        text.push_str(&format!("{}\n", one_line(&ok)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_runs_no_pod_names_none() {
        for (spec, pods) in [
            ("completions: 2, parallelism: 2", &["default/j-0-0"][..]),
            ("parallelism: 0", &[]),
            ("completions: 0", &[]),
            ("suspend: true", &[]),
            ("activeDeadlineSeconds: 0", &[]),
        ] {
            let text = format!(
                "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: j}}\nspec: {{{spec}, template: {{spec: \
                 {{restartPolicy: Never, containers: [{{name: main, image: i}}]}}}}}}\n"
            );
            let report = validate_bytes("f", text.as_bytes());
            assert_eq!(report.errors, [""; 0], "{spec}");
            assert_eq!(report.pods, pods, "{spec}");
            assert_eq!(report.workloads, ["job default/j"], "{spec}");
        }
    }

    #[test]
    fn names_and_keys_cannot_control_the_terminal() {
        let good = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n";
        let bad = format!("{good}\"x\\e[2J\\ny\": 1\n");
        for (text, begin) in [(good, "a\\u{1b}\\nb: ok: "), (&bad, "error: ")] {
            let shown = show(&validate_bytes("a\u{1b}\nb", text.as_bytes()));
            assert!(shown.starts_with(begin), "{shown}");
            assert!(!shown.contains('\u{1b}'), "{shown}");
            assert_eq!(shown.lines().count(), 1, "{shown}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_also_a_link_that_leads_nowhere() {
        let dir = std::env::temp_dir().join(format!("coracle-dangling-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("ok.yaml"), "").unwrap();
        for link in ["away.yaml", ".#lock"] {
            std::os::unix::fs::symlink("/nowhere", dir.join(link)).unwrap();
        }
        let large = std::fs::File::create(dir.join("large.yaml")).unwrap();
        large.set_len(MAX_FILE + 1).unwrap();
        let said = |file: &PathBuf| {
            let level = (PodSecurity::Privileged, false);
            let (report, _) = check(level, &Input::of(file), &PriorityClasses::new());
            let name = dir.display().to_string() + "/";
            report.errors.concat().replace(&name, "")
        };
        let said: Vec<String> = files(&dir).unwrap().iter().map(said).collect();
        assert_eq!(
            said,
            [
                "away.yaml: could not be read: No such file or directory (os error 2)",
                "large.yaml: larger than 10 MiB",
                ""
            ]
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn an_address_outside_the_range_of_this_machine_is_warned_about() {
        let node = Node {
            name: "n".to_owned(),
            labels: BTreeMap::new(),
            pod_security: PodSecurity::Privileged,
            service_ranges: vec![ServiceRange::within(
                "10.77.16.0".parse().unwrap(),
                "10.77.31.255".parse().unwrap(),
            )],
        };
        for (address, warned) in [
            ("10.77.16.9", false),
            ("10.77.16.0", true),
            ("10.96.0.10", true),
            ("None", false),
            // Its range is chosen by the agent.
            ("fd00::9", false),
        ] {
            let text = format!(
                "apiVersion: v1\nkind: Service\nmetadata: {{name: s}}\nspec: {{clusterIP: \"{address}\", selector: {{a: b}}, \
                 ports: [{{port: 80}}]}}\n"
            );
            let level = (PodSecurity::Privileged, false);
            let mut all = [validated(
                level,
                "f",
                text.as_bytes(),
                &PriorityClasses::new(),
            )];
            add_strange_addresses(&node, &mut all);
            let [(Report { warnings, .. }, _)] = &all;
            let said = warnings
                .iter()
                .any(|w| w.contains("which is 10.77.16.1-10.77.31.254"));
            assert_eq!(said, warned, "{address}: {warnings:?}");
            assert_eq!(
                warnings.len(),
                usize::from(warned),
                "{address}: {warnings:?}"
            );
        }
    }
}
