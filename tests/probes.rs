//! Probes against real servers and a real shim: their results, in the kubelet's words, within their timeouts. Needs
//! root, `busybox-static`, `openssl`, `python3` and `python3-grpcio`.

// These tests use only a part of it.
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
use coracle::shim::protocol::Purpose;
use coracle::spec::{ProbeHandler, ProbeKind};

/// Runs a probe, and checks that it does not exceed its timeout.
fn ask(handler: &ProbeHandler, timeout_ms: u64) -> Outcome {
    let target = Target {
        ip: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        instead: None,
        shim_socket: "/nowhere/shim.sock".into(),
        container: "c".to_owned(),
        attempt: 0,
        purpose: Purpose::Probe(ProbeKind::Liveness),
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
