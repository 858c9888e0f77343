//! Probes: when each one runs, what its outcomes add up to, and which containers are killed for them (Kubernetes
//! docs: Probes). Probes are not pod actions: they run beside them.
//!
//! ```text
//! started ──► startup probe ──success──► liveness and readiness probes, side by side
//!                   │ failure                    │ liveness failure
//!                   └────────► stop signal ◄─────┘   (no more of these until the next run)
//! ```
//!
//! The first probe runs as early as allowed, so that a container is ready early. A kubelet's first probe comes up
//! to one period later. Failures of probes that begin within a period of the first one therefore do not count: a
//! container that survives on a kubelet survives here (`coracle help differences`).

use std::collections::BTreeSet;

use super::event::Instance;
use super::health::{Firsts, Health, Streak, Streaks};
use super::kill::KillReason;
use super::notice::Notices;
use super::run::Running;
use super::state::{ContainerState, Role};
use super::{Event, Notice, PodState, RunFact, Step, Task, Time, hook};
use crate::spec::{ContainerSpec, Probe, ProbeKind, Probes, Reason};

/// A probe that could not run is tried this many times in a row before that counts as no outcome (the kubelet's
/// `maxProbeRetries`, which includes the first time).
pub const ERROR_TRIES: u32 = 3;

/// One probe to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeOrder {
    /// The run that it inspects.
    pub instance: Instance,
    /// Which probe of the container.
    pub probe: ProbeKind,
}

impl ProbeOrder {
    /// That the probe begins.
    pub fn started(self) -> Event {
        Event::Run {
            instance: self.instance,
            fact: RunFact::ProbeStarted(self.probe),
        }
    }

    /// That the probe was carried out.
    pub fn done(self, outcome: ProbeOutcome) -> Event {
        Event::Run {
            instance: self.instance,
            fact: RunFact::ProbeDone {
                probe: self.probe,
                outcome,
            },
        }
    }
}

/// The outcome of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// Success.
    Success,
    /// Success, with a warning for people.
    Warning(String),
    /// Failure, with the output.
    Failure(String),
    /// It could not run.
    Error(String),
    /// The answer could not be read to its end. Counts as `Error`; only its event has other words.
    Unread(String),
}

/// The results of one probe for the newest run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Track {
    /// When the next probe is due.
    pub next: Time,
    /// When the first probe began.
    pub first: Option<Time>,
    /// Whether a probe is running.
    pub in_flight: bool,
    /// The running probe began too early for its failure to count.
    pub early: bool,
    /// The running probe was edited meanwhile, so its outcome does not count.
    pub outdated: bool,
    /// It was edited, and has not succeeded since: its result is that of the former probe.
    pub unproved: bool,
    /// The newest outcome and how often it came in a row, up to the threshold.
    pub row: Option<(bool, u32)>,
    /// The result of the outcomes so far.
    pub result: Option<bool>,
    /// Errors in a row.
    pub errors: u32,
}

impl Track {
    /// The outcomes that count against the result; `at_first` is the result until there is one.
    fn streak(&self, at_first: bool) -> Option<Streak> {
        let (well, times) = self.row?;
        let counts = well != self.result.unwrap_or(at_first);
        let next = self.next;
        counts.then_some(Streak { well, times, next })
    }

    /// Restores the results from before an agent restart.
    fn resume(&mut self, first: Option<Time>, streak: Option<Streak>) {
        self.first = first;
        if let Some(streak) = streak {
            self.row = Some((streak.well, streak.times));
            self.next = streak.next;
        }
    }
}

/// The results of all probes of the newest run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tracks {
    /// Once it failed, it does not run again until the next run.
    pub liveness: Track,
    /// Decides whether the container is ready.
    pub readiness: Track,
    /// Once it has a result, it does not run again until the next run.
    pub startup: Track,
    /// When an edited one succeeded first.
    pub proved: Option<Time>,
}

