//! The resource usage of the node and its pods. It is measured when a client asks, on a thread of its own, and
//! never in between: an idle node costs nothing. A rate of cpu time needs two readings: the second is compared with
//! that of the previous request if its age is suitable, else with one taken a second before.

mod resource;
mod summary;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::Node;
use super::execute::Tools;
use crate::api::Metric;
use crate::effects::cgroup::{Cgroups, CpuTime, Usage};
use crate::effects::figures::{self, Taken};
use crate::layout::Layout;
use crate::network::Traffic;
use crate::plan::PodState;
use crate::plan::state::Sandbox;
use crate::spec::{PodSpec, PodUid};
use crate::sys::file_system::{FileSystem, file_system};
use crate::sys::process;
use crate::types::{Gather, Wall};

/// Readings closer together give no useful cpu rate.
const APART: Duration = Duration::from_secs(1);

/// Readings further apart say little about the present.
const TOO_OLD: Duration = Duration::from_secs(60);

/// The maximum number of files inspected, in one folder and for one request, to measure disk use.
const FILES: (u32, u32) = (20_000, 100_000);

/// Keys of the machine and of this process, among the cgroup paths.
const MACHINE: &str = "";
const AGENT: &str = "agent";

/// The inputs of one pod's measurement.
#[derive(Debug, Clone)]
struct Target {
    spec: Arc<PodSpec>,
    created: Wall,
    /// The running containers: name, attempt, and start time.
    containers: Vec<(String, u32, Wall)>,
}

/// The extent of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// cpu and memory.
    Brief,
    /// Disks and networks, too.
    Whole,
}

/// One measurement.
#[derive(Debug, Default)]
struct Measured {
    at: Wall,
    machine: Usage,
    /// The maximum number of processes.
    most_processes: Option<u64>,
    /// The file systems of pods' state and of images.
    disks: [Option<FileSystem>; 2],
    interfaces: Vec<(String, Traffic)>,
    agent: Usage,
    all_pods: Usage,
    all_pods_path: String,
    pods: Vec<Pod>,
}

/// The usage of one pod.
#[derive(Debug)]
struct Pod {
    target: Target,
    path: String,
    usage: Usage,
    traffic: Option<Traffic>,
    containers: Vec<Container>,
    /// Its volumes on disk, by name.
    volumes: Vec<(String, Taken)>,
    /// Its other writable files: those of `/etc`, termination messages, volumes of images.
    files: Taken,
}

/// The usage of one container.
#[derive(Debug)]
struct Container {
    name: String,
    started: Wall,
    path: String,
    usage: Usage,
    layer: Option<Taken>,
    logs: Option<Taken>,
}

/// cpu time by cgroup at one moment.
type Sample = BTreeMap<String, CpuTime>;

/// The readings of the previous request.
#[derive(Debug, Clone, Default)]
pub(super) struct Samples(Arc<Mutex<Sample>>);

/// Billionths of a processor in use, by cgroup.
#[derive(Debug, Default)]
struct Rates(BTreeMap<String, u64>);

impl Samples {
    /// A reading that `now` can be compared with.
    fn before(&self, now: &Sample) -> Option<Sample> {
        let known = self.0.lock().expect("no panic holds this lock");
        let usable = now.iter().all(|(path, cpu)| {
            let age = known.get(path).map(|old| cpu.at.duration_since(old.at));
            age.is_some_and(|age| (APART..TOO_OLD).contains(&age))
        });
        (usable && !now.is_empty()).then(|| known.clone())
    }

    fn keep(&self, sample: Sample) {
        *self.0.lock().expect("no panic holds this lock") = sample;
    }
}

impl Rates {
    /// Rates of the cgroups in both readings. A cgroup that was recreated in between is left out.
    fn between(earlier: &Sample, later: &Sample) -> Self {
        let rate = |(path, new): (&String, &CpuTime)| {
            let old = earlier.get(path)?;
            let passed = new.at.duration_since(old.at).as_nanos();
            let used = u128::from(new.ns.checked_sub(old.ns)?);
            let rate = (used * 1_000_000_000).checked_div(passed)?;
            Some((path.clone(), u64::try_from(rate).ok()?))
        };
        Self(later.iter().filter_map(rate).gather())
    }

    fn of(&self, path: &str) -> Option<u64> {
        self.0.get(path).copied()
    }
}

