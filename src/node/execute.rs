//! The execution of actions. Each arm of one match runs as a task and ends in exactly one outcome event.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use smol::channel::{Receiver, Sender, bounded};

use super::bundles::Desk;
use super::ensure_image::DAMAGED;
use super::facts::Facts;
use super::garbage::Cleaning;
use super::host_paths::HostPaths;
use super::network::{NameServer, Progress};
use super::pods::Links;
use super::pulls::Pulls;
use super::rollouts::OnDisk;
use super::start::Readers;
use super::turns::Turns;
use super::user_namespaces::UserNamespaces;
use super::{Input, exits};
use crate::config::Config;
use crate::effects::probe::Target;
use crate::effects::sandbox::{
    ContainerOrder, Leave, PrepareError, SandboxError, Sandboxes, start_request,
};
use crate::effects::volume;
use crate::images::{Image, ImageStore};
use crate::network::NetworkError;
use crate::plan::action::Keep;
use crate::plan::event::{Instance, SandboxFailure, StartFailure};
use crate::plan::{Action, Event, PodFact, RunFact};
use crate::shim::protocol::{ContainerRecord, FailedStep, Purpose, Reply, Request};
use crate::spec::{ContainerResources, PodResources, PodSpec, PodUid, Reason};
use crate::types::StopSignal;

/// The binary of image workers: the running one.
pub(super) const WORKER: &str = "/proc/self/exe";

/// Where a pod on the host network is probed: at the address that its status shows.
fn address_on_node(ips: &[IpAddr]) -> (Option<IpAddr>, Option<&'static str>) {
    match ips.first() {
        Some(ip) => (Some(*ip), None),
        None => (
            Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            Some("the node has no address, so 127.0.0.1 was asked"),
        ),
    }
}

/// What tasks need; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Tools {
    pub(super) config: Arc<Config>,
    pub(super) sandboxes: Sandboxes,
    pub(super) images: Arc<ImageStore>,
    /// Held while archives of the preload directories are imported; one import at a time.
    pub(super) importing: Arc<smol::lock::Mutex<()>>,
    /// Pulls of images.
    pub(super) pulls: Pulls,
    /// Changes of bundles.
    pub(super) bundles: Desk,
    /// What is in force instead of what files say.
    pub(super) instead: OnDisk,
    /// Clients that want the manifests read.
    pub(super) readers: Readers,
    pub(super) links: Links,
    pub(super) cleaning: Cleaning,
    /// The lanes for pods on the host network, and for those that use the bridge, which may have to wait for the
    /// packet filter.
    pub(super) turns: [Turns; 2],
    pub(super) host_paths: HostPaths,
    pub(super) facts: Facts,
    pub(super) name_server: NameServer,
    pub(super) user_namespaces: UserNamespaces,
    /// How far the services that containers get as variables are served.
    pub(super) progress: Progress,
    pub(super) inputs: Sender<Input>,
}

impl Tools {
    /// Where probes and hooks reach a container.
    pub(super) fn target(&self, instance: &Instance, spec: &PodSpec, purpose: Purpose) -> Target {
        let (ip, instead) = match spec.host_network {
            true => address_on_node(&self.facts.now().ips),
            false => (self.links.ips(&instance.pod).first().copied(), None),
        };
        Target {
            ip,
            instead,
            shim_socket: self.config.layout.pod_run(&instance.pod).shim_socket(),
            container: instance.container.clone(),
            attempt: instance.attempt,
            purpose,
        }
    }

    /// Carries out one action and reports its outcome.
    pub(super) async fn execute(self, action: Action, spec: Arc<PodSpec>) {
        let event = match action {
            Action::CreateSandbox { pod } => self.create_sandbox(pod, &spec).await,
            Action::EnsureImage { pod, container } => {
                self.ensure_image(pod, container, &spec).await
            }
            Action::StartContainer {
                instance,
                image_id,
                volumes,
            } => {
                self.start_container(instance, (image_id, volumes), spec)
                    .await
            }
            Action::Resize {
                pod,
                to,
                containers,
            } => self.resize(pod, to, containers, spec).await,
            Action::Signal {
                instance, signal, ..
            } => self.signal(instance, signal).await,
            Action::RemoveSandbox { pod, keep } => self.remove_sandbox(pod, keep, spec).await,
        };
        if let Some(event) = event {
            let _ = self.inputs.send(Input::Event(event)).await;
        }
    }

