//! Every way an action can end.

use coracle::plan::event::{ImageFailure, SandboxFailure, StartFailure};
use coracle::plan::{Action, Event, PodFact, RunFact};
use coracle::types::Stamp;
use coracle::types::{Effective, StopSignal};

/// The outcomes that the node can report for an action.
pub(super) fn answers(action: &Action, now: Stamp, out: &mut Vec<Event>) {
    let error = || "no".to_owned();
    match action.clone() {
        Action::CreateSandbox { pod } => {
            out.push(Event::Pod {
                uid: pod.clone(),
                fact: PodFact::SandboxCreated {
                    ips: vec!["10.0.0.2".parse().unwrap()],
                    next_attempts: Default::default(),
                    warnings: vec![],
                },
            });
            let failure = SandboxFailure::Sandbox(error());
            out.push(Event::Pod {
                uid: pod.clone(),
                fact: PodFact::SandboxFailed { failure },
            });
            let failure = SandboxFailure::HostPort { message: error() };
            out.push(Event::Pod {
                uid: pod,
                fact: PodFact::SandboxFailed { failure },
            });
        }
        Action::EnsureImage { pod, container } => {
            out.push(Event::Pod {
                uid: pod.clone(),
                fact: PodFact::ImageReady {
                    container: container.clone(),
                    image_id: "sha256:1".into(),
                    volumes: Default::default(),
                    pulled: Default::default(),
                },
            });
            out.push(Event::Pod {
                uid: pod,
                fact: PodFact::ImageFailed {
                    container,
                    volume: None,
                    failure: ImageFailure::Pull,
                    message: error(),
                },
            });
        }
        Action::StartContainer { instance, .. } => {
            out.push(Event::Run {
                instance: instance.clone(),
                fact: RunFact::Started {
                    pid: 7,
                    at: now,
                    effective: Effective::default(),
                },
            });
            for failure in [StartFailure::Create, StartFailure::Run] {
                out.push(Event::Run {
                    instance: instance.clone(),
                    fact: RunFact::StartFailed {
                        failure,
                        message: error(),
                    },
                });
            }
        }
        Action::Signal {
            instance, signal, ..
        } => {
            assert!(matches!(signal, StopSignal::Stop | StopSignal::Kill));
            out.push(Event::Run {
                instance: instance.clone(),
                fact: RunFact::SignalSent {
                    signal,
                    at: now.time,
                },
            });
            let error = error();
            out.push(Event::Run {
                instance,
                fact: RunFact::SignalFailed { error },
            });
        }
        Action::Resize { pod, .. } => {
            out.push(Event::Pod {
                uid: pod.clone(),
                fact: PodFact::Resized,
            });
            let error = error();
            out.push(Event::Pod {
                uid: pod,
                fact: PodFact::ResizeFailed { error },
            });
        }
        Action::RemoveSandbox { pod, .. } => {
            out.push(Event::Pod {
                uid: pod.clone(),
                fact: PodFact::SandboxRemoved,
            });
            let error = error();
            out.push(Event::Pod {
                uid: pod,
                fact: PodFact::SandboxRemoveFailed { error },
            });
        }
    }
}