impl Node {
    fn targets(&self) -> Vec<Target> {
        let alive = |pod: &&PodState| matches!(pod.sandbox, Sandbox::Ready { .. });
        let pods = self.state.pods.values().filter(alive);
        pods.map(|pod| Target {
            spec: pod.spec.clone(),
            created: pod.created.wall,
            containers: pod
                .containers
                .iter()
                .filter_map(|c| {
                    let run = c.run.running()?;
                    Some((c.name.clone(), run.attempt, run.began.wall))
                })
                .collect(),
        })
        .collect()
    }

    /// `/stats/summary`; `brief`: cpu and memory only.
    pub(super) fn summary(&self, brief: bool) -> impl Future<Output = Value> + 'static {
        let (targets, tools) = (self.targets(), self.tools.clone());
        let samples = self.samples.clone();
        let depth = if brief { Depth::Brief } else { Depth::Whole };
        async move {
            let first = sample(&tools, &targets).await;
            let earlier = match samples.before(&first) {
                Some(known) => known,
                None => {
                    smol::Timer::after(APART).await;
                    first
                }
            };
            let measured = measured(&tools, targets, depth).await;
            let later = measured.sample();
            let rates = Rates::between(&earlier, &later);
            samples.keep(later);
            summary::of(&tools.facts.now().name, &measured, &rates, depth)
        }
    }

    /// `/metrics/resource`.
    pub(super) fn resource_metrics(&self) -> impl Future<Output = Vec<Metric>> + 'static {
        let (targets, tools) = (self.targets(), self.tools.clone());
        async move { resource::of(&measured(&tools, targets, Depth::Brief).await) }
    }

    /// `/metrics/cadvisor` without the network part.
    pub(super) fn container_metrics(&self) -> impl Future<Output = Vec<Metric>> + 'static {
        let (targets, tools) = (self.targets(), self.tools.clone());
        async move { resource::cadvisor(&measured(&tools, targets, Depth::Brief).await) }
    }
}

/// Only cpu time.
async fn sample(tools: &Tools, targets: &[Target]) -> Sample {
    let (cgroups, targets) = (tools.sandboxes.cgroups.clone(), targets.to_vec());
    super::unblock(move || {
        let mut paths = vec![cgroups.pods_path()];
        for target in &targets {
            let uid = &target.spec.uid;
            let pod = cgroups.pod_path(target.spec.qos, uid);
            let containers = target.containers.iter();
            paths.extend(containers.map(|(name, ..)| cgroups.container_path(&pod, name)));
            paths.push(pod);
        }
        let groups = paths.into_iter();
        let groups = groups.map(|path| (cgroups.cpu_time(&path), path));
        let whole = (figures::machine_cpu(), MACHINE.to_owned());
        let own = (figures::own_process().cpu, AGENT.to_owned());
        let all = groups.chain([whole, own]);
        all.filter_map(|(cpu, path)| Some((path, cpu?))).gather()
    })
    .await
}

async fn measured(tools: &Tools, targets: Vec<Target>, depth: Depth) -> Measured {
    let layout = tools.config.layout.clone();
    let (cgroups, network) = (
        tools.sandboxes.cgroups.clone(),
        tools.sandboxes.network.clone(),
    );
    super::unblock(move || {
        let traffic = match depth {
            Depth::Brief => BTreeMap::new(),
            Depth::Whole => network.traffic(),
        };
        let mut files = FILES.1;
        let pods = targets.into_iter();
        let pods = pods.map(|target| pod(&cgroups, &layout, target, (depth, &traffic), &mut files));
        let mut measured = Measured {
            at: super::now().wall,
            machine: figures::machine(),
            agent: figures::own_process(),
            all_pods: cgroups.usage(&cgroups.pods_path()),
            all_pods_path: cgroups.pods_path(),
            pods: pods.collect(),
            ..Measured::default()
        };
        if depth == Depth::Whole {
            measured.most_processes = process::most();
            let store = layout.image_store();
            measured.disks = [&layout.root, &store].map(|path| file_system(path));
            measured.interfaces = figures::interfaces();
        }
        measured
    })
    .await
}

