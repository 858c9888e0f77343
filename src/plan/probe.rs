//! Is a container well? When each probe is to be carried out, what its outcomes add up to, and who has to be killed
//! for it (kubelet-behaviour §5.2, §5.3). Probes are no lifecycle actions: they run beside them.
//!
//! ```text
//! started ──► startup probe ──success──► liveness and readiness probes, side by side
//!                   │ failure                    │ liveness failure
//!                   └────────► stop signal ◄─────┘   (no more of these until the next run)
//! ```
//!
//! The first probe comes as soon as it may, so that a container is ready early. A kubelet's comes up to one period later:
//! failures of probes that begin within a period of the first one do not count, so that what lives on a kubelet lives
//! here (part A21).

use super::event::{Firsts, Health, Instance, Streak, Streaks};
use super::kill::KillReason;
use super::notice::{Kind, Notices};
use super::state::{ContainerState, Role, Run};
use super::{Notice, PodState, Time, hook};
use crate::spec::{ContainerSpec, Probe, ProbeKind, Probes};

/// Probes that could not be carried out are repeated at once so many times before that counts as no outcome.
pub const ERROR_RETRIES: u32 = 3;

/// One probe to be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeOrder {
    /// Of which run.
    pub instance: Instance,
    /// Which of its probes.
    pub probe: ProbeKind,
}

/// How a probe went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// Well.
    Success,
    /// Well, but people should know.
    Warning(String),
    /// Not well; the output.
    Failure(String),
    /// It could not be carried out.
    Error(String),
}

/// What to probe now, and when to ask again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Due {
    /// To be started now; each is recorded with `ProbeStarted` before it runs.
    pub orders: Vec<ProbeOrder>,
    /// When to ask again if nothing happens before.
    pub wake_at: Option<Time>,
}

/// What one probe has shown of the newest run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Track {
    /// Not before this moment.
    pub next: Time,
    /// When the first one began.
    pub first: Option<Time>,
    /// One is under way.
    pub in_flight: bool,
    /// The one under way came too early for its failure to count.
    pub early: bool,
    /// The one under way is of a probe that was edited meanwhile, so its outcome says nothing.
    pub outdated: bool,
    /// The newest outcome and how often it came in a row, up to the threshold.
    pub row: Option<(bool, u32)>,
    /// What the outcomes have added up to.
    pub result: Option<bool>,
    /// Errors in a row.
    pub errors: u32,
}

impl Track {
    /// The outcomes that count against the result; `at_first` is what holds as long as there is none.
    fn streak(&self, at_first: bool) -> Option<Streak> {
        let (well, times) = self.row?;
        let counts = well != self.result.unwrap_or(at_first);
        let next = self.next;
        counts.then_some(Streak { well, times, next })
    }

    /// Goes on where a former agent was.
    fn resume(&mut self, first: Option<Time>, streak: Option<Streak>) {
        self.first = first;
        if let Some(streak) = streak {
            self.row = Some((streak.well, streak.times));
            self.next = streak.next;
        }
    }
}

/// What all probes have shown of the newest run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tracks {
    /// Once it failed, no more until the next run.
    pub liveness: Track,
    /// Decides whether the container is ready.
    pub readiness: Track,
    /// Once there is a result, no more until the next run.
    pub startup: Track,
}

impl Tracks {
    /// Of a run that has just started.
    pub(super) fn new(probes: &Probes, started: Time) -> Self {
        let track = |probe: &Option<Probe>| Track {
            next: started.plus(probe.as_ref().map_or(0, |p| p.initial_delay_ms)),
            ..Track::default()
        };
        Self {
            liveness: track(&probes.liveness),
            readiness: track(&probes.readiness),
            startup: track(&probes.startup),
        }
    }

    /// Of a run that a former agent knew, if it did.
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
        tracks.startup.resume(firsts.startup, streaks.startup);
        tracks.liveness.resume(firsts.liveness, streaks.liveness);
        tracks.readiness.resume(firsts.readiness, streaks.readiness);
        tracks
    }

    /// What the next agent has to know to go on counting. As long as all is as usual that stays the same.
    pub(super) fn streaks(&self) -> Streaks {
        Streaks {
            startup: self.startup.streak(true),
            liveness: self.liveness.streak(true),
            readiness: self.readiness.streak(false),
        }
    }

    /// When each probe was first carried out.
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

fn spec_of(probes: &Probes, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Liveness => probes.liveness.as_ref(),
        ProbeKind::Readiness => probes.readiness.as_ref(),
        ProbeKind::Startup => probes.startup.as_ref(),
    }
}

/// Whether a running container counts as started: it is through with its `postStart` hook and its startup probe, if any.
pub(super) fn has_started(spec: &ContainerSpec, c: &ContainerState) -> bool {
    c.run.is_running()
        && hook::is_up(spec, c)
        && (spec.probes.startup.is_none() || c.tracks.startup.result == Some(true))
}

/// Whether a running container may be sent work.
pub(super) fn is_ready(spec: &ContainerSpec, c: &ContainerState) -> bool {
    let passed = spec.probes.readiness.is_none() || c.tracks.readiness.result == Some(true);
    has_started(spec, c) && passed
}

/// The probe for whose failure this container is to be killed.
pub(super) fn failed(c: &ContainerState) -> Option<ProbeKind> {
    if c.tracks.startup.result == Some(false) {
        Some(ProbeKind::Startup)
    } else if c.tracks.liveness.result == Some(false) {
        Some(ProbeKind::Liveness)
    } else {
        None
    }
}

