//! `coracle convert`: manifests from compose files, quadlet units, `docker run` lines and manifests for podman.
//!
//! All but manifests is brought into the form of a compose service (`project`, `quadlet`, `run_line`); `documents`
//! makes pods of them. All of that is a function of the texts, the variables and the files that they name: this file does
//! the reading and writing. What cannot be carried over is a comment at its place and a line on stderr, never left out in
//! silence.

mod command_line;
mod container;
mod deployment;
mod documents;
mod env;
mod files;
mod health;
mod include;
mod interpolate;
mod kind;
mod kube;
mod mounts;
mod names;
mod network;
mod numbers;
mod order;
mod plan;
mod ports;
mod project;
mod quadlet;
mod resources;
mod run_line;
mod shape;
mod sysctls;
mod text;
mod tree;
mod twice;
mod unit;
mod unit_order;
mod words;
mod work;

#[cfg(test)]
mod convert_test;
#[cfg(test)]
mod folder_test;
#[cfg(test)]
mod kube_test;
#[cfg(test)]
mod lost_test;
#[cfg(test)]
mod meaning_test;
#[cfg(test)]
mod names_test;
#[cfg(test)]
mod unit_order_test;
#[cfg(test)]
mod units_test;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::args::ConvertArgs;
use super::error::{CliError, Result};
use super::{put, validate};
use crate::spec::value::{MAX_VALUES, Value};
use crate::sys::file::{self, Durability};
use kind::{Kind, kinds};
use project::Project;

/// Limit of a file that a project names, in bytes: that of a ConfigMap.
const MAX_NAMED: u64 = 1 << 20;

/// What is around the texts.
struct Source<'a> {
    /// Reads a file by the path that is written.
    read: &'a dyn Fn(&str) -> std::result::Result<Vec<u8>, String>,
    /// The value of a variable.
    variable: &'a dyn Fn(&str) -> Option<String>,
    /// The folder that paths begin at.
    folder: &'a str,
    /// The profiles whose services are wanted.
    profiles: &'a [String],
    /// Variables that the files of variables name, and that are not set.
    missing: &'a [String],
}

impl Source<'_> {
    fn text(&self, path: &str) -> std::result::Result<String, String> {
        let bytes = (self.read)(path)?;
        String::from_utf8(bytes).map_err(|_| format!("`{path}` is not UTF-8"))
    }

    /// The name of the folder.
    fn folder_name(&self) -> &str {
        self.folder.rsplit('/').next().unwrap_or_default()
    }

    /// A path of the node.
    fn absolute(&self, path: &str) -> String {
        let home = || (self.variable)("HOME").unwrap_or_else(|| "/root".to_owned());
        let whole = match path.strip_prefix('~') {
            Some(rest) => format!("{}{rest}", home()),
            None if path.starts_with('/') => path.to_owned(),
            None => format!("{}/{path}", self.folder),
        };
        let mut parts: Vec<&str> = Vec::new();
        for part in whole.split('/') {
            match part {
                "" | "." => {}
                ".." => _ = parts.pop(),
                part => parts.push(part),
            }
        }
        format!("/{}", parts.join("/"))
    }
}

/// The documents of one pod.
struct File {
    name: String,
    documents: Vec<Value>,
}

/// What projects were converted to.
#[derive(Default)]
struct Output {
    /// Comments about the whole.
    head: tree::Entries,
    files: Vec<File>,
    /// Manifests that were there, by name.
    manifests: Vec<(String, String)>,
    /// What is not carried over.
    remarks: Vec<String>,
}

impl Output {
    /// Manifests with the names of their files, without ending.
    fn texts(&self) -> Vec<(String, String)> {
        let mut all: Vec<(String, String)> = Vec::new();
        for file in &self.files {
            let documents = file.documents.iter().map(text::yaml).collect::<Vec<_>>();
            all.push((file.name.clone(), documents.join("---\n")));
        }
        for (name, text) in &self.manifests {
            match all.iter_mut().find(|(known, _)| known == name) {
                Some((_, whole)) => *whole = format!("{}\n---\n{text}", whole.trim_end()),
                None => all.push((name.clone(), text.clone())),
            }
        }
        let head = text::yaml(&Value::Map(self.head.clone()));
        if let Some((_, first)) = all.first_mut().filter(|_| !head.is_empty()) {
            *first = format!("{head}{first}");
        }
        all
    }
}

/// Whether podman wrote a manifest.
pub(super) fn is_of_podman(bytes: &[u8]) -> bool {
    kube::is_of_podman(&String::from_utf8_lossy(bytes))
}