impl Tracks {
    /// The probes of a run that has just started.
    pub(super) fn new(probes: &Probes, started: Time) -> Self {
        let track = |probe: &Option<Probe>| Track {
            next: started.plus(probe.as_ref().map_or(0, |p| p.initial_delay_ms)),
            ..Track::default()
        };
        Self {
            liveness: track(&probes.liveness),
            readiness: track(&probes.readiness),
            startup: track(&probes.startup),
            proved: None,
        }
    }

    /// Restores the probes of a run from before an agent restart.
    pub(super) fn recovered(probes: &Probes, started: Time, known: Option<&Health>) -> Self {
        let mut tracks = Self::new(probes, started);
        let Some(known) = known else {
            for track in [
                &mut tracks.startup,
                &mut tracks.liveness,
                &mut tracks.readiness,
            ] {
                track.first = Some(track.next);
            }
            return tracks;
        };
        let (firsts, streaks) = (&known.firsts, &known.streaks);
        tracks.startup.result = (probes.startup.is_some() && known.started).then_some(true);
        tracks.readiness.result = (probes.readiness.is_some() && known.ready).then_some(true);
        tracks.readiness.unproved = probes.readiness.is_some() && known.unproved;
        tracks.liveness.unproved = probes.liveness.is_some() && known.unproved;
        tracks.proved = known.proved;
        tracks.startup.resume(firsts.startup, streaks.startup);
        tracks.liveness.resume(firsts.liveness, streaks.liveness);
        tracks.readiness.resume(firsts.readiness, streaks.readiness);
        tracks
    }

    /// Whether a probe that goes on was edited, and has not succeeded since.
    pub(super) fn unproved(&self) -> bool {
        self.readiness.unproved || self.liveness.unproved
    }

    /// What is saved of the counts for an agent restart. It stays the same as long as all is as usual.
    pub(super) fn streaks(&self) -> Streaks {
        Streaks {
            startup: self.startup.streak(true),
            liveness: self.liveness.streak(true),
            readiness: self.readiness.streak(false),
        }
    }

    /// When each probe first ran.
    pub(super) fn firsts(&self) -> Firsts {
        Firsts {
            startup: self.startup.first,
            liveness: self.liveness.first,
            readiness: self.readiness.first,
        }
    }

    fn of(&self, kind: ProbeKind) -> &Track {
        match kind {
            ProbeKind::Liveness => &self.liveness,
            ProbeKind::Readiness => &self.readiness,
            ProbeKind::Startup => &self.startup,
        }
    }

    fn of_mut(&mut self, kind: ProbeKind) -> &mut Track {
        match kind {
            ProbeKind::Liveness => &mut self.liveness,
            ProbeKind::Readiness => &mut self.readiness,
            ProbeKind::Startup => &mut self.startup,
        }
    }
}

impl PodState {
    /// Makes the probes that the shim holds from before an agent restart due at once: asking the shim again gives
    /// the outcome.
    pub(super) fn join_probes(&mut self, container: &str, held: &BTreeSet<ProbeKind>, now: Time) {
        let container = self.container_mut(container);
        if let Some(run) = container.and_then(|c| c.run.running_mut()) {
            for kind in held {
                run.tracks.of_mut(*kind).next = now;
            }
        }
    }
}

fn spec_of(probes: &Probes, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Liveness => probes.liveness.as_ref(),
        ProbeKind::Readiness => probes.readiness.as_ref(),
        ProbeKind::Startup => probes.startup.as_ref(),
    }
}

/// Whether a running container counts as started: its `postStart` hook and its startup probe, if any, are done.
pub(super) fn has_started(spec: &ContainerSpec, run: &Running) -> bool {
    hook::is_up(spec, run)
        && (spec.probes.startup.is_none() || run.tracks.startup.result == Some(true))
}

/// Whether a running container is ready.
pub(super) fn is_ready(spec: &ContainerSpec, run: &Running) -> bool {
    let passed = spec.probes.readiness.is_none() || run.tracks.readiness.result == Some(true);
    has_started(spec, run) && passed
}

