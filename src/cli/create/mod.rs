//! `coracle create`: manifests for people without a template at hand. There is no API to create anything in, so a manifest
//! is printed, or saved where the agent reads it.

mod content;
mod others;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::{CreateArgs, CreateFormat, DryRun};
use super::client::Client;
use super::error::{CliError, Result};
use super::{directories, plan, put, validate};
use crate::spec::suggest;
use crate::sys::file;

/// A kind that can be created.
struct Kind {
    /// The words on the command line; a type follows the kind.
    words: &'static [&'static str],
    /// The type of a secret or a service; else empty.
    of: &'static str,
    /// The flags that it takes, beside those of all kinds.
    flags: &'static [&'static str],
    /// Makes the manifest without metadata.
    make: fn(&CreateArgs, &str) -> Result<Value>,
}

const POD: &[&str] = &["--image", "--port", "--env", "--restart", "-- COMMAND"];
const SET: &[&str] = &["--image", "--port", "--env", "--replicas", "-- COMMAND"];
const JOB: &[&str] = &[
    "--image",
    "--port",
    "--env",
    "--restart",
    "--from",
    "-- COMMAND",
];
const ONE_EACH: &[&str] = &["--image", "--port", "--env", "-- COMMAND"];
const CRON: &[&str] = &["--image", "--env", "--restart", "--schedule", "-- COMMAND"];
const DATA: &[&str] = &["--from-literal", "--from-file", "--from-env-file"];
const GENERIC: &[&str] = &["--from-literal", "--from-file", "--from-env-file", "--type"];
const LOGIN: &[&str] = &[
    "--docker-server",
    "--docker-username",
    "--docker-password",
    "--docker-email",
];

const fn kind(
    words: &'static [&'static str],
    of: &'static str,
    flags: &'static [&'static str],
    make: fn(&CreateArgs, &str) -> Result<Value>,
) -> Kind {
    Kind {
        words,
        of,
        flags,
        make,
    }
}

const SECRET: &[&str] = &["secret"];
const SERVICE: &[&str] = &["service", "svc"];

const KINDS: &[Kind] = &[
    kind(&["pod", "po"], "", POD, workload::pod),
    kind(&["deployment", "deploy"], "", SET, workload::deployment),
    kind(&["statefulset", "sts"], "", SET, workload::stateful_set),
    kind(&["daemonset", "ds"], "", ONE_EACH, workload::daemon_set),
    kind(&["job"], "", JOB, workload::job),
    kind(&["cronjob", "cj"], "", CRON, workload::cron_job),
    kind(&["configmap", "cm"], "", DATA, content::config_map),
    kind(SECRET, "generic", GENERIC, content::generic),
    kind(SECRET, "tls", &["--cert", "--key"], content::tls),
    kind(SECRET, "docker-registry", LOGIN, content::docker_registry),
    kind(
        SERVICE,
        "clusterip",
        &["--tcp", "--clusterip"],
        others::cluster_ip,
    ),
    kind(
        SERVICE,
        "nodeport",
        &["--tcp", "--node-port"],
        others::node_port,
    ),
    kind(SERVICE, "loadbalancer", &["--tcp"], others::load_balancer),
    kind(
        SERVICE,
        "externalname",
        &["--external-name", "--tcp"],
        others::external_name,
    ),
    kind(
        &["persistentvolumeclaim", "pvc", "claim"],
        "",
        &["--size", "--access-mode"],
        others::claim,
    ),
    kind(&["namespace", "ns"], "", &[], others::namespace),
    kind(&["serviceaccount", "sa"], "", &[], others::service_account),
    kind(
        &["priorityclass", "pc"],
        "",
        &["--value", "--description", "--global-default"],
        others::priority_class,
    ),
];