/// What was given: texts with their names, or a command.
enum Given {
    Files(Vec<(String, String)>),
    Line(Vec<String>),
}

impl Given {
    /// Whether something of it is compose's, which reads a `.env` beside its files.
    fn has_compose(&self) -> bool {
        match self {
            Self::Line(_) => false,
            Self::Files(files) => kinds(files).contains(&Kind::Compose),
        }
    }
}

/// Converts what was given. `name` is that of the project.
fn convert(
    given: &Given,
    source: &Source<'_>,
    name: Option<&str>,
    namespace: Option<&str>,
) -> std::result::Result<Output, String> {
    let mut projects = Vec::new();
    match given {
        Given::Line(words) => run_line::command(words, begin(&mut projects, "run"))?,
        Given::Files(files) => load(files, source, name, &mut projects)?,
    }
    let mut whole = Output::default();
    for mut project in projects {
        if let Some(name) = name {
            // The name of a single container is that of its pod.
            match &mut *project.services {
                [(only, _)] if project.origin != "compose" => name.clone_into(only),
                _ => project.name = Some(name.to_owned()),
            }
        }
        let mut left = MAX_VALUES;
        for (_, service) in &project.services {
            project::bounded(service, &mut left)?;
        }
        documents::documents(&project, source, namespace, &mut whole);
        for (file, content) in project.manifests {
            let (content, remarks) = kube::converted(&file, &content, namespace)?;
            whole.manifests.push((file, content));
            whole.remarks.extend(remarks);
        }
    }
    if whole.files.is_empty() && whole.manifests.is_empty() {
        let nothing = "there is nothing in it that a pod can be made of".to_owned();
        whole.remarks.insert(0, nothing);
        return Err(whole.remarks.join("; "));
    }
    Ok(whole)
}

fn begin<'p>(projects: &'p mut Vec<Project>, origin: &'static str) -> &'p mut Project {
    let at = projects.len();
    projects.push(Project {
        origin,
        ..Project::default()
    });
    &mut projects[at]
}

/// Makes projects of files: one of all compose files, one of all units, and so on.
fn load(
    files: &[(String, String)],
    source: &Source<'_>,
    name: Option<&str>,
    projects: &mut Vec<Project>,
) -> std::result::Result<(), String> {
    let kinds = kinds(files);
    let of = |wanted: Kind| {
        let mut all = Vec::new();
        for (file, kind) in files.iter().zip(&kinds) {
            if *kind == wanted {
                all.push(file.clone());
            }
        }
        all
    };
    let compose = of(Kind::Compose);
    if !compose.is_empty() {
        let read = project::load(&compose, source, name, begin(projects, "compose"));
        read.map_err(|why| match files.len() {
            1 => why,
            _ => in_files(&compose, why),
        })?;
    }
    let units = of(Kind::Quadlet);
    let mut manifests = of(Kind::Manifests);
    if !units.is_empty() {
        let project = begin(projects, "quadlet");
        let used = quadlet::load(&units, source, project)?;
        let is_used = |file: &str| used.contains(&source.absolute(file));
        // A unit has them in its pods already.
        manifests.retain(|(file, _)| !is_used(file));
        for (file, _) in of(Kind::Other) {
            if !is_used(&file) {
                project.left_out.push(files::passed_over(&file));
            }
        }
    }
    if !manifests.is_empty() {
        let manifest = kube::load(&manifests, name)?;
        begin(projects, "kube").manifests.push(manifest);
    }
    for (file, content) in of(Kind::Lines) {
        let read = run_line::lines(&content, begin(projects, "run"));
        read.map_err(|why| format!("{file}: {why}"))?;
    }
    Ok(())
}

/// An error that says which files it is about.
fn in_files(files: &[(String, String)], why: String) -> String {
    let names: Vec<&str> = files.iter().map(|(name, _)| &**name).collect();
    match names.iter().any(|name| why.contains(name)) {
        true => why,
        false => format!("{}: {why}", names.join(", ")),
    }
}

