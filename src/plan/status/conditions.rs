//! The conditions of a pod's status: first those set by other programs, then coracle's own, in the kubelet's order
//! and with its reasons and messages (Kubernetes docs: Pod Lifecycle).

use k8s_openapi::api::core::v1 as core;

use super::super::condition::Foreign;
use super::super::stage::incomplete;
use super::super::state::{ContainerState, Flag, Role};
use super::super::{PodState, preempt};
use super::Phase;
use super::text::{some_text, time};
use crate::spec::{Reason, RestartAction};

/// `observedGeneration`: the manifest's `metadata.generation`, if it has one.
pub(super) fn generation(state: &PodState) -> Option<i64> {
    state.spec.manifest.generation().filter(|g| *g > 0)
}

/// Reason and message.
type Why = (Option<&'static str>, Option<String>);

pub(super) fn all(state: &PodState, phase: Phase) -> Vec<core::PodCondition> {
    let flags = &state.flags;
    let always = Flag {
        yes: true,
        since: state.created.wall,
    };
    let mut own = vec![
        (
            "PodReadyToStartContainers",
            flags.sandbox_ready,
            (None, None),
        ),
        initialized(state, phase, always),
        ("Ready", flags.ready, ready(state, phase)),
        (
            "ContainersReady",
            flags.containers_ready,
            containers_ready(state, phase),
        ),
        scheduled(state, always),
    ];
    if let Some(flag) = flags.devices {
        own.push(("DevicesReady", flag, devices(state)));
    }
    let mut rules = state.spec.all_containers().flat_map(|c| &c.restart_rules);
    if rules.any(|r| r.action == RestartAction::RestartAllContainers) {
        let why = restarting_all(state, phase);
        own.push(("AllContainersRestarting", flags.restarting_all, why));
    }
    let generation = generation(state);
    let disruption = state.verdict.as_ref().filter(|v| v.cause.disrupts());
    let own = own.into_iter().map(|(type_, flag, (reason, message))| {
        let status = if flag.yes { "True" } else { "False" };
        core::PodCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            last_transition_time: Some(time(flag.since)),
            reason: reason.map(str::to_owned),
            message,
            observed_generation: generation,
            ..core::PodCondition::default()
        }
    });
    let disruption = disruption.map(|verdict| core::PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(time(verdict.since.wall)),
        reason: Some("TerminationByKubelet".to_owned()),
        message: Some(preempt::disruption(verdict).to_owned()),
        observed_generation: generation,
        ..core::PodCondition::default()
    });
    let others = state.foreign.iter().map(foreign).chain(disruption);
    let stale = images_current(state, generation);
    let shown = others.chain(resize(state, generation)).chain(own);
    shown.chain(stale).collect()
}

/// Shown only while it is false: a container runs a stored image that could not be compared with its registry's.
fn images_current(state: &PodState, generation: Option<i64>) -> Option<core::PodCondition> {
    let stale = state.containers.iter().find_map(|c| c.fallback.as_ref())?;
    Some(core::PodCondition {
        type_: "coracle.dev/ImagesCurrent".to_owned(),
        status: "False".to_owned(),
        last_transition_time: Some(time(stale.since)),
        reason: Some(Reason::UsingStoredImage.as_str().into_owned()),
        message: Some(stale.message.clone()),
        observed_generation: generation,
        ..core::PodCondition::default()
    })
}

/// Shown only while it is true.
fn resize(state: &PodState, generation: Option<i64>) -> impl Iterator<Item = core::PodCondition> {
    let pending = state.pending.as_ref();
    let pending = pending.and_then(|p| Some((p.since.wall, p.refusal.as_ref()?)));
    let pending = pending.map(|(since, refusal)| {
        let why = (Some(refusal.reason()), Some(refusal.message.clone()));
        ("PodResizePending", since, why)
    });
    let progress = state.flags.resizing.map(|since| {
        let error = state.resizing.error.clone();
        let reason = error.is_some().then_some("Error");
        ("PodResizeInProgress", since, (reason, error))
    });
    let shown = pending.into_iter().chain(progress);
    shown.map(
        move |(type_, since, (reason, message))| core::PodCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            last_transition_time: Some(time(since)),
            reason: reason.map(str::to_owned),
            message,
            observed_generation: generation,
            ..core::PodCondition::default()
        },
    )
}

