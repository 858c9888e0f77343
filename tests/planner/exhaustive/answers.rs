//! Every way an action can end.

use coracle::plan::event::{ImageFailure, SandboxFailure, StartFailure};
use coracle::plan::{Action, Event, Stamp};
use coracle::spec::{Effective, StopSignal};

/// What the node can say to an action.
pub(super) fn answers(action: &Action, now: Stamp, out: &mut Vec<Event>) {
    let error = || "no".to_owned();
    match action.clone() {
        Action::CreateSandbox { pod } => {
            out.push(Event::SandboxCreated {
                pod: pod.clone(),
                ips: vec!["10.0.0.2".parse().unwrap()],
                next_attempts: Default::default(),
                warnings: vec![],
            });
            let failure = SandboxFailure::Sandbox(error());
            out.push(Event::SandboxFailed {
                pod: pod.clone(),
                failure,
            });
            let failure = SandboxFailure::HostPort { message: error() };
            out.push(Event::SandboxFailed { pod, failure });
        }
        Action::EnsureImage { pod, container } => {
            out.push(Event::ImageReady {
                pod: pod.clone(),
                container: container.clone(),
                image_id: "sha256:1".into(),
            });
            out.push(Event::ImageFailed {
                pod,
                container,
                failure: ImageFailure::Pull,
                message: error(),
            });
        }
        Action::StartContainer { instance, .. } => {
            out.push(Event::ContainerStarted {
                instance: instance.clone(),
                pid: 7,
                at: now,
                effective: Effective::default(),
            });
            for failure in [StartFailure::Create, StartFailure::Run] {
                out.push(Event::ContainerStartFailed {
                    instance: instance.clone(),
                    failure,
                    message: error(),
                });
            }
        }
        Action::Signal {
            instance, signal, ..
        } => {
            assert!(matches!(signal, StopSignal::Stop | StopSignal::Kill));
            out.push(Event::SignalSent {
                instance: instance.clone(),
                signal,
                at: now.time,
            });
            let error = error();
            out.push(Event::SignalFailed { instance, error });
        }
        Action::Resize { pod, .. } => {
            out.push(Event::Resized { pod: pod.clone() });
            let error = error();
            out.push(Event::ResizeFailed { pod, error });
        }
        Action::RemoveSandbox { pod, .. } => {
            out.push(Event::SandboxRemoved { pod: pod.clone() });
            let error = error();
            out.push(Event::SandboxRemoveFailed { pod, error });
        }
    }
}
