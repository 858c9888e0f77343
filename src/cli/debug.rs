//! `coracle debug`: adds an ephemeral container to a pod and attaches to it, as kubectl does.

use std::io::{BufRead, BufReader, Read};
use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::{DebugArgs, DebugProfile};
use super::client::Client;
use super::error::{CliError, Result};
use super::session::{self, Manner};
use super::target::pod_of;
use super::{attach, pod_path, put};
use crate::api::encode;

pub(super) fn run(client: &Client, args: &DebugArgs) -> Result<ExitCode> {
    let pod = &*pod_of(client, &args.namespace.namespace, &args.pod)?;
    if args.tty && !args.stdin {
        return Err(CliError::usage(
            "-i/--stdin is required for containers with -t/--tty=true",
        ));
    }
    let attached = args.attach.unwrap_or(args.stdin);
    let tty = match attached {
        true => session::gets_terminal(args.stdin, args.tty),
        false => args.tty,
    };
    let path = pod_path(&args.namespace.namespace, pod);
    let shown = client.get(&path)?;
    let name = match &args.container {
        Some(name) => name.clone(),
        None => {
            let name = free_name(&shown)?;
            if !args.quiet {
                put(format!("Defaulting debug container name to {name}.\n").as_bytes())?;
            }
            name
        }
    };
    if let Some(target) = args.target.as_ref().filter(|_| !args.quiet) {
        put(format!("Targeting container \"{target}\".\n").as_bytes())?;
    }
    let added = json!({ "spec": { "ephemeralContainers": [container(args, &name, tty)?] } });
    if named(&shown["spec"]["ephemeralContainers"], &name).is_some() {
        return Err(CliError::new(format!(
            "pod {pod} has an ephemeral container `{name}` already"
        ))
        .hint("give another name with -c, or none at all"));
    }
    client.json(
        "PATCH",
        &format!("{path}/ephemeralcontainers"),
        Some(&added),
    )?;
    if !attached {
        return Ok(ExitCode::SUCCESS);
    }
    let manner = Manner {
        stdin: args.stdin,
        tty,
        detachable: true,
    };
    let code = match wait(client, args, (pod, &name), true)? {
        Reached::Ended(code) => code,
        Reached::Running => {
            let to = (path.as_str(), Some(name.as_str()));
            // Includes the output from before the attach.
            let attached = attach::to(client, to, manner, args.quiet, true);
            let Err(error) = attached else {
                return attached;
            };
            // The container may have ended before the attach.
            let text = error.to_string();
            if !text.contains("has ended") && !text.contains("is not running") {
                return Err(error);
            }
            match wait(client, args, (pod, &name), false)? {
                Reached::Ended(code) => code,
                Reached::Running => return Err(error),
            }
        }
    };
    log(client, &path, &name, code)
}

/// Prints the log of a container that has ended.
fn log(client: &Client, pod: &str, container: &str, code: i32) -> Result<ExitCode> {
    let query = format!("{pod}/log?container={}", encode(container));
    let mut response = client.send("GET", &query, None)?;
    let mut text = Vec::new();
    response
        .body
        .read_to_end(&mut text)
        .map_err(|e| CliError::new("lost the agent").because(e))?;
    put(&text)?;
    Ok(session::exit_code(code))
}

/// Builds the ephemeral container to send.
fn container(args: &DebugArgs, name: &str, tty: bool) -> Result<Value> {
    let mut container = json!({
        "name": name, "image": args.image, "terminationMessagePolicy": "File",
        "stdin": args.stdin, "tty": tty,
    });
    if args.stdin && !tty {
        // Piped input has an end, and programs wait for it.
        container["stdinOnce"] = json!(true);
    }
    if !args.command.is_empty() {
        let field = match args.arguments_only {
            true => "args",
            false => "command",
        };
        container[field] = json!(args.command);
    }
    if let Some(target) = &args.target {
        container["targetContainerName"] = json!(target);
    }
    if let Some(policy) = &args.image_pull_policy {
        container["imagePullPolicy"] = json!(policy);
    }
    let mut env = Vec::new();
    for pair in &args.env {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            CliError::usage(format!("--env `{pair}` is not of the form NAME=VALUE"))
        })?;
        env.push(json!({ "name": key, "value": value }));
    }
    if !env.is_empty() {
        container["env"] = json!(env);
    }
    if let Some(context) = security(args.profile) {
        container["securityContext"] = context;
    }
    Ok(container)
}