pub(super) fn run(client: &Client, args: &CreateArgs) -> Result<ExitCode> {
    let (kind, name) = meant(&args.what)?;
    check_flags(kind, args)?;
    let manifest = manifest(client, kind, name, args)?;
    let text = yaml(&manifest)?;
    check(name, &text)?;
    match args.output {
        None if args.save && args.dry_run == DryRun::None => {
            let path = save(client, kind, name, &text)?;
            put(format!("saved as {}\n", path.display()).as_bytes())?;
        }
        None if args.dry_run == DryRun::None => return Err(nowhere(client, kind, name)),
        None | Some(CreateFormat::Yaml) => put(text.as_bytes())?,
        Some(CreateFormat::Json) => put(format!("{manifest:#}\n").as_bytes())?,
        Some(CreateFormat::Name) => put(format!("{}/{name}\n", kind.words[0]).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The kinds, or the types of a kind that has some.
pub(super) fn candidates(before: &[String]) -> Vec<String> {
    let words: Vec<&str> = match before {
        [] => KINDS.iter().map(|kind| kind.words[0]).collect(),
        [first] => {
            let of = KINDS
                .iter()
                .filter(|kind| kind.words.contains(&first.as_str()));
            of.map(|kind| kind.of).filter(|of| !of.is_empty()).collect()
        }
        _ => Vec::new(),
    };
    let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    words.dedup();
    words
}

/// The kind and the name on the command line.
fn meant(what: &[String]) -> Result<(&'static Kind, &str)> {
    let words: Vec<&str> = what.iter().map(String::as_str).collect();
    let (first, rest) = words.split_first().unwrap_or((&"", &[]));
    let named = |kind: &&Kind| {
        let mut known = kind.words.iter();
        known.any(|known| *known == *first || first.strip_suffix('s') == Some(known))
    };
    let mut rows = KINDS.iter().filter(named);
    let Some(row) = rows.next() else {
        let known: Vec<&str> = KINDS.iter().flat_map(|kind| kind.words).copied().collect();
        let error = CliError::usage(format!("nothing of kind `{first}` can be created"));
        return Err(match suggest::nearest(first, &known) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error.hint("`coracle create --help` lists the kinds"),
        });
    };
    if row.of.is_empty() {
        let [name] = rest else {
            return Err(CliError::usage(format!(
                "say one name: `coracle create {} NAME`",
                row.words[0]
            )));
        };
        return Ok((row, name));
    }
    let types: Vec<&str> = [row.of].into_iter().chain(rows.map(|row| row.of)).collect();
    let of = |word: &str| {
        KINDS
            .iter()
            .find(|kind| kind.words == row.words && kind.of == word)
    };
    match rest {
        [word, name] if of(word).is_some() => Ok((of(word).unwrap_or(row), name)),
        _ => {
            let word = rest.first().copied().unwrap_or_default();
            let kind = row.words[0];
            let error = CliError::usage(format!(
                "say its type and one name: `coracle create {kind} TYPE NAME`"
            ));
            Err(
                match suggest::nearest(word, &types).filter(|near| *near != word) {
                    Some(near) => error.hint(format!("did you mean `{near}`?")),
                    None => error.hint(format!("types are {}", types.join(", "))),
                },
            )
        }
    }
}

/// Refuses flags that mean nothing for the kind.
fn check_flags(kind: &Kind, args: &CreateArgs) -> Result<()> {
    let given = [
        ("-- COMMAND", !args.command.is_empty()),
        ("--image", !args.image.is_empty()),
        ("--port", args.port.is_some()),
        ("--env", !args.env.is_empty()),
        ("--replicas", args.replicas.is_some()),
        ("--restart", args.restart.is_some()),
        ("--schedule", args.schedule.is_some()),
        ("--from", args.from.is_some()),
        ("--from-literal", !args.from_literal.is_empty()),
        ("--from-file", !args.from_file.is_empty()),
        ("--from-env-file", !args.from_env_file.is_empty()),
        ("--type", args.kind.is_some()),
        ("--cert", args.cert.is_some()),
        ("--key", args.key.is_some()),
        ("--docker-server", args.docker_server.is_some()),
        ("--docker-username", args.docker_username.is_some()),
        ("--docker-password", args.docker_password.is_some()),
        ("--docker-email", args.docker_email.is_some()),
        ("--tcp", !args.tcp.is_empty()),
        ("--node-port", args.node_port.is_some()),
        ("--clusterip", args.clusterip.is_some()),
        ("--external-name", args.external_name.is_some()),
        ("--size", args.size.is_some()),
        ("--access-mode", args.access_mode.is_some()),
        ("--value", args.value.is_some()),
        ("--description", args.description.is_some()),
        ("--global-default", args.global_default),
    ];
    let mut given = given.iter().filter(|(_, given)| *given);
    if let (Some(from), Some((flag, _))) = (
        &args.from,
        given.clone().find(|(flag, _)| *flag != "--from"),
    ) {
        return Err(
            CliError::usage(format!("{flag} does not go with --from")).hint(format!(
                "the Job is as `{from}` has it; -o yaml prints it, to be changed"
            )),
        );
    }
    let Some((flag, _)) = given.find(|(flag, _)| !kind.flags.contains(flag)) else {
        return Ok(());
    };
    let what = format!("{} {}", kind.words[0], kind.of);
    let error = CliError::usage(format!("{flag} means nothing for a {}", what.trim_end()));
    Err(match kind.flags {
        [] => error,
        flags => error.hint(format!("it takes {}", flags.join(", "))),
    })
}

/// What a flag that must be given says.
fn needed<'a, T>(given: Option<&'a T>, flag: &str) -> Result<&'a T> {
    given.ok_or_else(|| CliError::usage(format!("{flag} is needed")))
}

/// `KEY=VALUE` of a flag.
fn pair<'a>(text: &'a str, flag: &str) -> Result<(&'a str, &'a str)> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    pair.ok_or_else(|| CliError::usage(format!("{flag}: `{text}` is not like KEY=VALUE")))
}

fn manifest(client: &Client, kind: &Kind, name: &str, args: &CreateArgs) -> Result<Value> {
    let mut manifest = match &args.from {
        Some(from) => workload::job_from(client, args, from)?,
        None => (kind.make)(args, name)?,
    };
    manifest["metadata"]["name"] = name.into();
    let namespace = &args.namespace.namespace;
    if namespace != "default" {
        manifest["metadata"]["namespace"] = namespace.as_str().into();
    }
    for label in &args.labels {
        let (key, value) = pair(label, "--labels")?;
        manifest["metadata"]["labels"][key] = value.into();
    }
    Ok(manifest)
}