/// What to probe now in this pod. Nothing is allocated when nothing is due.
pub fn due(pod: &PodState, now: Time) -> Due {
    let mut due = Due::default();
    for (spec, container) in pod.each() {
        let Run::Running { attempt, .. } = container.run else {
            continue;
        };
        let kinds = [
            ProbeKind::Startup,
            ProbeKind::Liveness,
            ProbeKind::Readiness,
        ];
        for kind in kinds {
            let track = container.tracks.of(kind);
            if track.in_flight || !applies(pod, spec, container, kind) {
                continue;
            }
            if now < track.next {
                let wake = due.wake_at.map_or(track.next, |old| old.min(track.next));
                due.wake_at = Some(wake);
            } else {
                due.orders.push(ProbeOrder {
                    instance: pod.instance(&container.name, attempt),
                    probe: kind,
                });
            }
        }
    }
    due
}

/// Whether this probe has a say now. Of a container that is being stopped only its readiness still counts; but sidecars of
/// a pod that goes are looked at as before, so that people hear of it (kubelet-behaviour §2.7).
fn applies(pod: &PodState, spec: &ContainerSpec, c: &ContainerState, kind: ProbeKind) -> bool {
    if spec_of(&spec.probes, kind).is_none() {
        return false;
    }
    let stopping = match c.role {
        Role::Sidecar => {
            c.kill.is_some_and(|k| k.reason != KillReason::Stopping) || failed(c).is_some()
        }
        Role::Init | Role::Main | Role::Ephemeral => pod.stopping.is_some() || c.kill.is_some(),
    };
    match kind {
        ProbeKind::Startup => {
            !stopping && hook::is_up(spec, c) && c.tracks.startup.result.is_none()
        }
        ProbeKind::Liveness => !stopping && has_started(spec, c),
        ProbeKind::Readiness => has_started(spec, c),
    }
}

/// The container's probes are others from now on. Those that changed are counted anew, in their new rhythm
/// and from a first one that is early; what they had
/// added up to stays until the new ones say otherwise, so that no edit by itself takes a pod out of service or kills it.
pub(super) fn edited(c: &mut ContainerState, specs: (&ContainerSpec, &ContainerSpec), now: Time) {
    let Run::Running { started, .. } = c.run else {
        return;
    };
    let (old, new) = specs;
    let (had_started, was_ready) = (has_started(old, c), is_ready(old, c));
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
        let track = c.tracks.of_mut(kind);
        *track = Track {
            next: probe.map_or(now, |p| started.time.plus(p.initial_delay_ms).max(now)),
            in_flight: track.in_flight,
            outdated: track.in_flight,
            result: if well { Some(true) } else { track.result },
            ..Track::default()
        };
    }
}

pub(super) fn started(pod: &mut PodState, order: &ProbeOrder, now: Time) {
    if let Some((Some(probe), track)) = find(pod, order)
        && !track.in_flight
    {
        let first = *track.first.get_or_insert(now);
        track.in_flight = true;
        track.early = now < first.plus(probe.period_ms);
        track.next = now.plus(probe.period_ms);
    }
}

/// The probe, unless it was edited away, and what it has shown, if the order is about the run that runs.
fn find<'p>(pod: &'p mut PodState, order: &ProbeOrder) -> Option<(Option<Probe>, &'p mut Track)> {
    let spec = pod.spec.container(&order.instance.container)?;
    let probe = spec_of(&spec.probes, order.probe).cloned();
    let container = pod.container_mut(&order.instance.container)?;
    let runs = container.run.is_running();
    let newest = container.run.attempt() == Some(order.instance.attempt);
    (runs && newest).then(|| (probe, container.tracks.of_mut(order.probe)))
}

pub(super) fn done(
    pod: &mut PodState,
    order: &ProbeOrder,
    outcome: &ProbeOutcome,
    now: Time,
    out: &mut Vec<Notice>,
) {
    let Some((probe, track)) = find(pod, order) else {
        return;
    };
    if !std::mem::take(&mut track.in_flight) {
        return;
    }
    let (false, Some(probe)) = (std::mem::take(&mut track.outdated), probe) else {
        return;
    };
    let kind = order.probe.as_str();
    let (said, well) = match outcome {
        ProbeOutcome::Success => (None, true),
        ProbeOutcome::Warning(text) => {
            let text = format!("{kind} probe warning: {text}");
            (Some(("ProbeWarning", text)), true)
        }
        ProbeOutcome::Failure(_) if track.early => {
            track.errors = 0;
            return;
        }
        ProbeOutcome::Failure(text) => {
            let text = format!("{kind} probe failed: {text}");
            (Some(("Unhealthy", text)), false)
        }
        ProbeOutcome::Error(error) => {
            track.errors += 1;
            if track.errors <= ERROR_RETRIES {
                track.next = now;
                return;
            }
            track.errors = 0;
            let text = format!("{kind} probe errored and resulted in unknown state: {error}");
            return say(pod, order, ("Unhealthy", text), out);
        }
    };
    track.errors = 0;
    count(track, &probe, order.probe, well);
    if let Some(said) = said {
        say(pod, order, said, out);
    }
}

fn count(track: &mut Track, probe: &Probe, kind: ProbeKind, well: bool) {
    let threshold = match well {
        true => probe.success_threshold,
        false => probe.failure_threshold,
    };
    let row = match track.row {
        // More than enough is no news.
        Some((last, times)) if last == well => times.saturating_add(1).min(threshold),
        Some(_) | None => 1,
    };
    track.row = Some((well, row));
    // What liveness and startup probes have failed for stays so until the next run.
    let held = kind != ProbeKind::Readiness && track.result == Some(false);
    if row >= threshold && !held {
        track.result = Some(well);
    }
}

fn say(pod: &PodState, order: &ProbeOrder, said: (&'static str, String), out: &mut Vec<Notice>) {
    let (reason, message) = said;
    Notices::new(out, pod).container(&order.instance.container, Kind::Warning, reason, message);
}
