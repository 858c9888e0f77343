//! `coracle logs`: the logs of containers, one after the other or followed together.

use std::io::{BufRead, BufReader, Read};
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;

use serde_json::Value;

use super::args::LogsArgs;
use super::client::Client;
use super::container;
use super::error::{CliError, Result};
use super::follow::{self, Whose};
use super::similar::nothing_in;
use super::target::{Source, pod_of};
use super::{pod_path, put};
use crate::api::encode;

/// Longest line that is printed in one piece, in bytes; a longer one is printed in several.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// Lines of each container of several pods, as kubectl has it.
const LINES_OF_MANY: i64 = 10;

/// The log of one container.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    path: String,
    /// Before each line.
    prefix: String,
}

pub(super) fn run(client: &Client, args: &LogsArgs) -> Result<ExitCode> {
    let plain = inline(args)?;
    print(client, &plain).map_err(|error| match &args.inline[..] {
        [name] if error.to_string().contains(&format!("container \"{name}\"")) => {
            error.hint(format!("`{name}` is taken for a container, as with -c"))
        }
        _ => error,
    })
}

fn print(client: &Client, args: &LogsArgs) -> Result<ExitCode> {
    if let Some(whose) = Whose::of(args).filter(|_| args.follow && !args.previous) {
        return follow::follow(client, args, whose);
    }
    let options = options(args)?;
    let streams = streams(client, args, &options)?;
    let most = args.max_log_requests.max(1);
    match args.follow && streams.len() > 1 {
        true if streams.len() > most => Err(too_many(streams.len(), most)),
        true => together(client, streams, args.ignore_errors),
        false => {
            for stream in &streams {
                let copied = copy(client, stream, false);
                tolerate(copied, args.ignore_errors)?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The arguments with the container behind the pod as that of `-c`, as kubectl has it: `logs POD CONTAINER`.
fn inline(args: &LogsArgs) -> Result<LogsArgs> {
    let mut plain = args.clone();
    let [container] = &args.inline[..] else {
        return match args.inline.is_empty() {
            true => Ok(plain),
            false => Err(
                CliError::usage("logs of one pod, and of one of its containers (-c)").hint(
                    "`-l SELECTOR`, or KIND/NAME with `--all-pods`, prints those of several pods",
                ),
            ),
        };
    };
    if args.container.is_some() {
        let error = format!("`{container}` behind the pod is a container, and -c names another");
        return Err(CliError::usage(error).hint("name the container once"));
    }
    if args.all_containers {
        let error = format!("either the container `{container}`, as with -c, or --all-containers");
        return Err(CliError::usage(error));
    }
    plain.container = Some(container.clone());
    Ok(plain)
}

pub(super) fn too_many(wanted: usize, most: usize) -> CliError {
    let error = CliError::new(format!(
        "you are attempting to follow {wanted} log streams, but maximum allowed concurrency is {most}"
    ));
    error.hint("use --max-log-requests to increase the limit")
}

/// Prints an error that does not matter, or returns it.
pub(super) fn tolerate(result: Result<()>, ignore: bool) -> Result<()> {
    match result {
        Err(error) if ignore => {
            eprintln!("{error}");
            Ok(())
        }
        other => other,
    }
}

/// The logs that are asked for: of one pod, of all pods of a workload or service, or of all that a selector selects.
fn streams(client: &Client, args: &LogsArgs, options: &str) -> Result<Vec<Stream>> {
    let namespace = &args.namespace.namespace;
    let all = pod_path(namespace, "");
    let owner = args.pod.as_deref().filter(|_| args.all_pods);
    let pods: Vec<Value> = match (&args.selector, owner.map(Source::of)) {
        (Some(selector), _) => {
            let found = client.get(&format!("{all}?labelSelector={}", encode(selector)))?;
            found["items"].as_array().cloned().unwrap_or_default()
        }
        (None, Some(Some(source))) => source.pods(client, namespace)?,
        (None, Some(None) | None) => {
            let pod = args.pod.as_deref().unwrap_or_default();
            let pod = pod_of(client, namespace, pod)?;
            if !args.all_containers && !args.prefix && !args.all_pods {
                let container = container::of(client, namespace, &pod, args.container.as_deref())?;
                return Ok(vec![stream(args, &pod, &container, options)]);
            }
            vec![client.get(&pod_path(namespace, &pod))?]
        }
    };
    if pods.is_empty() {
        nothing_in(client, namespace);
    }
    let mut streams = Vec::new();
    for pod in &pods {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let containers = match (args.all_containers, &args.container) {
            (true, _) => container::names(pod),
            (false, Some(container)) => vec![container.clone()],
            (false, None) => vec![container::announced(pod, name)],
        };
        streams.extend(
            containers
                .iter()
                .map(|one| stream(args, name, one, options)),
        );
    }
    Ok(streams)
}

pub(super) fn stream(args: &LogsArgs, pod: &str, container: &str, options: &str) -> Stream {
    let path = pod_path(&args.namespace.namespace, pod);
    let prefix = match args.prefix || args.all_pods {
        true => format!("[pod/{pod}/{container}] "),
        false => String::new(),
    };
    Stream {
        path: format!("{path}/log?container={}{options}", encode(container)),
        prefix,
    }
}

/// Follows several logs, each on a thread of its own. Lines are printed whole, one at a time.
fn together(client: &Client, streams: Vec<Stream>, ignore: bool) -> Result<ExitCode> {
    let (done, results) = sync_channel(streams.len());
    for stream in streams {
        let (client, done) = (client.clone(), done.clone());
        std::thread::spawn(move || {
            // If nothing receives it, the command has ended.
            let _ = done.send(copy(&client, &stream, true));
        });
    }
    drop(done);
    for result in results {
        tolerate(result, ignore)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn options(args: &LogsArgs) -> Result<String> {
    let mut options = String::new();
    let mut add =
        |key: &str, value: String| options.push_str(&format!("&{key}={}", encode(&value)));
    for (key, set) in [
        ("follow", args.follow),
        ("previous", args.previous),
        ("timestamps", args.timestamps),
    ] {
        if set {
            add(key, "true".to_owned());
        }
    }
    let tail = args.tail.or(args.selector.as_ref().map(|_| LINES_OF_MANY));
    if args.tail.is_some_and(|tail| tail < -1) {
        return Err(CliError::usage("--tail must be -1 or more").hint("-1 prints everything"));
    }
    // kubectl's --tail=-1 means everything.
    if let Some(tail) = tail.filter(|tail| *tail >= 0) {
        add("tailLines", tail.to_string());
    }
    if let Some(limit) = args.limit_bytes {
        add("limitBytes", limit.to_string());
    }
    if let Some(since) = &args.since {
        let seconds = seconds(since).ok_or_else(|| {
            CliError::usage(format!("--since `{since}` is not a duration"))
                .hint("write it as 90s, 5m or 1h30m")
        })?;
        // Zero is no limit, as in kubectl.
        if seconds > 0 {
            add("sinceSeconds", seconds.to_string());
        }
    }
    if let Some(time) = &args.since_time {
        add("sinceTime", time.clone());
    }
    Ok(options)
}

/// Parses `1h30m` into seconds, rounded up.
fn seconds(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let (mut total_ms, mut number) = (0_u64, String::new());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if c.is_ascii_digit() {
            number.push(c);
            rest = &rest[1..];
            continue;
        }
        let (unit, ms) = [
            ("ms", 1),
            ("s", 1000),
            ("m", 60_000),
            ("h", 3_600_000),
            ("d", 86_400_000),
        ]
        .into_iter()
        .find(|(unit, _)| rest.starts_with(unit))?;
        total_ms = total_ms.checked_add(number.parse::<u64>().ok()?.checked_mul(ms)?)?;
        number.clear();
        rest = &rest[unit.len()..];
    }
    (number.is_empty() && !text.is_empty()).then(|| total_ms.div_ceil(1000))
}

/// Prints a log to its end, which others may write to at the same time: each line at once.
pub(super) fn copy(client: &Client, stream: &Stream, shared: bool) -> Result<()> {
    let lost = |e: std::io::Error| CliError::new("lost the agent").because(e);
    let answer = client.send("GET", &stream.path, None)?;
    for warning in &answer.warnings {
        eprintln!("warning: {}{warning}", stream.prefix);
    }
    let mut body = BufReader::new(answer.body);
    let prefix = stream.prefix.as_bytes();
    let mut line = prefix.to_vec();
    loop {
        if prefix.is_empty() && !shared {
            let piece = body.fill_buf().map_err(lost)?;
            let length = piece.len();
            put(piece)?;
            body.consume(length);
            if length == 0 {
                return Ok(());
            }
            continue;
        }
        let mut rest = (&mut body).take(MAX_LINE_BYTES);
        if rest.read_until(b'\n', &mut line).map_err(lost)? == 0 {
            return Ok(());
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        put(&line)?;
        line.truncate(prefix.len());
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::args::{Cli, Command};

    #[test]
    fn limits_of_a_log_are_asked_for_as_kubectl_does() {
        for (words, expected) in [
            (&["--since=0s"][..], Some("")),
            (&["--since=0"], Some("")),
            (&["--since=10ms"], Some("&sinceSeconds=1")),
            (&["--since", "5m"], Some("&sinceSeconds=300")),
            (&["--tail=-1"], Some("")),
            (&["--tail=0"], Some("&tailLines=0")),
            (&["--tail=-5"], None),
            (&["--since=soon"], None),
        ] {
            let line = ["coracle", "logs", "web"].iter().chain(words);
            let Command::Logs(args) = Cli::try_parse_from(line).unwrap().command else {
                panic!("it is `logs`");
            };
            assert_eq!(super::options(&args).ok().as_deref(), expected, "{words:?}");
        }
    }

    #[test]
    fn the_word_behind_the_pod_is_its_container() {
        for (line, expected) in [
            ("web", Ok(None)),
            ("web app", Ok(Some("app"))),
            ("deployment/web app -f", Ok(Some("app"))),
            ("web -c app", Ok(Some("app"))),
            ("web app -c app", Err("-c names another")),
            ("web app --all-containers", Err("--all-containers")),
            ("web db api", Err("(-c)")),
        ] {
            let line = ["coracle", "logs"].into_iter().chain(line.split(' '));
            let line: Vec<&str> = line.collect();
            let Command::Logs(args) = Cli::try_parse_from(&line).unwrap().command else {
                panic!("it is `logs`");
            };
            match (super::inline(&args), expected) {
                (Ok(plain), Ok(expected)) => {
                    assert_eq!(plain.container.as_deref(), expected, "{line:?}");
                }
                (Err(error), Err(words)) => {
                    assert!(error.to_string().contains(words), "{line:?}: {error}");
                    assert_eq!(error.exit_code(), 2);
                }
                (found, _) => panic!("{line:?}: {found:?}"),
            }
        }
        assert!(Cli::try_parse_from(["coracle", "logs", "-l", "a=b", "web", "app"]).is_err());
    }

    #[test]
    fn durations_are_gos() {
        for (text, expected) in [
            ("5m", Some(300)),
            ("1h30m", Some(5400)),
            ("1500ms", Some(2)),
            ("0", Some(0)),
            ("5", None),
            ("", None),
            ("5y", None),
        ] {
            assert_eq!(super::seconds(text), expected, "{text}");
        }
    }
}
