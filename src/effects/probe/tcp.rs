//! TCP probes: a connection is opened and closed (Kubernetes docs: Probes).

use std::time::Duration;

use super::dial::{DialError, dial, join_host_port};
use super::{Outcome, within};

pub(super) async fn run(host: &str, port: u16, timeout: Duration) -> Outcome {
    match within(timeout, dial(host, port, timeout)).await {
        Some(Ok(_)) => Outcome::Success(String::new()),
        Some(Err(DialError::Refused(text))) => Outcome::Failure(text),
        Some(Err(DialError::Own(text))) => Outcome::Error(text),
        None => Outcome::Failure(format!(
            "dial tcp {}: i/o timeout",
            join_host_port(host, port)
        )),
    }
}
