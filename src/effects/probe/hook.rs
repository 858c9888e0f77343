//! How is a lifecycle hook carried out? By the same means as a probe, but without a timeout: it ends with its container,
//! or when its future is dropped (kubelet-behaviour §5.9).

use std::time::Duration;

use super::{Target, exec, http};
use crate::spec::probe::HttpGet;
use crate::spec::{Hook, PodSpec};

/// How long a connection may take to come about, as in Go's default transport.
const DIAL: Duration = Duration::from_secs(30);

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
            Ok(ended) => failed(format!(
                "Exec lifecycle hook ([{}]) {whose} command '{}' exited with {}: {}, message: {:?}",
                command.join(" "),
                command.join(" "),
                ended.code,
                ended.errors,
                ended.output
            )),
            Err(error) => failed(format!(
                "Exec lifecycle hook ([{}]) {whose} {error}, message: \"\"",
                command.join(" ")
            )),
        },
        Hook::HttpGet(get) => match page(get, target).await {
            Ok(fell_back) => HookResult {
                failure: None,
                fell_back,
            },
            Err(error) => {
                let error = match get.host {
                    Some(_) => error,
                    None => target.explain(error),
                };
                failed(format!(
                    "HTTP lifecycle hook ({}) {whose} {error}",
                    get.path
                ))
            }
        },
        Hook::TcpSocket => failed("Cannot run handler: invalid handler: tcpSocket".to_owned()),
        Hook::Sleep { .. } => HookResult::default(),
    }
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