    async fn create_sandbox(&self, pod: PodUid, spec: &Arc<PodSpec>) -> Option<Event> {
        let (announcing, announced) = bounded(1);
        match self.try_create_sandbox(&pod, spec, announced).await {
            Ok(event) => {
                let _ = self.inputs.send(Input::Event(event)).await;
                drop(announcing);
                None
            }
            Err(error) => {
                let (links, sandboxes, uid) =
                    (self.links.clone(), self.sandboxes.clone(), pod.clone());
                links.begin_closing(&pod);
                // A partial sandbox must not stay: the next try starts from nothing.
                let cleared = super::unblock_for(spec, move || {
                    links.reap(&uid);
                    let cleared = sandboxes.clear(&uid);
                    cleared.and(sandboxes.disconnect(&uid))
                });
                if let Err(error) = cleared.await {
                    tracing::debug!("{}", crate::chain(&error));
                }
                let failure = match error {
                    SandboxError::Volume(failure) => SandboxFailure::Volume {
                        volume: failure.volume,
                        error: failure.source.to_string(),
                    },
                    SandboxError::Network(
                        error @ (NetworkError::PortOfPod { .. }
                        | NetworkError::PortOfService { .. }
                        | NetworkError::PortOfProcess { .. }),
                    ) => SandboxFailure::HostPort {
                        message: error.to_string(),
                    },
                    other => SandboxFailure::Sandbox(crate::chain(&other)),
                };
                Some(Event::Pod {
                    uid: pod,
                    fact: PodFact::SandboxFailed { failure },
                })
            }
        }
    }

    async fn try_create_sandbox(
        &self,
        pod: &PodUid,
        spec: &Arc<PodSpec>,
        announced: Receiver<()>,
    ) -> Result<Event, SandboxError> {
        if volume::uses_host(spec) {
            let (owned, layout) = (spec.clone(), self.config.layout.clone());
            let paths = super::unblock_of(spec, move || volume::host_paths(&layout, &owned)).await;
            let answered = self.host_paths.answer(paths).await;
            answered.map_err(SandboxError::Volume)?;
        }
        let turns = &self.turns[usize::from(spec.uses_bridge())];
        let _turn = turns.take(spec.priority).await;
        let (sandboxes, owned) = (self.sandboxes.clone(), spec.clone());
        // Remains of an earlier sandbox would be in the way.
        super::unblock_of(spec, move || sandboxes.begin(&owned)).await?;
        let (user_namespaces, owned) = (self.user_namespaces.clone(), spec.clone());
        let users = super::unblock_of(spec, move || user_namespaces.range(&owned)).await?;
        let (sandboxes, owned) = (self.sandboxes.clone(), spec.clone());
        let connected = super::unblock_for(spec, move || {
            let ips = sandboxes.connect(&owned, users)?;
            Ok::<_, SandboxError>((ips, sandboxes.resolver_warnings(&owned)))
        });
        let (sandboxes, owned) = (self.sandboxes.clone(), spec.clone());
        let facts = self.facts.now();
        let prepared = super::unblock_of(spec, move || {
            sandboxes.prepare(&owned, &facts, users)?;
            let former = exits::read(&sandboxes.config.layout, &owned.uid, false);
            let values = sandboxes.cgroups.pod_values(&owned, owned.resources);
            let unkept = values.mismatches();
            let unkept: Vec<_> = unkept.map(|text| (Reason::CgroupMismatch, text)).collect();
            Ok::<_, SandboxError>((sandboxes.next_attempts(&owned), former, unkept))
        });
        let (connected, prepared) = smol::future::zip(connected, prepared).await;
        let ((ips, mut warnings), (next_attempts, former, unkept)) = (connected?, prepared?);
        warnings.extend(unkept);
        if let Some(event) = former {
            let _ = self.inputs.send(Input::Event(event)).await;
        }
        if !ips.is_empty() || self.sandboxes.uses_name_server(spec) {
            self.name_server.ensure(&self.sandboxes.network).await;
        }
        let (child, client) = self.sandboxes.start_shim(spec).await?;
        let pid = child.id();
        self.links
            .insert(pod, client.clone(), pid, Some(child), ips.clone());
        let listener = self.links.clone().listen(
            pod.clone(),
            client.clone(),
            self.sandboxes.clone(),
            self.inputs.clone(),
            announced,
        );
        super::spawn(listener);
        client.hello().await?;
        Ok(Event::Pod {
            uid: pod.clone(),
            fact: PodFact::SandboxCreated {
                ips,
                warnings,
                next_attempts,
            },
        })
    }