pub(super) fn run(args: &ConvertArgs) -> Result<ExitCode> {
    let paths = files::paths(args)?;
    let failed = || match &args.files[..] {
        // The cause names the file.
        [_, _, ..] => CliError::new("could not convert these files"),
        _ => match paths.first() {
            Some(path) => CliError::new(format!("could not convert `{}`", path.display())),
            None => CliError::new("could not convert the command"),
        },
    };
    let folder =
        files::folder(paths.first().map(PathBuf::as_path)).map_err(|e| failed().because(e))?;
    let base = folder.clone();
    let read = move |path: &str| {
        let place = base.join(path);
        let bytes = file::read_bounded(&place, MAX_NAMED);
        bytes.map_err(|error| format!("`{}`: {error}", place.display()))
    };
    let (given, passed_over) = match args.line.is_empty() {
        false => (Given::Line(args.line.clone()), Vec::new()),
        true => {
            let (files, passed_over) = files::contents(&paths)?;
            (Given::Files(files), passed_over)
        }
    };
    let usual = folder.join(".env");
    let env_files = match &*args.env_file {
        [] if given.has_compose() && usual.exists() => std::slice::from_ref(&usual),
        given => given,
    };
    let set = files::variables(env_files)?;
    let variable = |name: &str| files::own_variable(name).or_else(|| set.get(name));
    let source = Source {
        read: &read,
        variable: &variable,
        folder: &folder.to_string_lossy(),
        profiles: &args.profile,
        missing: &set.missing,
    };
    let converted = convert(
        &given,
        &source,
        args.name.as_deref(),
        args.namespace.as_deref(),
    );
    let mut output = converted.map_err(|why| {
        // It says what to do.
        let is_told = why.contains("--env-file");
        let is_unset = why.contains("is not set");
        let error = failed().because(why);
        match (is_told, is_unset) {
            (true, _) => error,
            (false, true) => error.hint("set it in the environment, `.env` or --env-file"),
            (false, false) => error.hint(
                "it takes compose files, quadlet units (.container, .pod …), `docker run` lines and podman's manifests (coracle help migrate)",
            ),
        }
    })?;
    output.remarks.extend(passed_over);
    finish(args, &output, &failed)
}

/// Checks and writes what was made; says what was not.
fn finish(args: &ConvertArgs, output: &Output, failed: &dyn Fn() -> CliError) -> Result<ExitCode> {
    let texts = output.texts();
    let whole: Vec<&str> = texts.iter().map(|(_, text)| &**text).collect();
    let whole = whole.join("---\n");
    // An error names the pod whose file it is in; what two files contradict each other in, only the whole shows.
    let check = |name: &str, text: &str| validate::validate_bytes(name, text.as_bytes()).errors;
    let mut errors = Vec::new();
    for (name, text) in &texts {
        errors.extend(check(&format!("manifest of {name}"), text));
    }
    if errors.is_empty() {
        errors = check("manifests", &whole);
    }
    if !errors.is_empty() {
        let mut error = failed();
        for why in &errors {
            error = error.because(why);
        }
        return Err(
            error.hint("the manifests would not be valid: change this before the conversion")
        );
    }
    for remark in &output.remarks {
        eprintln!("{remark}");
    }
    let write = |path: &Path, text: &str| {
        let failed = |e| CliError::new(format!("could not write `{}`", path.display())).because(e);
        file::replace(path, text.as_bytes(), 0o600, Durability::PowerCut).map_err(failed)
    };
    let files: Vec<(PathBuf, &str)> = match &args.output {
        None => {
            put(whole.as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(path) if path.as_os_str() == "-" => {
            put(whole.as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(path) if path.is_dir() => {
            let namespace = args.namespace.as_deref();
            let file = |(name, _): &(String, String)| path.join(file_name(name, namespace));
            texts.iter().map(|one| (file(one), &*one.1)).collect()
        }
        // A bare name has an empty folder.
        Some(path) if path.parent() == Some(Path::new("")) => {
            vec![(Path::new(".").join(path), &whole)]
        }
        Some(path) => vec![(path.clone(), &whole)],
    };
    // Manifests are edited after the conversion: nothing of that is lost.
    let other = |(path, text): &&(PathBuf, &str)| {
        path.symlink_metadata().is_ok() && file::read_text(path).ok().as_deref() != Some(*text)
    };
    if let Some((path, _)) = files.iter().find(other).filter(|_| !args.force) {
        return Err(CliError::new(format!(
            "`{}` exists and says something else",
            path.display()
        ))
        .hint(
            "nothing was written; --force replaces it, --namespace or another directory keeps both",
        ));
    }
    for (path, text) in &files {
        write(path, text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The name of a pod's file: projects of several namespaces may have pods of the same name.
fn file_name(pod: &str, namespace: Option<&str>) -> String {
    match namespace {
        None | Some("default") => format!("{pod}.yaml"),
        Some(namespace) => format!("{namespace}-{pod}.yaml"),
    }
}