fn pod(
    cgroups: &Cgroups,
    layout: &Layout,
    target: Target,
    (depth, traffic): (Depth, &BTreeMap<PodUid, Traffic>),
    files: &mut u32,
) -> Pod {
    let spec = target.spec.clone();
    let path = cgroups.pod_path(spec.qos, &spec.uid);
    let mut taken = |folder: &Path| match depth {
        Depth::Brief => None,
        Depth::Whole => {
            let mut budget = FILES.0.min(*files);
            let whole = budget;
            let taken = figures::taken(folder, &mut budget);
            // One that has too many has used up all that it was given.
            *files -= if taken.is_some() { whole - budget } else { 0 };
            taken
        }
    };
    let state = layout.pod_state(&spec.uid);
    let containers = target.containers.iter().map(|(name, attempt, started)| {
        let logs = layout.container_logs(&spec.key.namespace, &spec.key.name, &spec.uid, name);
        let path = cgroups.container_path(&path, name);
        Container {
            usage: cgroups.usage(&path),
            layer: taken(&state.writable_layer(name, *attempt).join("upper")),
            logs: taken(&logs),
            name: name.clone(),
            started: *started,
            path,
        }
    });
    let containers: Vec<Container> = containers.collect();
    let volumes = spec.volumes.iter().filter_map(|volume| {
        let folder = state.empty_dir(&volume.name);
        Some((volume.name.clone(), taken(&folder)?))
    });
    let volumes: Vec<(String, Taken)> = volumes.collect();
    let own = target
        .containers
        .iter()
        .map(|(name, ..)| state.image_volumes(name));
    let own: Vec<Taken> = own.filter_map(|folder| taken(&folder)).collect();
    let messages = target.containers.iter();
    let messages = messages.map(|(name, attempt, _)| state.termination_message(name, *attempt));
    let files: Vec<PathBuf> = state.etc_files().into_iter().chain(messages).collect();
    Pod {
        volumes,
        files: match depth {
            Depth::Brief => Taken::default(),
            Depth::Whole => own
                .into_iter()
                .fold(figures::taken_by_files(&files), Taken::plus),
        },
        usage: cgroups.usage(&path),
        traffic: traffic.get(&spec.uid).copied(),
        containers,
        path,
        target,
    }
}

impl Measured {
    fn sample(&self) -> Sample {
        let pods = self.pods.iter().flat_map(|pod| {
            let containers = pod.containers.iter().map(|c| (&*c.path, &c.usage));
            containers.chain([(&*pod.path, &pod.usage)])
        });
        let node = [
            (MACHINE, &self.machine),
            (AGENT, &self.agent),
            (&*self.all_pods_path, &self.all_pods),
        ];
        pods.chain(node)
            .filter_map(|(path, usage)| Some((path.to_owned(), usage.cpu?)))
            .gather()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn sample(at: Instant, times: &[(&str, u64)]) -> Sample {
        let each = times.iter();
        each.map(|(path, ns)| ((*path).to_owned(), CpuTime { ns: *ns, at }))
            .collect()
    }

    #[test]
    fn a_rate_is_of_what_was_there_all_the_time() {
        let begin = Instant::now();
        let earlier = sample(begin, &[("a", 100), ("reset", 500), ("gone", 1)]);
        let later = sample(
            begin + Duration::from_secs(2),
            &[("a", 1_000_000_100), ("reset", 3), ("new", 7)],
        );
        let rates = Rates::between(&earlier, &later);
        assert_eq!(rates.of("a"), Some(500_000_000));
        assert_eq!((rates.of("reset"), rates.of("new")), (None, None));
        let at_once = Rates::between(&earlier, &earlier);
        assert_eq!(at_once.of("a"), None);
    }

    #[test]
    fn the_last_question_is_of_use_for_a_while_if_it_was_about_the_same() {
        let begin = Instant::now();
        let samples = Samples::default();
        samples.keep(sample(begin, &[("a", 1), ("b", 1)]));
        let later = |ms, paths: &[(&str, u64)]| {
            let now = sample(begin + Duration::from_millis(ms), paths);
            samples.before(&now).is_some()
        };
        assert!(!later(999, &[("a", 2)]));
        assert!(later(1_000, &[("a", 2)]));
        assert!(later(59_999, &[("a", 2), ("b", 3)]));
        assert!(!later(60_000, &[("a", 2)]));
        assert!(!later(5_000, &[("a", 2), ("new", 1)]));
        assert!(!later(5_000, &[]));
    }
}
