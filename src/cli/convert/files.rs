//! The files that are converted: those that are named, with what belongs to them, or what lies in the current directory.

use std::fmt;
use std::path::{Path, PathBuf};

use super::super::args::ConvertArgs;
use super::super::error::{CliError, Result};
use super::super::validate;
use super::MAX_NAMED;
use super::interpolate::{self, EnvFile};
use super::unit::{self, Unit};
use crate::sys::file;
use crate::types::InOrder;

/// The files beside a compose file that override it, of which the first counts.
const OVERRIDES: [&str; 4] = [
    "compose.override.yaml",
    "compose.override.yml",
    "docker-compose.override.yaml",
    "docker-compose.override.yml",
];

/// The files that were named, or those that compose looks for in the current directory.
pub(super) fn paths(args: &ConvertArgs) -> Result<Vec<PathBuf>> {
    if !args.files.is_empty() || !args.line.is_empty() {
        let mut all = Vec::new();
        for path in &args.files {
            let found = with_units(path).map_err(|e| unreadable(path, &e))?;
            all.extend(found);
        }
        // A unit may be given, and named by another one.
        let place = |path: &Path| {
            let folder = folder(Some(path)).unwrap_or_default();
            folder.join(path.file_name().unwrap_or(path.as_os_str()))
        };
        let mut places = Vec::new();
        all.retain(|path| {
            let place = place(path);
            let is_new = !places.contains(&place);
            places.push(place);
            is_new
        });
        return Ok(all);
    }
    if let Some(listed) = compose_file(args)? {
        return Ok(listed);
    }
    const NAMES: [&str; 4] = [
        "compose.yaml",
        "compose.yml",
        "docker-compose.yaml",
        "docker-compose.yml",
    ];
    match NAMES.iter().find(|name| Path::new(name).exists()) {
        Some(found) => Ok(with_override(PathBuf::from(found))),
        None => Err(
            CliError::usage("nothing to convert: there is no `compose.yaml` here")
                .hint("coracle convert FILE…, or coracle convert -- docker run …"),
        ),
    }
}

/// A compose file and the one beside it that overrides it, if there is one.
pub(super) fn with_override(found: PathBuf) -> Vec<PathBuf> {
    let beside = OVERRIDES.iter().map(|name| found.with_file_name(name));
    let over = beside.into_iter().find(|path| path.exists());
    let mut all = vec![found];
    all.extend(over);
    all
}

/// The files that `COMPOSE_FILE` lists, in the environment or in the file of variables.
fn compose_file(args: &ConvertArgs) -> Result<Option<Vec<PathBuf>>> {
    let usual = PathBuf::from(".env");
    let files = match args.env_file.as_slice() {
        [] if usual.exists() => std::slice::from_ref(&usual),
        given => given,
    };
    let variables = variables(files)?;
    let of = |name: &str| own_variable(name).or_else(|| variables.get(name));
    let separator = of("COMPOSE_PATH_SEPARATOR").unwrap_or_else(|| ":".to_owned());
    let listed = of("COMPOSE_FILE").filter(|listed| !listed.is_empty() && !separator.is_empty());
    Ok(listed.map(|listed| listed.split(&separator).map(PathBuf::from).collect()))
}

/// A variable of the environment.
pub(super) fn own_variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// What files of variables say.
pub(super) fn variables(paths: &[PathBuf]) -> Result<EnvFile> {
    let mut all = EnvFile::default();
    for path in paths {
        let bytes = file::read_bounded(path, MAX_NAMED).map_err(|e| unreadable(path, &e))?;
        let content = String::from_utf8_lossy(&bytes);
        let found = interpolate::env_file(&content, &own_variable);
        all.add(found.map_err(|e| unreadable(path, &e))?);
    }
    Ok(all)
}

fn unreadable(path: &Path, why: &dyn fmt::Display) -> CliError {
    CliError::new(format!("could not read `{}`", path.display())).because(why)
}

