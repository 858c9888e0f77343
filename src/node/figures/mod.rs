//! What do the node and its pods use? Measured when a client asks, on a thread of its own, and never in between: an idle
//! node costs nothing. How fast processors' time goes by needs two readings: the second one is compared with what the last
//! question found, if that is neither too new nor too old, else with one made a second before.

mod resource;
mod summary;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::Node;
use super::execute::Hands;
use crate::api::Metric;
use crate::effects::cgroup::{Cgroups, CpuTime, Usage};
use crate::effects::figures::{self, FileSystem, Taken};
use crate::effects::network::Traffic;
use crate::layout::Layout;
use crate::plan::PodState;
use crate::plan::state::{Run, Sandbox};
use crate::spec::{PodSpec, PodUid, Wall};
use crate::sys::process;

/// Readings that are closer to each other say little of processors' time.
const APART: Duration = Duration::from_secs(1);

/// Readings that are further from each other say little of now.
const TOO_OLD: Duration = Duration::from_secs(60);

/// Files that are looked at in one folder, and for one question, to say how much of the disk they take.
const FILES: (u32, u32) = (20_000, 100_000);

/// The machine, and this process, among the paths of cgroups.
const MACHINE: &str = "";
const AGENT: &str = "agent";

/// What is measured of one pod.
#[derive(Debug, Clone)]
struct Target {
    spec: Arc<PodSpec>,
    created: Wall,
    /// Those that run: name, attempt, and since when.
    containers: Vec<(String, u32, Wall)>,
}

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// Processors and memory.
    Brief,
    /// Disks and networks, too.
    Whole,
}

/// One measurement.
#[derive(Debug, Default)]
struct Measured {
    at: Wall,
    machine: Usage,
    /// How many processes it may have.
    most_processes: Option<u64>,
    /// Where pods' state is, and images.
    disks: [Option<FileSystem>; 2],
    interfaces: Vec<(String, Traffic)>,
    agent: Usage,
    all_pods: Usage,
    all_pods_path: String,
    pods: Vec<Pod>,
}

/// What one pod uses.
#[derive(Debug)]
struct Pod {
    target: Target,
    path: String,
    usage: Usage,
    traffic: Option<Traffic>,
    containers: Vec<Container>,
    /// Its volumes on disk, by name.
    volumes: Vec<(String, Taken)>,
    /// What else its containers may write: the files of `/etc`, their last messages, their images' volumes.
    files: Taken,
}

/// What one container uses.
#[derive(Debug)]
struct Container {
    name: String,
    started: Wall,
    path: String,
    usage: Usage,
    layer: Option<Taken>,
    logs: Option<Taken>,
}

/// Processors' time by cgroup, as it was found once.
type Sample = BTreeMap<String, CpuTime>;

/// What the last question found.
#[derive(Debug, Clone, Default)]
pub(super) struct Samples(Arc<Mutex<Sample>>);

/// Billionths of a processor in use, by cgroup.
#[derive(Debug, Default)]
struct Rates(BTreeMap<String, u64>);

impl Samples {
    /// What `now` can be compared with.
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
    /// Of what both have. A cgroup that was made anew in between is left out.
    fn between(earlier: &Sample, later: &Sample) -> Self {
        let rate = |(path, new): (&String, &CpuTime)| {
            let old = earlier.get(path)?;
            let passed = new.at.duration_since(old.at).as_nanos();
            let used = u128::from(new.ns.checked_sub(old.ns)?);
            let rate = (used * 1_000_000_000).checked_div(passed)?;
            Some((path.clone(), u64::try_from(rate).ok()?))
        };
        Self(later.iter().filter_map(rate).collect())
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
                .filter_map(|c| match &c.run {
                    Run::None | Run::Ended(_) => None,
                    Run::Running {
                        attempt, started, ..
                    } => Some((c.name.clone(), *attempt, started.wall)),
                })
                .collect(),
        })
        .collect()
    }

    /// `/stats/summary`; `brief`: of processors and memory only.
    pub(super) fn summary(&self, brief: bool) -> impl Future<Output = Value> + 'static {
        let (targets, hands) = (self.targets(), self.hands.clone());
        let samples = self.samples.clone();
        let depth = if brief { Depth::Brief } else { Depth::Whole };
        async move {
            let first = sample(&hands, &targets).await;
            let earlier = match samples.before(&first) {
                Some(known) => known,
                None => {
                    smol::Timer::after(APART).await;
                    first
                }
            };
            let measured = measured(&hands, targets, depth).await;
            let later = measured.sample();
            let rates = Rates::between(&earlier, &later);
            samples.keep(later);
            summary::of(&hands.facts.now().name, &measured, &rates, depth)
        }
    }

    /// `/metrics/resource`.
    pub(super) fn resource_metrics(&self) -> impl Future<Output = Vec<Metric>> + 'static {
        let (targets, hands) = (self.targets(), self.hands.clone());
        async move { resource::of(&measured(&hands, targets, Depth::Brief).await) }
    }

    /// Of `/metrics/cadvisor`, what is not about networks.
    pub(super) fn container_metrics(&self) -> impl Future<Output = Vec<Metric>> + 'static {
        let (targets, hands) = (self.targets(), self.hands.clone());
        async move { resource::cadvisor(&measured(&hands, targets, Depth::Brief).await) }
    }
}

/// Only processors' time.
async fn sample(hands: &Hands, targets: &[Target]) -> Sample {
    let (cgroups, targets) = (hands.sandboxes.cgroups.clone(), targets.to_vec());
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
        all.filter_map(|(cpu, path)| Some((path, cpu?))).collect()
    })
    .await
}

async fn measured(hands: &Hands, targets: Vec<Target>, depth: Depth) -> Measured {
    let layout = hands.config.layout.clone();
    let (cgroups, network) = (
        hands.sandboxes.cgroups.clone(),
        hands.sandboxes.network.clone(),
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
            measured.disks = [&layout.root, &store].map(|path| figures::file_system(path));
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
            .collect()
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
        let earlier = sample(begin, &[("a", 100), ("anew", 500), ("gone", 1)]);
        let later = sample(
            begin + Duration::from_secs(2),
            &[("a", 1_000_000_100), ("anew", 3), ("new", 7)],
        );
        let rates = Rates::between(&earlier, &later);
        assert_eq!(rates.of("a"), Some(500_000_000));
        assert_eq!((rates.of("anew"), rates.of("new")), (None, None));
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
