//! `coracle logs`: a container's log.

use std::io::{BufRead, BufReader, Read};
use std::process::ExitCode;

use super::args::LogsArgs;
use super::client::Client;
use super::error::{CliError, Result};
use super::target::pod_of;
use super::{pod_path, put};
use crate::api::encode;

pub(super) fn run(client: &Client, args: &LogsArgs) -> Result<ExitCode> {
    let options = options(args)?;
    let pod = &*pod_of(client, &args.namespace.namespace, &args.pod)?;
    let path = pod_path(&args.namespace.namespace, pod);
    let containers = match (args.all_containers, &args.container) {
        (true, _) => container_names(client, &path)?,
        (false, Some(container)) => vec![container.clone()],
        (false, None) if args.prefix => container_names(client, &path)?
            .into_iter()
            .take(1)
            .collect(),
        (false, None) => vec![String::new()],
    };
    if args.follow && containers.len() > 1 {
        return Err(CliError::usage("--follow needs a single container").hint("name it with -c"));
    }
    for container in containers {
        let query = format!("{path}/log?container={}{options}", encode(&container));
        let response = client.send("GET", &query, None)?;
        let prefix = match args.prefix {
            true => format!("[pod/{pod}/{container}] "),
            false => String::new(),
        };
        copy(response.body, &prefix)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn options(args: &LogsArgs) -> Result<String> {
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
    // kubectl's --tail=-1 means everything.
    if let Some(tail) = args.tail.filter(|tail| *tail >= 0) {
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
        add("sinceSeconds", seconds.max(1).to_string());
    }
    if let Some(time) = &args.since_time {
        add("sinceTime", time.clone());
    }
    Ok(options)
}

/// Parses `1h30m` into seconds, rounded up.
fn seconds(text: &str) -> Option<u64> {
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

fn container_names(client: &Client, path: &str) -> Result<Vec<String>> {
    let pod = client.get(path)?;
    let init = pod["spec"]["initContainers"]
        .as_array()
        .into_iter()
        .flatten();
    let all = init.chain(pod["spec"]["containers"].as_array().into_iter().flatten());
    let added = pod["spec"]["ephemeralContainers"].as_array();
    let all = all.chain(added.into_iter().flatten());
    Ok(all
        .filter_map(|c| c["name"].as_str().map(str::to_owned))
        .collect())
}

fn copy(mut body: impl Read, prefix: &str) -> Result<()> {
    let lost = |e: std::io::Error| CliError::new("lost the agent").because(e);
    if prefix.is_empty() {
        let mut buffer = [0; 16 * 1024];
        loop {
            match body.read(&mut buffer).map_err(lost)? {
                0 => return Ok(()),
                length => put(&buffer[..length])?,
            }
        }
    }
    let mut lines = BufReader::new(body);
    let mut line = prefix.as_bytes().to_vec();
    while lines.read_until(b'\n', &mut line).map_err(lost)? > 0 {
        put(&line)?;
        line.truncate(prefix.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn durations_are_gos() {
        for (text, expected) in [
            ("5m", Some(300)),
            ("1h30m", Some(5400)),
            ("1500ms", Some(2)),
            ("5", None),
            ("", None),
            ("5y", None),
        ] {
            assert_eq!(super::seconds(text), expected, "{text}");
        }
    }
}
