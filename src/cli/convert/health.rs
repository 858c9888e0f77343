//! `healthcheck`: what says whether a container is well.

use super::tree::{Commented, Entries, is_on, map, number, scalar, scalars, set, texts};
use super::words::{literal, seconds};
use super::work::Work;
use crate::spec::value::Value;

/// Adds the probes. A health check of compose restarts nothing, so it becomes a readiness probe; what is to be killed or
/// restarted when it fails (podman's `HealthOnFailure`) gets a liveness probe, too.
pub(super) fn probes(work: &Work<'_>, service: &Value, container: &mut Entries) {
    let Some(check) = service.get("healthcheck") else {
        return;
    };
    let test = check.get("test");
    let command = scalars(test);
    let is_list = matches!(test, Some(Value::List(_)));
    let line;
    let command = match &command[..] {
        _ if is_on(check, "disable") => return,
        [] => {
            let what = format_args!("healthcheck: the image's own test is not known here");
            work.lost(container, what);
            return;
        }
        ["NONE", ..] => return,
        ["CMD"] if is_list => return,
        ["CMD", program @ ..] if is_list => program,
        words => {
            line = words[usize::from(is_list)..].join(" ");
            &["/bin/sh", "-c", &line]
        }
    };
    for key in &["interval", "timeout", "start_period", "start_interval"] {
        if let Some(given) = scalar(check, key).filter(|text| seconds(text).is_none()) {
            let what = format_args!("healthcheck.{key}: {given}: it is no duration such as 1m30s");
            work.lost(container, what);
        }
    }
    if let Some(given) = scalar(check, "retries").filter(|text| text.parse::<u32>().is_err()) {
        let what = format_args!("healthcheck.retries: {given}: it is no number");
        work.lost(container, what);
    }
    let retries = retries(check);
    let interval = time(check, "interval", 30);
    let probe = |period: u32, failures: u32| {
        let mut probe = Entries::new();
        let command = command.iter().map(|word| literal(word)).collect();
        set(&mut probe, "exec", map([("command", texts(command))]));
        set(&mut probe, "periodSeconds", number(period));
        let timeout = time(check, "timeout", 30);
        set(&mut probe, "timeoutSeconds", number(timeout));
        set(&mut probe, "failureThreshold", number(failures));
        Value::Map(probe)
    };
    match scalar(check, "x-on-failure") {
        Some("kill" | "restart" | "stop") => {
            if time(check, "start_period", 0) > 0 {
                let period = time(check, "start_interval", interval);
                let failures = patience(check).div_ceil(period);
                set(container, "startupProbe", probe(period, failures));
            }
            set(container, "livenessProbe", probe(interval, retries));
        }
        _ => {
            let hint = "a livenessProbe like this would also restart it";
            container.comment(hint.to_owned());
            if check.get("start_interval").is_some() {
                work.lost(container, format_args!("healthcheck.start_interval"));
            }
        }
    }
    set(container, "readinessProbe", probe(interval, retries));
}

fn time(check: &Value, key: &str, otherwise: u32) -> u32 {
    let given = scalar(check, key).and_then(seconds);
    given.filter(|s| *s > 0).unwrap_or(otherwise)
}

fn retries(check: &Value) -> u32 {
    let given = scalar(check, "retries").and_then(|text| text.parse().ok());
    given.filter(|n| *n > 0).unwrap_or(3)
}

/// For how many seconds after its start a health check lets a container be unwell.
pub(super) fn patience(check: &Value) -> u32 {
    let failing = time(check, "interval", 30).saturating_mul(retries(check));
    time(check, "start_period", 0).saturating_add(failing)
}

/// The words of a list in JSON.
pub(super) fn words(written: &str) -> Option<Vec<String>> {
    serde_json::from_str(written).ok()
}

/// A health check as podman's command line has it: words of a program as JSON, what a shell reads, or either with the first
/// word of the image format's (`specgenutil` of podman).
pub(super) fn test(written: &str) -> Value {
    let mut words = match words(written) {
        Some(words) => words,
        None => {
            let (first, rest) = written.split_once(' ').unwrap_or((written, ""));
            match &*first.to_uppercase() {
                "CMD" => written.split_whitespace().map(str::to_owned).collect(),
                "CMD-SHELL" => vec![first.to_owned(), rest.trim_start().to_owned()],
                _ => vec![written.to_owned()],
            }
        }
    };
    let first = words
        .first()
        .map_or(String::new(), |word| word.to_uppercase());
    let is_single = words.len() == 1;
    match &*first {
        "CMD" | "CMD-SHELL" => words[0] = first,
        "NONE" if is_single => words[0] = first,
        _ if is_single => words.insert(0, "CMD-SHELL".to_owned()),
        _ => words.insert(0, "CMD".to_owned()),
    }
    texts(words)
}