/// A unit and the units beside it that it names, each with the files of its folders.
pub(super) fn with_units(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut all = with_drop_ins(path)?;
    let mut units = vec![path.to_owned()];
    let mut at = 0;
    while let Some(unit) = units.get(at).cloned() {
        at += 1;
        // What cannot be read is refused where it is read for good.
        for name in named_by(&unit).unwrap_or_default() {
            let beside = unit.with_file_name(name);
            if !units.contains(&beside) && beside.is_file() {
                all.extend(with_drop_ins(&beside)?);
                units.push(beside);
            }
        }
    }
    Ok(all)
}

/// The names of the units that one names, itself or in the files of its folders.
fn named_by(path: &Path) -> Option<Vec<String>> {
    let name = path.to_string_lossy();
    if !unit::has_kind(&name) || !path.is_file() {
        return None;
    }
    let text = |path: &Path| file::read_text(path).ok();
    let mut unit = Unit::read(&name, &text(path)?).ok()?;
    for drop_in in with_drop_ins(path).ok()?.iter().skip(1) {
        unit.add(&drop_in.to_string_lossy(), &text(drop_in)?).ok()?;
    }
    Some(unit.names())
}

/// A unit and the files of its folders (`web.container.d`, `container.d`); for such a folder, its files.
fn with_drop_ins(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let is_unit = |path: &Path| unit::is_unit(&path.to_string_lossy());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (mut all, folders) = match unit::adds_to(&format!("{}/", path.display())) {
        Some(_) if path.is_dir() => (Vec::new(), vec![path.to_owned()]),
        None if is_unit(path) => {
            let (name, kind) = name.rsplit_once('.').unwrap_or_default();
            let folders = unit::folders(name, kind).into_iter();
            let folders = folders.map(|folder| path.with_file_name(folder + ".d"));
            (vec![path.to_owned()], folders.collect())
        }
        _ => return Ok(vec![path.to_owned()]),
    };
    for folder in folders.into_iter().filter(|folder| folder.is_dir()) {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let file = entry?.path();
            if file.extension().is_some_and(|ending| ending == "conf") {
                files.push(file);
            }
        }
        files.order();
        all.extend(files);
    }
    Ok(all)
}

/// The name by which a text is known: units, and what they name, are found by their folders.
fn name_of(path: &Path, beside_units: bool) -> String {
    let folder = folder(Some(path)).ok().filter(|_| beside_units);
    match (folder, path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name).display().to_string(),
        _ => path.display().to_string(),
    }
}

/// The folder that relative paths begin at: that of the first file.
pub(super) fn folder(first: Option<&Path>) -> std::io::Result<PathBuf> {
    let parent = first
        .filter(|path| path.as_os_str() != "-")
        .and_then(Path::parent);
    let parent = parent.filter(|path| !path.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).canonicalize()
}

/// What is said of a file beside units that is none.
pub(super) fn passed_over(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    format!("{name}: it is no unit, manifest or compose file")
}

/// Texts, each with its file's name.
type Texts = Vec<(String, String)>;

/// The texts of files, and remarks on those beside units that have none.
pub(super) fn contents(paths: &[PathBuf]) -> Result<(Texts, Vec<String>)> {
    let mut all = Vec::new();
    let mut remarks = Vec::new();
    let mut left = validate::MAX_FILE;
    let is_unit = |path: &PathBuf| unit::is_unit(&path.to_string_lossy());
    let beside_units = paths.iter().any(is_unit);
    for path in paths {
        let mut pass_over = || {
            let what = passed_over(&path.to_string_lossy());
            remarks.push(format!("quadlet: not carried over: {what}"));
        };
        let may_be_none = beside_units && !is_unit(path);
        if may_be_none && path.is_dir() {
            pass_over();
            continue;
        }
        let bytes = validate::read(path).map_err(|e| unreadable(path, &e))?;
        let size = bytes.len() as u64;
        if may_be_none && (size > validate::MAX_FILE || std::str::from_utf8(&bytes).is_err()) {
            pass_over();
            continue;
        }
        left = left
            .checked_sub(size)
            .ok_or_else(|| unreadable(path, &"the files have more than 10 MiB"))?;
        let content = String::from_utf8(bytes);
        let mut content = content.map_err(|_| unreadable(path, &"it is not UTF-8"))?;
        if content.starts_with('\u{feff}') {
            content.remove(0);
        }
        all.push((name_of(path, beside_units), content));
    }
    Ok((all, remarks))
}
