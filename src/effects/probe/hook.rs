//! Lifecycle hooks, run by the same means as probes but without a timeout (Kubernetes docs: Container Lifecycle
//! Hooks). A program survives an agent restart: the shim holds its result. An HTTP request ends with its future.

use std::borrow::Cow;
use std::time::Duration;

use super::{Target, exec, http};
use crate::spec::probe::HttpGet;
use crate::spec::{Hook, PodSpec};
use crate::types::Time;

/// The timeout of connecting, as in Go's default transport.
const DIAL: Duration = Duration::from_secs(30);

/// The maximum shown of a command or path, so that the result still fits into an event (1024 bytes in all).
pub(super) const COMMAND_BYTES: usize = 128;
/// The maximum shown of an error, or of a failed program's output as such.
const ERRORS_BYTES: usize = 512;
/// The maximum shown of all output of a program.
const OUTPUT_BYTES: usize = 1024;

/// The result of a hook.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HookResult {
    /// The kubelet's message, if it failed.
    pub failure: Option<String>,
    /// The host that answered an HTTPS request by HTTP, and was asked again by HTTP.
    pub fell_back: Option<String>,
    /// When it was done, if that was before its result arrived: while no agent ran.
    pub at: Option<Time>,
}

/// Runs a hook of this pod's container. A sleep is not run here: the planner's clock times it.
pub async fn run_hook(hook: &Hook, target: &Target, pod: &PodSpec) -> HookResult {
    let whose = format!(
        "for Container \"{}\" in Pod \"{}\" failed - error:",
        target.container,
        pod.kubelet_name()
    );
    let failed = |failure: String| HookResult {
        failure: Some(failure),
        ..HookResult::default()
    };
    match hook {
        Hook::Exec(command) => match exec::to_the_end(command, target).await {
            Ok(end) => {
                let command = shown(&command.join(" "), COMMAND_BYTES);
                let failure = (end.code != 0).then(|| {
                    format!(
                        "Exec lifecycle hook ([{command}]) {whose} command '{command}' exited with {}: {}, message: {:?}",
                        end.code,
                        shown(&end.errors, ERRORS_BYTES),
                        cut(&exec::output(&end), OUTPUT_BYTES)
                    )
                });
                HookResult {
                    failure,
                    fell_back: None,
                    at: Some(end.at),
                }
            }
            Err(error) => failed(format!(
                "Exec lifecycle hook ([{}]) {whose} {}, message: \"\"",
                shown(&command.join(" "), COMMAND_BYTES),
                shown(&error.to_string(), ERRORS_BYTES)
            )),
        },
        Hook::HttpGet(get) => match page(get, target).await {
            Ok(fell_back) => HookResult {
                fell_back,
                ..HookResult::default()
            },
            Err(error) => {
                let error = shown(&error, ERRORS_BYTES);
                let error = match get.host {
                    Some(_) => error,
                    None => target.explain(error),
                };
                let path = shown(&get.path, COMMAND_BYTES);
                failed(format!("HTTP lifecycle hook ({path}) {whose} {error}"))
            }
        },
        Hook::TcpSocket => failed("Cannot run handler: invalid handler: tcpSocket".to_owned()),
        Hook::Sleep { .. } => HookResult::default(),
    }
}

/// The beginning of a text on one line, with control characters escaped.
pub(super) fn shown(text: &str, most: usize) -> String {
    let mut line = String::new();
    for char in cut(text.trim(), most).chars() {
        match char {
            ' '..='~' => line.push(char),
            other => line.extend(other.escape_debug()),
        }
    }
    line
}

/// The beginning of a text.
fn cut(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
    Cow::Owned(format!("{}...", &text[..end.unwrap_or(0)]))
}

/// Requests a page; any answer is a success. A host without TLS is asked again by HTTP, and returned.
async fn page(get: &HttpGet, target: &Target) -> Result<Option<String>, String> {
    let own = || Some(target.ip?.to_string());
    let Some(host) = get.host.clone().or_else(own) else {
        return Err("failed to find networking container: pod has no address".to_owned());
    };
    match http::get(get, &host, DIAL).await {
        Err(text) if get.tls && text.ends_with(http::NO_TLS) => {
            let mut plain = get.clone();
            plain.tls = false;
            // Meant for the encrypted connection only.
            let secret = |name: &str| name.eq_ignore_ascii_case("authorization");
            plain.headers.retain(|(name, _)| !secret(name));
            match http::get(&plain, &host, DIAL).await {
                Ok(()) => Ok(Some(format!("{host}:{}", get.port))),
                // The first error is the one to fix.
                Err(_) => Err(text),
            }
        }
        other => other.map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_a_program_fits_and_moves_no_cursor() {
        for (text, expected) in [
            ("bad\n", "bad"),
            ("a\nb\tc", "a\\nb\\tc"),
            ("\u{1b}[2Jgone", "\\u{1b}[2Jgone"),
            ("\u{202e}evil", "\\u{202e}evil"),
            ("sh -c 'echo \"x\\\"'", "sh -c 'echo \"x\\\"'"),
            ("größer", "größer"),
        ] {
            assert_eq!(shown(text, 64), expected);
        }
        assert_eq!(shown(&"ä".repeat(40), 5), "ää...");
        assert_eq!(cut("12345", 5), "12345");
    }
}