/// The security contexts of kubectl's profiles for ephemeral containers.
fn security(profile: DebugProfile) -> Option<Value> {
    match profile {
        DebugProfile::General => Some(json!({ "capabilities": { "add": ["SYS_PTRACE"] } })),
        DebugProfile::Baseline => None,
        DebugProfile::Restricted => Some(json!({
            "runAsNonRoot": true, "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
        })),
        DebugProfile::Netadmin => {
            Some(json!({ "capabilities": { "add": ["NET_ADMIN", "NET_RAW"] } }))
        }
        DebugProfile::Sysadmin => Some(json!({ "privileged": true })),
    }
}

fn named<'v>(list: &'v Value, name: &str) -> Option<&'v Value> {
    list.as_array()?.iter().find(|one| one["name"] == name)
}

/// Returns a free name: `debugger-` and five letters or digits, without vowels.
fn free_name(pod: &Value) -> Result<String> {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    loop {
        let mut random = [0; 5];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .map_err(|e| CliError::new("could not read `/dev/urandom`").because(e))?;
        let letter = |byte: &u8| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]);
        let name: String = random.iter().map(letter).collect();
        let name = format!("debugger-{name}");
        if named(&pod["spec"]["ephemeralContainers"], &name).is_none() {
            return Ok(name);
        }
    }
}

/// How far the container has come.
enum Reached {
    Running,
    /// The container has ended with this exit code.
    Ended(i32),
}

/// Waits until the container has ended, or runs if that is enough; prints meanwhile why it does not run.
fn wait(
    client: &Client,
    args: &DebugArgs,
    (pod, name): (&str, &str),
    running: bool,
) -> Result<Reached> {
    let field = encode(&format!("metadata.name={pod}"));
    let all = pod_path(&args.namespace.namespace, "");
    let watch = format!("{all}?watch=true&fieldSelector={field}");
    let lost = |e: std::io::Error| CliError::new("lost the agent").because(e);
    let response = client.send("GET", &watch, None)?;
    let mut printed = String::new();
    for line in BufReader::new(response.body).lines() {
        let change: Value = serde_json::from_str(&line.map_err(lost)?)
            .map_err(|e| CliError::new("the agent's answer is not JSON").because(e))?;
        let object = &change["object"];
        if change["type"] == "DELETED" || !object["metadata"]["deletionTimestamp"].is_null() {
            return Err(CliError::new(format!(
                "pod {pod} was deleted before container {name} ran"
            )));
        }
        let status = named(&object["status"]["ephemeralContainerStatuses"], name);
        let state = status.map_or(&Value::Null, |status| &status["state"]);
        if running && !state["running"].is_null() {
            return Ok(Reached::Running);
        }
        if let Some(code) = ended(object, name) {
            return Ok(Reached::Ended(code));
        }
        let waiting = &state["waiting"];
        let message = waiting["message"].as_str().unwrap_or_default();
        if !message.is_empty() && message != printed {
            let reason = waiting["reason"].as_str().unwrap_or_default();
            eprintln!("warning: container {name}: {reason}: {message}");
            message.clone_into(&mut printed);
        }
    }
    Err(CliError::new("lost the agent").hint("the container was added: see `coracle describe pod`"))
}

/// The exit code of a container that has ended. Prints the reason if it could not be started, as its log has none; the
/// code is then that of `exec`.
fn ended(pod: &Value, name: &str) -> Option<i32> {
    let status = named(&pod["status"]["ephemeralContainerStatuses"], name)?;
    let ended = &status["state"]["terminated"];
    let code = ended["exitCode"].as_i64()?;
    if let (Some("StartError"), Some(why)) = (ended["reason"].as_str(), ended["message"].as_str()) {
        eprintln!("error: container {name} could not be started: {why}");
        let absent = ["not found in $PATH", "no such file or directory"];
        return Some(match why.starts_with("exec") {
            true if absent.iter().any(|text| why.ends_with(text)) => 127,
            true => 126,
            false => i32::try_from(code).ok()?,
        });
    }
    i32::try_from(code).ok()
}