    async fn start_container(
        &self,
        instance: Instance,
        images: (String, BTreeMap<String, String>),
        spec: Arc<PodSpec>,
    ) -> Option<Event> {
        let Some(client) = self.links.client(&instance.pod) else {
            return self.lost(instance.pod).await;
        };
        if spec.service_links {
            self.progress.settled(&spec.key.namespace).await;
        }
        if !spec.host_network {
            // After a start of the agent, a container of a live pod would miss it.
            drop(self.name_server.hold().await);
        }
        let tools = self.clone();
        let wanted = instance.clone();
        let owned = spec.clone();
        let ready = move || tools.start_request(&wanted, &images, &owned);
        // Its resolver file names the server on the bridge.
        let request = super::unblock_for(&spec, ready).await;
        let request = match request {
            Ok(request) => request,
            Err((failure, message)) => return Some(not_started(instance, failure, message)),
        };
        match client.request(&Request::Start(Box::new(request))).await {
            Ok(Reply::Started(record)) => Some(self.started(instance, *record, &spec).await),
            Ok(Reply::Failed { step, message }) => {
                let failure = match step {
                    FailedStep::Run => StartFailure::Run,
                    FailedStep::Config => StartFailure::Config,
                    FailedStep::Create | FailedStep::Request => StartFailure::Create,
                };
                Some(not_started(instance, failure, message))
            }
            Ok(other) => {
                let message = format!("unexpected answer of the shim: {other:?}");
                Some(not_started(instance, StartFailure::Create, message))
            }
            Err(error) => {
                tracing::warn!(pod = %instance.pod, "{}, killing the shim", crate::chain(&error));
                self.links.kill(&instance.pod);
                // The listener reports `SandboxLost` when the shim is gone.
                None
            }
        }
    }

    /// The outcome of a start. A container that has already ended again has two: the first is sent ahead.
    async fn started(
        &self,
        instance: Instance,
        record: ContainerRecord,
        spec: &Arc<PodSpec>,
    ) -> Event {
        if record.exit.is_none() {
            self.check_values(&instance, record.pid, spec).await;
        }
        let started = Event::Run {
            instance: instance.clone(),
            fact: RunFact::Started {
                pid: record.pid,
                at: record.started,
                effective: record.effective,
            },
        };
        let Some(exit) = record.exit else {
            return started;
        };
        let _ = self.inputs.send(Input::Event(started)).await;
        Event::Run {
            instance,
            fact: RunFact::Exited { exit },
        }
    }

    /// Reads back the limits of a container that has just been started, and reports those that do not apply.
    async fn check_values(&self, instance: &Instance, pid: u32, spec: &Arc<PodSpec>) {
        let (cgroups, owned) = (self.sandboxes.cgroups.clone(), spec.clone());
        let name = instance.container.clone();
        let read = move || {
            let given = (owned.container(&name)?.resources, owned.resources);
            let values = cgroups.container_values(&owned, (&name, pid), given)?;
            Some(
                values
                    .mismatches()
                    .map(|text| (Reason::CgroupMismatch, text))
                    .collect(),
            )
        };
        let warnings: Option<Vec<_>> = super::unblock_for(spec, read).await;
        if let Some(warnings) = warnings.filter(|all| !all.is_empty()) {
            let event = Event::Pod {
                uid: instance.pod.clone(),
                fact: PodFact::Warned {
                    container: Some(instance.container.clone()),
                    warnings,
                },
            };
            let _ = self.inputs.send(Input::Event(event)).await;
        }
    }

    /// Blocking.
    fn start_request(
        &self,
        instance: &Instance,
        (image_id, volumes): &(String, BTreeMap<String, String>),
        spec: &PodSpec,
    ) -> Result<crate::shim::protocol::StartRequest, (StartFailure, String)> {
        if !spec.host_network {
            // No container runs on the bridge before the packet rules are in force.
            let settled = self.sandboxes.network.settled();
            settled.map_err(|error| (StartFailure::Create, crate::chain(&error)))?;
        }
        let image = self.image(image_id)?;
        let volume_images = volumes
            .iter()
            .map(|(volume, id)| Ok((volume.clone(), self.image(id)?)))
            .collect::<Result<_, _>>()?;
        let container = spec.container(&instance.container).ok_or_else(|| {
            (
                StartFailure::Config,
                format!("no container {}", instance.container),
            )
        })?;
        let ips = self.links.ips(&instance.pod);
        let facts = self.facts.now();
        let configuration = self.sandboxes.configuration.now();
        let volumes = volume::roots(&self.config.layout, spec);
        let order = ContainerOrder {
            configuration: &configuration,
            volumes: &volumes,
            pod: spec,
            container,
            attempt: instance.attempt,
            image: &image,
            volume_images: &volume_images,
            node: &facts,
            ips: &ips,
        };
        start_request(&self.sandboxes, &order).map_err(|error| match error {
            PrepareError::Config(error) => (StartFailure::Config, error.to_string()),
            PrepareError::Cgroup(error) => (StartFailure::Create, crate::chain(&error)),
        })
    }