/// Whether the pod is well only because it was before an edit of a readiness or liveness probe.
pub(super) fn is_unproved(pod: &PodState) -> bool {
    let runs = pod.containers.iter().filter_map(|c| c.run.running());
    runs.into_iter().any(|run| run.tracks.unproved())
}

/// When an edited probe of the pod succeeded first, if one was edited in its present run.
pub(super) fn proved_at(pod: &PodState) -> Option<Time> {
    let runs = pod.containers.iter().filter_map(|c| c.run.running());
    runs.filter_map(|run| run.tracks.proved).max()
}

/// The probe for whose failure this container is killed.
pub(super) fn failed(c: &ContainerState) -> Option<ProbeKind> {
    let tracks = &c.run.running()?.tracks;
    if tracks.startup.result == Some(false) {
        Some(ProbeKind::Startup)
    } else if tracks.liveness.result == Some(false) {
        Some(ProbeKind::Liveness)
    } else {
        None
    }
}

/// Begins a probe of this pod.
pub fn next(pod: &PodState, now: Time) -> Step {
    let mut wake: Option<Time> = None;
    for (spec, container) in pod.each() {
        let Some(run) = container.run.running() else {
            continue;
        };
        let kinds = [
            ProbeKind::Startup,
            ProbeKind::Liveness,
            ProbeKind::Readiness,
        ];
        for kind in kinds {
            let track = run.tracks.of(kind);
            if track.in_flight || !applies(pod, spec, (container, run), kind) {
                continue;
            }
            if now >= track.next {
                return Step::Begin(Task::Probe(ProbeOrder {
                    instance: pod.instance(&container.name, run.attempt),
                    probe: kind,
                }));
            }
            wake = Some(wake.map_or(track.next, |old| old.min(track.next)));
        }
    }
    wake.map_or(Step::Rest, Step::WakeAt)
}

/// Whether this probe runs now. For a container that is being stopped only readiness still counts. Sidecars of a
/// terminating pod are probed as before, so that their events still appear (the kubelet's
/// `pkg/kubelet/kuberuntime`).
fn applies(
    pod: &PodState,
    spec: &ContainerSpec,
    (c, run): (&ContainerState, &Running),
    kind: ProbeKind,
) -> bool {
    if spec_of(&spec.probes, kind).is_none() {
        return false;
    }
    let stopping = match c.role {
        Role::Sidecar => {
            run.kill.is_some_and(|k| k.reason != KillReason::Stopping) || failed(c).is_some()
        }
        Role::Init | Role::Main | Role::Ephemeral => pod.stopping().is_some() || run.kill.is_some(),
    };
    match kind {
        ProbeKind::Startup => {
            !stopping && hook::is_up(spec, run) && run.tracks.startup.result.is_none()
        }
        ProbeKind::Liveness => !stopping && has_started(spec, run),
        ProbeKind::Readiness => has_started(spec, run),
    }
}

/// Takes edited probes. The counts of changed probes begin again, with the new period and an early first probe.
/// Their result stays until the new probes say otherwise, so that an edit by itself neither takes a pod out of
/// service nor kills it.
pub(super) fn edited(c: &mut ContainerState, specs: (&ContainerSpec, &ContainerSpec), now: Time) {
    let Some(run) = c.run.running_mut() else {
        return;
    };
    let (old, new) = specs;
    let (had_started, was_ready) = (has_started(old, run), is_ready(old, run));
    for kind in [
        ProbeKind::Startup,
        ProbeKind::Liveness,
        ProbeKind::Readiness,
    ] {
        let probe = spec_of(&new.probes, kind);
        if spec_of(&old.probes, kind) == probe {
            continue;
        }
        let well = match kind {
            ProbeKind::Startup => had_started,
            ProbeKind::Readiness => was_ready,
            ProbeKind::Liveness => false,
        };
        let track = run.tracks.of_mut(kind);
        *track = Track {
            next: probe.map_or(now, |p| run.began.time.plus(p.initial_delay_ms).max(now)),
            in_flight: track.in_flight,
            outdated: track.in_flight,
            unproved: probe.is_some() && (well || kind == ProbeKind::Liveness && had_started),
            result: if well { Some(true) } else { track.result },
            ..Track::default()
        };
    }
}

