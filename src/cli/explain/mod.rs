//! `coracle explain`: what fields of manifests and settings mean, and what this version does with them. No agent is asked.

mod show;
mod table;

use std::process::ExitCode;

use super::args::ExplainArgs;
use super::error::{CliError, Result};
use super::put;
use crate::manual::fields::{Field, Section};
use crate::spec::{self, suggest};
use table::Table;

/// What is explained: a kind, or a field of it.
struct Found<'t> {
    kind: &'t Section,
    field: Option<&'t Field>,
    /// The fields below.
    below: Option<&'t Section>,
}

pub(super) fn run(args: &ExplainArgs) -> Result<ExitCode> {
    let table = Table::load();
    let text = match &args.what {
        None => show::kinds(&table),
        Some(path) => {
            let found = find(&table, path)?;
            match args.output.output {
                Some(_) => show::json(&table, &found, args.recursive),
                None => show::page(&table, &found, args.recursive),
            }
        }
    };
    put(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Follows a path such as `pod.spec.containers`.
fn find<'t>(table: &'t Table, path: &str) -> Result<Found<'t>> {
    let annotation = path.split('/').next().unwrap_or_default();
    let of_pod = format!("pod.metadata.annotations.{path}");
    let path = match annotation.ends_with("coracle.dev") && path.contains('/') {
        true if !path.contains("annotations") => of_pod.as_str(),
        true | false => path,
    };
    let (first, mut rest) = path.split_once('.').unwrap_or((path, ""));
    let kind = table.kind(first).filter(|kind| spec_reads(kind));
    let kind = kind.ok_or_else(|| unknown_kind(table, first))?;
    let mut found = Found {
        kind,
        field: None,
        below: Some(kind),
    };
    let mut walked = first.to_owned();
    while !rest.is_empty() {
        let step = found.below.and_then(|section| step(section, rest));
        let Some((field, after)) = step else {
            return Err(unknown_field(table, &found, &walked, rest));
        };
        walked = format!("{walked}.{}", field.name);
        found.field = Some(field);
        found.below = table.below(field);
        rest = after;
    }
    Ok(found)
}

/// What a path that is being typed may become.
pub(super) fn candidates(path: &str) -> Vec<String> {
    let table = Table::load();
    let Some((above, _)) = path.rsplit_once('.') else {
        let kinds = table
            .0
            .iter()
            .filter(|kind| kind.version.is_some() && spec_reads(kind));
        let names = kinds.filter_map(|kind| match kind.name == table::SETTINGS_KIND {
            true => kind.names.first().cloned(),
            false => Some(kind.name.to_lowercase()),
        });
        return names.collect();
    };
    let found = find(&table, above).ok().and_then(|found| found.below);
    let fields = found.into_iter().flat_map(|section| &section.fields);
    fields
        .map(|field| format!("{above}.{}", field.name))
        .collect()
}

/// Whether documents of this kind are read. Settings are no documents.
fn spec_reads(kind: &Section) -> bool {
    let mut refused = spec::refused_kinds().flat_map(|(kinds, _)| kinds);
    kind.name == table::SETTINGS_KIND || !refused.any(|name| *name == kind.name)
}

/// The field that a path begins with, and the rest of the path. Names of annotations have dots in them.
fn step<'t, 'p>(section: &'t Section, path: &'p str) -> Option<(&'t Field, &'p str)> {
    let path = path.trim_start_matches(['[', '\'', '"']);
    section.fields.iter().find_map(|field| {
        let rest = path.strip_prefix(field.name.as_str())?;
        let rest = rest.trim_start_matches(['\'', '"', ']']);
        // An index counts for nothing: all items have the same fields.
        let index = rest.strip_prefix('[').and_then(|r| r.split_once(']'));
        let indexed =
            index.filter(|(inner, _)| inner.bytes().all(|b| b.is_ascii_digit() || b == b'*'));
        let rest = indexed.map_or(rest, |(_, after)| after);
        match rest.strip_prefix('.') {
            Some(rest) => Some((field, rest)),
            None if rest.is_empty() || rest.starts_with('[') => Some((field, rest)),
            None => None,
        }
    })
}

/// Short names of kinds that are refused.
const SHORT: &[(&str, &str)] = &[
    ("crd", "CustomResourceDefinition"),
    ("hpa", "HorizontalPodAutoscaler"),
    ("ing", "Ingress"),
    ("limits", "LimitRange"),
    ("netpol", "NetworkPolicy"),
    ("pdb", "PodDisruptionBudget"),
    ("quota", "ResourceQuota"),
    ("sc", "StorageClass"),
];