    /// Blocking. An image by its id.
    fn image(&self, id: &str) -> Result<Image, (StartFailure, String)> {
        let error = match self.images.lookup(id) {
            Ok(Some(image)) => return Ok(image),
            Ok(None) if self.images.is_damaged(id) => format!("image {id} {DAMAGED}"),
            Ok(None) => format!("image {id} is gone from the store"),
            Err(error) => crate::chain(&error),
        };
        Err((StartFailure::Create, error))
    }

    async fn signal(&self, instance: Instance, signal: StopSignal) -> Option<Event> {
        let Some(client) = self.links.client(&instance.pod) else {
            return self.lost(instance.pod).await;
        };
        let request = Request::Signal {
            container: instance.container.clone(),
            attempt: instance.attempt,
            signal,
        };
        match client.request(&request).await {
            Ok(Reply::Signalled { at }) => Some(Event::Run {
                instance,
                fact: RunFact::SignalSent { signal, at },
            }),
            Ok(Reply::Failed { message, .. }) => Some(Event::Run {
                instance,
                fact: RunFact::SignalFailed { error: message },
            }),
            Ok(other) => Some(Event::Run {
                instance,
                fact: RunFact::SignalFailed {
                    error: format!("unexpected answer: {other:?}"),
                },
            }),
            Err(error) => {
                tracing::warn!(pod = %instance.pod, "{}, killing the shim", crate::chain(&error));
                self.links.kill(&instance.pod);
                None
            }
        }
    }

    async fn resize(
        &self,
        pod: PodUid,
        to: PodResources,
        containers: Vec<(String, ContainerResources)>,
        spec: Arc<PodSpec>,
    ) -> Option<Event> {
        let cgroups = self.sandboxes.cgroups.clone();
        let resized = super::unblock(move || cgroups.resize(&spec, to, &containers)).await;
        Some(match resized {
            Ok(()) => Event::Pod {
                uid: pod,
                fact: PodFact::Resized,
            },
            Err(error) => Event::Pod {
                uid: pod,
                fact: PodFact::ResizeFailed {
                    error: crate::chain(&error),
                },
            },
        })
    }

    /// No shim answers: make sure that it is gone, and report that.
    async fn lost(&self, pod: PodUid) -> Option<Event> {
        let (sandboxes, uid) = (self.sandboxes.clone(), pod.clone());
        let _ = super::unblock(move || sandboxes.clear(&uid)).await;
        Some(Event::Pod {
            uid: pod,
            fact: PodFact::SandboxLost,
        })
    }

    async fn remove_sandbox(&self, pod: PodUid, keep: Keep, spec: Arc<PodSpec>) -> Option<Event> {
        if let Some(client) = self.links.begin_closing(&pod) {
            // If it does not end by itself, `clear` kills it with its cgroup.
            let _ = client.request(&Request::Shutdown).await;
        }
        let (links, sandboxes, uid) = (self.links.clone(), self.sandboxes.clone(), pod.clone());
        let layout = self.config.layout.clone();
        let owned = spec.clone();
        let gate = self.cleaning.gate(&pod);
        let removed = super::unblock_for(&spec, move || {
            links.reap(&uid);
            let cleared = sandboxes.clear(&uid);
            let (leave, marker) = match keep {
                Keep::Everything => (Leave::Remains, Some(layout.pod_run(&uid).finished())),
                Keep::Logs => (Leave::Logs, Some(layout.pod_run(&uid).finished())),
                Keep::Nothing => (Leave::Nothing, None),
            };
            cleared.and(sandboxes.disconnect(&uid))?;
            if leave == Leave::Nothing {
                gate.shut();
            }
            sandboxes.remove_files(&uid, &owned.key, leave)?;
            if let Some(marker) = marker {
                // Marks the sandbox as removed on purpose, for the case of an agent restart.
                std::fs::write(&marker, b"").map_err(|source| SandboxError::Access {
                    action: "write",
                    path: marker,
                    source,
                })?;
            }
            Ok::<_, SandboxError>(())
        });
        Some(match removed.await {
            Ok(()) => Event::Pod {
                uid: pod,
                fact: PodFact::SandboxRemoved,
            },
            Err(error) => Event::Pod {
                uid: pod,
                fact: PodFact::SandboxRemoveFailed {
                    error: crate::chain(&error),
                },
            },
        })
    }
}

fn not_started(instance: Instance, failure: StartFailure, message: String) -> Event {
    Event::Run {
        instance,
        fact: RunFact::StartFailed { failure, message },
    }
}
