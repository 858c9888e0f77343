//! Do probes find out what they should, in the kubelet's words, and never take longer than they may? Against real
//! servers and a real shim. Needs root, `busybox-static`, `openssl`, `python3` and `python3-grpcio`.

// Not all of it is used here.
#[expect(dead_code, reason = "shared with the tests of the shim")]
mod shim_world;

#[path = "probes/exec.rs"]
mod exec;
#[path = "probes/grpc.rs"]
mod grpc;
#[path = "probes/hook.rs"]
mod hook;
#[path = "probes/http.rs"]
mod http;
#[path = "probes/servers.rs"]
mod servers;
#[path = "probes/tcp.rs"]
mod tcp;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use coracle::effects::probe::{Outcome, Target, run};
use coracle::spec::ProbeHandler;

/// Carries a probe out, and sees to it that it takes no longer than it may.
fn ask(handler: &ProbeHandler, timeout_ms: u64) -> Outcome {
    let target = Target {
        ip: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        instead: None,
        shim_socket: "/nowhere/shim.sock".into(),
        container: "c".to_owned(),
    };
    let began = Instant::now();
    let outcome = smol::block_on(run(handler, timeout_ms, &target));
    let late = Duration::from_millis(timeout_ms) + Duration::from_secs(2);
    assert!(began.elapsed() < late, "{outcome:?} took too long");
    outcome
}

fn success(text: &str) -> Outcome {
    Outcome::Success(text.to_owned())
}

fn failure(text: &str) -> Outcome {
    Outcome::Failure(text.to_owned())
}

fn error(text: &str) -> Outcome {
    Outcome::Error(text.to_owned())
}