fn unknown_kind(table: &Table, word: &str) -> CliError {
    let lower = word.to_ascii_lowercase();
    let short = SHORT.iter().find(|(short, _)| *short == lower);
    let meant = short.map_or(lower.clone(), |(_, kind)| kind.to_ascii_lowercase());
    let same = |name: &&&str| {
        let name = name.to_ascii_lowercase();
        let plural = match name.strip_suffix('y') {
            Some(stem) => format!("{stem}ies"),
            None => format!("{name}s"),
        };
        meant == name || meant == plural || meant == format!("{name}es")
    };
    let mut refused = spec::refused_kinds();
    let refused = refused.find_map(|(kinds, instead)| Some((*kinds.iter().find(same)?, instead)));
    if let Some((kind, instead)) = refused {
        return CliError::new(format!(
            "{kind} is not supported: documents of this kind are refused"
        ))
        .hint(instead);
    }
    let error = CliError::usage(format!("there is nothing of kind `{word}` here"));
    match suggest::nearest(word, &table.words()) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint("`coracle explain` lists the kinds"),
    }
}

fn unknown_field(table: &Table, found: &Found<'_>, walked: &str, rest: &str) -> CliError {
    let Some(section) = found.below else {
        let kind = found.field.map_or("", |field| &field.kind);
        return CliError::usage(format!("`{walked}` is of type {kind} and has no fields"));
    };
    let (word, after) = rest.split_once('.').unwrap_or((rest, ""));
    let names: Vec<&str> = section
        .fields
        .iter()
        .map(|field| field.name.as_str())
        .collect();
    // Of annotations the whole rest is the name.
    let near = suggest::nearest(word, &names).map(|near| (near, after));
    let near = near.or_else(|| Some((suggest::nearest(rest, &names)?, "")));
    let error = CliError::usage(format!("field `{word}` does not exist in `{walked}`"));
    if let Some((near, after)) = near {
        let dot = if after.is_empty() { "" } else { "." };
        return error.hint(format!("did you mean `{walked}.{near}{dot}{after}`?"));
    }
    match table.path_to(section, word) {
        Some(path) => error.hint(format!("did you mean `{walked}.{path}`?")),
        None => error.hint(format!("`coracle explain {walked}` lists its fields")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &str) -> std::result::Result<String, String> {
        let table = Table::load();
        let found = find(&table, path).map_err(|error| error.to_string())?;
        Ok(show::page(&table, &found, false))
    }

    #[test]
    fn a_path_leads_to_a_field_however_it_is_written() {
        for (path, field) in [
            (
                "pod.spec.containers.livenessProbe",
                "FIELD: livenessProbe <Probe>",
            ),
            ("po.spec.containers[0].image", "FIELD: image <string>"),
            (
                "deploy.spec.template.spec.containers[*].env",
                "FIELD: env <[]EnvVar>",
            ),
            ("Deployment.spec", "FIELD: spec <DeploymentSpec>"),
            (
                "config.coracle.bundle.interval",
                "FIELD: interval <Duration>",
            ),
            (
                "config.evictionHard",
                "FIELD: evictionHard <map[string]string>",
            ),
            (
                "pod.metadata.annotations.coracle.dev/after",
                "FIELD: coracle.dev/after <string>",
            ),
            (
                "pod.metadata.annotations['coracle.dev/after']",
                "FIELD: coracle.dev/after <string>",
            ),
            ("coracle.dev/after", "FIELD: coracle.dev/after <string>"),
            (
                "sts.spec.volumeClaimTemplates.spec.resources.requests",
                "FIELD: requests <map",
            ),
        ] {
            let page = shown(path).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert!(page.contains(field), "{path}: {page}");
        }
    }

    #[test]
    fn each_kind_that_is_offered_can_be_explained() {
        let kinds = candidates("");
        for kind in &kinds {
            shown(kind).unwrap_or_else(|error| panic!("{kind}: {error}"));
        }
        for kind in ["pod", "priorityclass", "config"] {
            assert!(kinds.iter().any(|known| known == kind), "{kind}: {kinds:?}");
        }
    }

    #[test]
    fn what_does_not_exist_is_answered_with_what_does() {
        for (path, words) in [
            (
                "pod.spec.containres.image",
                "did you mean `pod.spec.containers.image`?",
            ),
            (
                "pod.spec.image",
                "did you mean `pod.spec.containers.image`?",
            ),
            (
                "pod.spec.hostname.x",
                "`pod.spec.hostname` is of type string",
            ),
            ("pdo.spec", "did you mean `po`?"),
            ("ingress", "run a proxy as a pod"),
            ("networkpolicies", "NetworkPolicy is not supported"),
            ("pdb.spec", "PodDisruptionBudget is not supported"),
            ("cheese", "`coracle explain` lists the kinds"),
            ("pod.spec.zzzzzz", "`coracle explain pod.spec` lists"),
            ("coracle.dev/afte", "coracle.dev/after`?"),
            ("config.evictionhart", "did you mean `config.evictionHard`?"),
        ] {
            let error = shown(path).unwrap_err();
            assert!(error.contains(words), "{path}: {error}");
        }
    }

    #[test]
    fn each_setting_has_a_text_and_each_text_a_setting() {
        let texts = Table::settings_without_text();
        assert_eq!(texts, (Vec::<String>::new(), Vec::<String>::new()));
    }
}
