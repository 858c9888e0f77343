//! Connections to the shims of all pods, and the tasks that listen to them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard};

use smol::channel::{Receiver, Sender};

use super::Input;
use crate::effects::sandbox::{Exited, Sandboxes, ShimClient};
use crate::plan::event::Instance;
use crate::plan::{Event, PodFact, RunFact};
use crate::spec::PodUid;

/// A live shim.
#[derive(Debug)]
struct Link {
    client: ShimClient,
    /// Process id of the shim.
    pid: u32,
    /// Only if this agent started it; a shim from before an agent restart is init's child.
    child: Option<Child>,
    ips: Vec<IpAddr>,
    /// The end of the connection is expected: the pod is being removed.
    closing: bool,
}

/// All live shims.
#[derive(Debug, Clone, Default)]
pub(super) struct Links {
    map: Arc<Mutex<HashMap<PodUid, Link>>>,
}

impl Links {
    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, Link>> {
        self.map.lock().expect("no panic holds this lock")
    }

    pub(super) fn client(&self, pod: &PodUid) -> Option<ShimClient> {
        self.lock().get(pod).map(|link| link.client.clone())
    }

    pub(super) fn ips(&self, pod: &PodUid) -> Vec<IpAddr> {
        self.lock()
            .get(pod)
            .map(|link| link.ips.clone())
            .unwrap_or_default()
    }

    pub(super) fn set_ips(&self, pod: &PodUid, ips: Vec<IpAddr>) {
        if let Some(link) = self.lock().get_mut(pod) {
            link.ips = ips;
        }
    }

    pub(super) fn insert(
        &self,
        pod: &PodUid,
        client: ShimClient,
        pid: u32,
        child: Option<Child>,
        ips: Vec<IpAddr>,
    ) {
        self.lock().insert(
            pod.clone(),
            Link {
                client,
                pid,
                child,
                ips,
                closing: false,
            },
        );
    }

    /// Marks the pod as being removed, so that the end of its shim is expected.
    pub(super) fn begin_closing(&self, pod: &PodUid) -> Option<ShimClient> {
        let mut map = self.lock();
        let link = map.get_mut(pod)?;
        link.closing = true;
        Some(link.client.clone())
    }

    /// Drops the shim and reaps it. Blocking, but only for as long as a killed process takes to end.
    pub(super) fn reap(&self, pod: &PodUid) {
        let link = self.lock().remove(pod);
        let Some(mut link) = link else { return };
        link.client.close();
        if let Some(child) = &mut link.child {
            // A shim that closed its connection has ended or is stuck; it is useless either way.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills a shim that does not answer; its listener then reports it as lost.
    pub(super) fn kill(&self, pod: &PodUid) {
        if let Some(link) = self.lock().get(pod) {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(link.pid).unwrap_or(0));
            if pid.as_raw() > 1 {
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
            link.client.close();
        }
    }

    /// Listens to a shim until it is gone, and reports that unless it was expected. It reports only after
    /// `announced` is closed: the loop must know a shim before it can lose it. Runs as a task.
    pub(super) async fn listen(
        self,
        pod: PodUid,
        client: ShimClient,
        sandboxes: Sandboxes,
        inputs: Sender<Input>,
        announced: Receiver<()>,
    ) {
        client
            .listen(async |exited: Exited| {
                let Exited {
                    container,
                    attempt,
                    exit,
                } = exited;
                let instance = Instance {
                    pod: pod.clone(),
                    container,
                    attempt,
                };
                let _ = inputs
                    .send(Input::Event(Event::Run {
                        instance,
                        fact: RunFact::Exited { exit },
                    }))
                    .await;
            })
            .await;
        let _ = announced.recv().await;
        let expected = self.lock().get(&pod).is_none_or(|link| link.closing);
        if expected {
            return;
        }
        let links = self.clone();
        let uid = pod.clone();
        let cleared = super::unblock(move || {
            links.reap(&uid);
            sandboxes.clear(&uid)
        })
        .await;
        if let Err(error) = cleared {
            tracing::warn!(pod = %pod, "could not clean up after a lost shim: {}, going on", crate::chain(&error));
        }
        let _ = inputs
            .send(Input::Event(Event::Pod {
                uid: pod,
                fact: PodFact::SandboxLost,
            }))
            .await;
    }
}
