//! `healthcheck`: what says whether a container is well.

use super::tree::{Commented, Entries, is_on, number, scalar, scalars, set, texts};
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
    let mut command = scalars(test);
    let is_text = !matches!(test, Some(Value::List(_)));
    let first = command.first().map(String::as_str);
    let command = match first {
        _ if is_on(check, "disable") => return,
        None => {
            let what = format_args!("healthcheck: the image's own test is not known here");
            work.lost(container, what);
            return;
        }
        Some("NONE") => return,
        Some("CMD") if !is_text => command.split_off(1),
        Some("CMD-SHELL") if !is_text => shell(command.split_off(1).join(" ")),
        Some(_) => shell(command.join(" ")),
    };
    if command.is_empty() {
        return;
    }
    for key in ["interval", "timeout", "start_period", "start_interval"] {
        if let Some(given) = scalar(check, key).filter(|text| seconds(text).is_none()) {
            let what = format_args!("healthcheck.{key}: {given}: it is no duration such as 1m30s");
            work.lost(container, what);
        }
    }
    let time = |key: &str, otherwise: u32| time(check, key, otherwise);
    if let Some(given) = scalar(check, "retries").filter(|text| text.parse::<u32>().is_err()) {
        let what = format_args!("healthcheck.retries: {given}: it is no number");
        work.lost(container, what);
    }
    let retries = retries(check);
    let interval = time("interval", 30);
    let probe = |period: u32, failures: u32| {
        let mut probe = Entries::new();
        let exec = super::tree::map([("command", texts(command.iter().map(|word| literal(word))))]);
        set(&mut probe, "exec", exec);
        set(&mut probe, "periodSeconds", number(period));
        set(&mut probe, "timeoutSeconds", number(time("timeout", 30)));
        set(&mut probe, "failureThreshold", number(failures));
        Value::Map(probe)
    };
    match scalar(check, "x-on-failure").as_deref() {
        Some("kill" | "restart" | "stop") => {
            let start = time("start_period", 0);
            if start > 0 {
                let period = time("start_interval", interval);
                let whole = patience(check);
                set(
                    container,
                    "startupProbe",
                    probe(period, whole.div_ceil(period)),
                );
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
    let given = scalar(check, key).and_then(|text| seconds(&text));
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

/// A health check as podman's command line has it: words of a program as JSON, what a shell reads, or either with the first
/// word of the image format's (`specgenutil` of podman).
pub(super) fn test(written: &str) -> Value {
    let list = serde_json::from_str::<Vec<String>>(written).ok();
    let words = match list {
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
        .map(|word| word.to_uppercase())
        .unwrap_or_default();
    let kind = match &*first {
        "NONE" if words.len() == 1 => return texts(["NONE".to_owned()]),
        "CMD" | "CMD-SHELL" => {
            return texts(std::iter::once(first).chain(words.into_iter().skip(1)));
        }
        _ if words.len() == 1 => "CMD-SHELL",
        _ => "CMD",
    };
    texts(std::iter::once(kind.to_owned()).chain(words))
}

fn shell(line: String) -> Vec<String> {
    vec!["/bin/sh".to_owned(), "-c".to_owned(), line]
}