fn yaml(manifest: &Value) -> Result<String> {
    let text = serde_yaml::to_string(manifest);
    text.map_err(|error| CliError::new("could not print").because(error))
}

/// Refuses what the agent would refuse.
fn check(name: &str, text: &str) -> Result<()> {
    let report = validate::validate_bytes(&format!("{name}.yaml"), text.as_bytes());
    for warning in &report.warnings {
        eprintln!("warning: {warning}");
    }
    if report.errors.is_empty() {
        return Ok(());
    }
    let refused = CliError::new("the manifest would be refused");
    let all = report.errors.iter();
    Err(all.fold(refused, |error, because| error.because(because)))
}

/// The name of the file that holds it.
fn file_name(kind: &Kind, name: &str) -> String {
    match kind.flags.contains(&"--image") {
        true => format!("{name}.yaml"),
        false => format!("{name}-{}.yaml", kind.words[0]),
    }
}

fn nowhere(client: &Client, kind: &Kind, name: &str) -> CliError {
    let folder = directories::find(client, (None, None, None)).manifests;
    let path = folder.join(file_name(kind, name));
    CliError::usage("there is no API to create it in: what runs is in files").hint(format!(
        "`coracle create … --dry-run=client -o yaml > {}`; or `coracle create … --save` writes that file",
        path.display()
    ))
}

/// Writes the manifest to a new file of the manifest directory.
fn save(client: &Client, kind: &Kind, name: &str, text: &str) -> Result<PathBuf> {
    let folder = directories::find(client, (None, None, None)).manifests;
    let path = folder.join(file_name(kind, name));
    check_free(client, &path, text)?;
    let failed = |error: std::io::Error| {
        let failed = CliError::new(format!("could not write `{}`", path.display()));
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => failed
                .because("there is such a file already")
                .hint("`-o yaml` prints the manifest, to be compared or put into another file"),
            _ => failed.because(error),
        }
    };
    let mode = if kind.words == SECRET { 0o600 } else { 0o644 };
    file::create(&path, text.as_bytes(), mode).map_err(failed)?;
    Ok(path)
}

/// Refuses what the agent would reject beside its other files, before anything is written: what a file defines already.
fn check_free(client: &Client, path: &Path, text: &str) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let asked = json!({ "items": [{ "name": name, "save_as": name, "text": text }] });
    let errors = match client.json("POST", "/coracle/v1/plan", Some(&asked)) {
        Ok(planned) => {
            let files = planned["items"].as_array().into_iter().flatten();
            let errors = files.flat_map(|file| file["errors"].as_array().into_iter().flatten());
            errors
                .filter_map(|e| e.as_str().map(str::to_owned))
                .collect()
        }
        Err(_) => validate::already_defined(path, text.as_bytes()),
    };
    if errors.is_empty() {
        return Ok(());
    }
    let refused = CliError::new(format!("`{}` is not written", path.display()));
    let other = errors.iter().find_map(|error| plan::defined_by(error));
    let taken = (errors.iter()).any(|error| error.contains(" is already defined by "));
    let refused = match other.map(|other| path.with_file_name(other)) {
        Some(other) if other.exists() => refused.hint(format!(
            "change it in `{}` (`coracle plan` says what that would do), or take another name",
            other.display()
        )),
        // That of a bundle.
        _ if taken => refused.hint("take another name"),
        _ => refused,
    };
    Err(errors.iter().fold(refused, |error, why| error.because(why)))
}

/// A manifest's head.
fn document(version: &str, kind: &str, rest: Value) -> Value {
    let mut document = json!({ "apiVersion": version, "kind": kind, "metadata": {} });
    if let (Value::Object(document), Value::Object(rest)) = (&mut document, rest) {
        document.extend(rest);
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_defines_already_is_refused_before_anything_is_written() {
        let folder = std::env::temp_dir().join(format!("coracle-save-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let client = Client {
            socket: "/nonexistent/coracle.sock".into(),
        };
        let map =
            |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n");
        let free = |file: &str, name: &str| check_free(&client, &folder.join(file), &map(name));
        assert_eq!(free("app-configmap.yaml", "app"), Ok(()));
        std::fs::write(folder.join("all.yaml"), map("app")).unwrap();
        std::fs::write(folder.join("broken.yaml"), "kind: [").unwrap();
        let error = free("app-configmap.yaml", "app").unwrap_err();
        let text = error.to_string();
        let other = folder.join("all.yaml").display().to_string();
        assert!(text.contains("is already defined by `all.yaml`"), "{text}");
        assert!(text.contains(&format!("change it in `{other}`")), "{text}");
        assert!(text.contains("another name"), "{text}");
        assert_ne!(error.exit_code(), 0);
        assert_eq!(free("other-configmap.yaml", "other"), Ok(()));
        // The file itself is no other one: that it exists is said when it is written.
        assert_eq!(free("all.yaml", "app"), Ok(()));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