pub(super) fn started(pod: &mut PodState, instance: &Instance, kind: ProbeKind, now: Time) {
    if let Some((Some(probe), track)) = find(pod, instance, kind)
        && !track.in_flight
    {
        let first = *track.first.get_or_insert(now);
        track.in_flight = true;
        track.early = now < first.plus(probe.period_ms);
        track.next = now.plus(probe.period_ms);
    }
}

/// The probe and its results, if it still exists and this is the current run.
fn find<'p>(
    pod: &'p mut PodState,
    instance: &Instance,
    kind: ProbeKind,
) -> Option<(Option<Probe>, &'p mut Track)> {
    let spec = pod.spec.container(&instance.container)?;
    let probe = spec_of(&spec.probes, kind).cloned();
    let run = pod.container_mut(&instance.container)?.run.running_mut()?;
    (run.attempt == instance.attempt).then(|| (probe, run.tracks.of_mut(kind)))
}

pub(super) fn done(
    pod: &mut PodState,
    (instance, kind): (&Instance, ProbeKind),
    outcome: &ProbeOutcome,
    now: Time,
    out: &mut Vec<Notice>,
) {
    let Some((probe, track)) = find(pod, instance, kind) else {
        return;
    };
    if !std::mem::take(&mut track.in_flight) {
        return;
    }
    let (false, Some(probe)) = (std::mem::take(&mut track.outdated), probe) else {
        return;
    };
    let name = kind.as_str();
    let (said, well) = match outcome {
        ProbeOutcome::Success => (None, true),
        ProbeOutcome::Warning(text) => {
            let text = format!("{name} probe warning: {text}");
            (Some((Reason::ProbeWarning, text)), true)
        }
        ProbeOutcome::Failure(_) if track.early => {
            track.errors = 0;
            return;
        }
        ProbeOutcome::Failure(text) => {
            let text = format!("{name} probe failed: {text}");
            (Some((Reason::Unhealthy, text)), false)
        }
        ProbeOutcome::Error(error) | ProbeOutcome::Unread(error) => {
            track.errors += 1;
            if track.errors < ERROR_TRIES {
                track.next = now;
                return;
            }
            track.errors = 0;
            let state = match outcome {
                ProbeOutcome::Unread(_) => "failure",
                _ => "unknown",
            };
            let text = format!("{name} probe errored and resulted in {state} state: {error}");
            return emit(pod, instance, (Reason::Unhealthy, text), out);
        }
    };
    track.errors = 0;
    let unproved = track.unproved;
    count(track, &probe, kind, well);
    let proved = unproved && !track.unproved && well;
    if let Some(container) = pod.container_mut(&instance.container)
        && let Some(run) = container.run.running_mut().filter(|_| proved)
    {
        run.tracks.proved = Some(now);
    }
    if let Some(said) = said {
        emit(pod, instance, said, out);
    }
}

fn count(track: &mut Track, probe: &Probe, kind: ProbeKind, well: bool) {
    let threshold = match well {
        true => probe.success_threshold,
        false => probe.failure_threshold,
    };
    let row = match track.row {
        // Outcomes beyond the threshold change nothing.
        Some((last, times)) if last == well => times.saturating_add(1).min(threshold),
        Some(_) | None => 1,
    };
    track.row = Some((well, row));
    // A failed liveness or startup probe stays failed until the next run.
    let held = kind != ProbeKind::Readiness && track.result == Some(false);
    if row >= threshold && !held {
        (track.result, track.unproved) = (Some(well), false);
    }
}

fn emit(pod: &PodState, instance: &Instance, said: (Reason, String), out: &mut Vec<Notice>) {
    let (reason, message) = said;
    Notices::new(out, pod).container(&instance.container, reason, message);
}
