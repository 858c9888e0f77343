//! How is a lifecycle hook carried out? By the same means as a probe, but without a timeout: it ends with its container,
//! or when its future is dropped (kubelet-behaviour §5.9).

use std::borrow::Cow;
use std::time::Duration;

use super::{Target, exec, http};
use crate::spec::probe::HttpGet;
use crate::spec::{Hook, PodSpec};

/// How long a connection may take to come about, as in Go's default transport.
const DIAL: Duration = Duration::from_secs(30);

/// Most that is shown of a command or path, so that what came of it still fits into an event (1024 bytes in all).
const COMMAND_BYTES: usize = 128;
/// Most that is shown of an error, or of what a program wrote as such.
const ERRORS_BYTES: usize = 512;
/// Most that is shown of what a program wrote in all.
const OUTPUT_BYTES: usize = 1024;

/// How a hook went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HookResult {
    /// The kubelet's sentence, if it went wrong.
    pub failure: Option<String>,
    /// The host that answered by HTTP what was asked by HTTPS, and was asked again.
    pub fell_back: Option<String>,
}

/// Carries out a hook of this pod's container. A sleep is not for here: the planner's clock lets time pass.
pub async fn run_hook(hook: &Hook, target: &Target, pod: &PodSpec) -> HookResult {
    let whose = format!(
        "for Container \"{}\" in Pod \"{}\" failed - error:",
        target.container,
        pod.kubelet_name()
    );
    let failed = |failure: String| HookResult {
        failure: Some(failure),
        fell_back: None,
    };
    match hook {
        Hook::Exec(command) => match exec::to_the_end(command, target).await {
            Ok(ended) if ended.code == 0 => HookResult::default(),
            Ok(ended) => {
                let command = shown(&command.join(" "), COMMAND_BYTES);
                failed(format!(
                    "Exec lifecycle hook ([{command}]) {whose} command '{command}' exited with {}: {}, message: {:?}",
                    ended.code,
                    shown(&ended.errors, ERRORS_BYTES),
                    cut(&ended.output, OUTPUT_BYTES)
                ))
            }
            Err(error) => failed(format!(
                "Exec lifecycle hook ([{}]) {whose} {}, message: \"\"",
                shown(&command.join(" "), COMMAND_BYTES),
                shown(&error.to_string(), ERRORS_BYTES)
            )),
        },
        Hook::HttpGet(get) => match page(get, target).await {
            Ok(fell_back) => HookResult {
                failure: None,
                fell_back,
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

/// The beginning of a text on one line: what a terminal would act upon is escaped.
fn shown(text: &str, most: usize) -> String {
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

/// Asks for a page; any answer is a success. A host that does not speak TLS is asked without, and returned.
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
                // The first trouble is the one to mend.
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