fn foreign(f: &Foreign) -> core::PodCondition {
    core::PodCondition {
        type_: f.condition.type_.clone(),
        status: f.condition.status.as_str().to_owned(),
        last_transition_time: Some(time(f.since)),
        reason: some_text(&f.condition.reason),
        message: some_text(&f.condition.message),
        ..core::PodCondition::default()
    }
}

/// A held pod is shown like a pod that no node has room for.
fn scheduled(state: &PodState, always: Flag) -> (&'static str, Flag, Why) {
    let (flag, why) = match state.hold() {
        None => (always, (None, None)),
        Some(hold) => {
            let flag = Flag {
                yes: false,
                since: hold.since.wall,
            };
            (flag, (Some("Unschedulable"), Some(hold.message.clone())))
        }
    };
    ("PodScheduled", flag, why)
}

fn initialized(state: &PodState, phase: Phase, always: Flag) -> (&'static str, Flag, Why) {
    let flag = state.flags.initialized;
    let (flag, why) = match phase {
        // Also if the init containers never ran in this round.
        Phase::Succeeded if !flag.yes => (always, (Some("PodCompleted"), None)),
        Phase::Succeeded => (flag, (Some("PodCompleted"), None)),
        Phase::Pending | Phase::Running | Phase::Failed if flag.yes => (flag, (None, None)),
        Phase::Pending | Phase::Running | Phase::Failed => {
            let text = names("incomplete", state.inits().iter().filter(|c| incomplete(c)));
            (flag, (Some("ContainersNotInitialized"), Some(text)))
        }
    };
    ("Initialized", flag, why)
}

fn containers_ready(state: &PodState, phase: Phase) -> Why {
    match phase {
        _ if state.flags.containers_ready.yes => (None, None),
        Phase::Succeeded => (Some("PodCompleted"), None),
        Phase::Failed => (Some("PodFailed"), None),
        Phase::Pending | Phase::Running => {
            let counts = |c: &&ContainerState| c.role != Role::Init && !c.ready();
            let text = names("unready", state.of_manifest().iter().filter(counts));
            (Some("ContainersNotReady"), Some(text))
        }
    }
}

fn ready(state: &PodState, phase: Phase) -> Why {
    if state.flags.ready.yes {
        (None, None)
    } else if state.flags.containers_ready.yes {
        (Some("ReadinessGatesNotReady"), Some(state.closed_gates()))
    } else {
        containers_ready(state, phase)
    }
}

fn restarting_all(state: &PodState, phase: Phase) -> Why {
    match phase {
        _ if state.flags.restarting_all.yes => (
            Some("RestartAllContainersStarted"),
            Some("container exited with restart policy rule".to_owned()),
        ),
        Phase::Succeeded => (Some("PodCompleted"), None),
        Phase::Failed => (Some("PodFailed"), None),
        Phase::Pending | Phase::Running => (None, None),
    }
}

fn devices(state: &PodState) -> Why {
    match state.devices_ready() {
        _ if state.flags.devices.is_some_and(|flag| flag.yes) => (None, None),
        Some(Err((Reason::DeviceRefused, text))) => (Some("DeviceRefused"), Some(text)),
        Some(Err((_, text))) => (Some("DeviceMissing"), Some(text)),
        Some(Ok(())) | None => (Some("DevicesUnknown"), None),
    }
}

/// Names in manifest order, as a Go slice prints.
fn names<'s>(what: &str, some: impl Iterator<Item = &'s ContainerState>) -> String {
    let names: Vec<&str> = some.map(|c| c.name.as_str()).collect();
    format!("containers with {what} status: [{}]", names.join(" "))
}
