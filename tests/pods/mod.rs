//! Which pods do the tests of the planner talk about? Valid specs with nothing special, made by hand.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use coracle::plan::event::{
    ConditionChange, Desired, Recovered, RecoveredContainer, RecoveredRun, RecoveredSandbox,
};
use coracle::plan::state::{ContainerState, Run, Sandbox};
use coracle::plan::verdict::{self, Due};
use coracle::plan::{Event, NodeState, PodState, Stamp, Time, Wall, hook, network, shutdown};
use coracle::spec::cluster::ClusterView;
use coracle::spec::*;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A moment, the wall clock showing 1.1.2026 and `ms`.
pub(crate) fn at(ms: u64) -> Stamp {
    let wall = 1_767_225_600_000_000 + i64::try_from(ms).unwrap() * 1000;
    Stamp {
        time: Time(ms),
        wall: Wall(wall),
    }
}

/// A pod `default/<name>` with these containers, all of image `img:1`.
pub(crate) fn pod(uid: &str, name: &str, policy: RestartPolicy, containers: &[&str]) -> PodSpec {
    let manifest = core::Pod {
        metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            name: Some(name.into()),
            namespace: Some("default".into()),
            labels: Some([("app".into(), name.into()), ("all".into(), "yes".into())].into()),
            ..Default::default()
        },
        spec: Some(core::PodSpec {
            containers: containers
                .iter()
                .map(|c| core::Container {
                    name: (*c).into(),
                    image: Some("img:1".into()),
                    ..Default::default()
                })
                .collect(),
            restart_policy: Some(format!("{policy:?}")),
            ..Default::default()
        }),
        status: None,
    };
    PodSpec {
        uid: PodUid::from(uid),
        // As if its manifest gave the UID; see `of_template`.
        template: PodUid::from("template"),
        key: PodKey {
            namespace: "default".into(),
            name: name.into(),
        },
        manifest: Arc::new(manifest),
        restart_policy: policy,
        restart_backoff: RestartBackoff::default(),
        swap_max_bytes: None,
        readiness_gates: vec![],
        grace_ms: 30_000,
        active_deadline_ms: None,
        priority: 0,
        host_network: false,
        host_pid: false,
        host_ipc: false,
        hostname: name.into(),
        subdomain: None,
        hostname_as_fqdn: false,
        host_aliases: vec![],
        dns_policy: DnsPolicy::Default,
        dns_config: DnsConfig::default(),
        fs_group: None,
        supplemental_groups: vec![],
        sysctls: vec![],
        init_containers: vec![],
        containers: containers.iter().map(|c| container(c)).collect(),
        ephemeral_containers: vec![],
        volumes: vec![],
        qos: QosClass::BestEffort,
        resources: PodResources::default(),
        storage_request_bytes: 0,
        huge_pages: HugePages::new(),
        placement: Placement::default(),
        warnings: vec![],
    }
}

/// The pod as a manifest asks for it that gives no UID: each pod made from it has one of its own.
pub(crate) fn of_template(mut spec: PodSpec) -> PodSpec {
    spec.template = spec.uid.clone();
    spec
}

/// The pod with these init containers; names that begin with `s` are sidecars.
pub(crate) fn with_inits(mut spec: PodSpec, inits: &[&str]) -> PodSpec {
    let mut manifest = (*spec.manifest).clone();
    let shown = inits.iter().map(|c| core::Container {
        name: (*c).into(),
        image: Some("img:1".into()),
        ..Default::default()
    });
    manifest.spec.as_mut().unwrap().init_containers = Some(shown.collect());
    spec.manifest = Arc::new(manifest);
    spec.init_containers = inits.iter().map(|c| container(c)).collect();
    for init in spec
        .init_containers
        .iter_mut()
        .filter(|c| c.name.starts_with('s'))
    {
        init.restart_policy = Some(RestartPolicy::Always);
    }
    spec
}

/// The pod with a container added to it while it runs, one more each time.
pub(crate) fn with_ephemeral(spec: &PodSpec, name: &str, target: Option<&str>) -> PodSpec {
    let mut wanted = spec.written_ephemeral().to_vec();
    wanted.push(core::EphemeralContainer {
        name: name.into(),
        image: Some("img:1".into()),
        target_container_name: target.map(str::to_owned),
        ..Default::default()
    });
    coracle::spec::ephemeral::replace(spec, &wanted).expect("valid")
}

/// The container of that name.
pub(crate) fn of<'s>(spec: &'s mut PodSpec, name: &str) -> &'s mut ContainerSpec {
    let mut all = spec.init_containers.iter_mut().chain(&mut spec.containers);
    all.find(|c| c.name == name).unwrap()
}

/// Runs this container from another image.
pub(crate) fn set_image(spec: &mut PodSpec, name: &str, image: &str) {
    of(spec, name).image = image.into();
    let manifest = Arc::make_mut(&mut spec.manifest).spec.as_mut().unwrap();
    let inits = manifest.init_containers.iter_mut().flatten();
    let mut all = inits.chain(&mut manifest.containers);
    all.find(|c| c.name == name).unwrap().image = Some(image.into());
}

/// Gives this container so much cpu and memory, and the pod what that comes to.
pub(crate) fn set_resources(spec: &mut PodSpec, name: &str, cpu_milli: u64, memory_bytes: u64) {
    of(spec, name).resources = ContainerResources {
        cpu_request_milli: Some(cpu_milli),
        cpu_limit_milli: Some(cpu_milli),
        memory_request_bytes: Some(memory_bytes),
        memory_limit_bytes: Some(memory_bytes),
    };
    let sum = |of: fn(&ContainerResources) -> Option<u64>| {
        spec.containers
            .iter()
            .filter_map(|c| of(&c.resources))
            .sum()
    };
    spec.resources = PodResources {
        cpu_request_milli: sum(|r| r.cpu_request_milli),
        memory_request_bytes: sum(|r| r.memory_request_bytes),
        ..PodResources::default()
    };
    let amounts: std::collections::BTreeMap<_, _> = [
        ("cpu".to_owned(), Quantity(format!("{cpu_milli}m"))),
        ("memory".to_owned(), Quantity(memory_bytes.to_string())),
    ]
    .into();
    let resources = core::ResourceRequirements {
        limits: Some(amounts.clone()),
        requests: Some(amounts),
        ..Default::default()
    };
    let manifest = Arc::make_mut(&mut spec.manifest).spec.as_mut().unwrap();
    let mut all = manifest.containers.iter_mut();
    all.find(|c| c.name == name).unwrap().resources = Some(resources);
}

/// A port of the node.
pub(crate) fn host_port(number: u16) -> ContainerPort {
    ContainerPort {
        name: None,
        container_port: number,
        host_port: Some(number),
        host_ip: None,
        protocol: Protocol::Tcp,
    }
}

/// A probe that runs `true`, with this period and failure threshold.
pub(crate) fn probing(period_ms: u64, failure_threshold: u32) -> Probe {
    Probe {
        handler: ProbeHandler::Exec(vec!["true".into()]),
        initial_delay_ms: 0,
        period_ms,
        timeout_ms: 1_000,
        success_threshold: 1,
        failure_threshold,
        grace_ms: None,
    }
}

/// What time alone has changed by now.
pub(crate) fn passed(state: &NodeState, now: Time) -> Vec<Event> {
    let late = state
        .pods
        .values()
        .filter_map(|pod| match verdict::due(pod, now)? {
            Due::Now(event) => Some(event),
            Due::At(_) => None,
        });
    let over = |pod: &&PodState| hook::sleep_ends(pod).is_some_and(|at| at <= now);
    let slept = state.pods.values().filter(over);
    let slept = slept.map(|pod| Event::TimePassed {
        pod: pod.spec.uid.clone(),
    });
    late.chain(slept).collect()
}

/// When time alone changes something next.
pub(crate) fn moment(state: &NodeState, now: Time) -> Option<Time> {
    let pods = state.pods.values();
    let moments = pods.flat_map(|pod| {
        let late = match verdict::due(pod, now) {
            Some(Due::At(at)) => Some(at),
            Some(Due::Now(_)) => Some(now),
            None => None,
        };
        late.into_iter().chain(hook::sleep_ends(pod))
    });
    let turn = match shutdown::due(state, now) {
        Some(Due::At(at)) => Some(at),
        Some(Due::Now(_)) => Some(now),
        None => None,
    };
    moments.chain(turn).min()
}

/// A rule about these exit codes.
pub(crate) fn rule(codes: ExitCodes, action: RestartAction) -> RestartRule {
    RestartRule { codes, action }
}

fn container(name: &str) -> ContainerSpec {
    ContainerSpec {
        name: name.into(),
        image: "img:1".into(),
        image_name: ImageName {
            registry: "docker.io".into(),
            repository: "library/img".into(),
            tag: Some("1".into()),
            digest: None,
        },
        pull_policy: PullPolicy::IfNotPresent,
        command: None,
        args: None,
        working_dir: None,
        env: vec![],
        mounts: vec![],
        ports: vec![],
        resources: ContainerResources::default(),
        storage: StorageBounds::default(),
        huge_pages: HugePages::new(),
        resize_restarts: ResizeRestarts::default(),
        security: Security {
            run_as_user: None,
            run_as_group: None,
            run_as_non_root: false,
            privileged: false,
            allow_privilege_escalation: true,
            read_only_root: false,
            cap_add: vec![],
            cap_drop: vec![],
            seccomp: Seccomp::RuntimeDefault,
            unmasked_proc: false,
        },
        termination_message_path: "/dev/termination-log".into(),
        termination_message_from_logs: false,
        stdin: false,
        stdin_once: false,
        tty: false,
        restart_policy: None,
        restart_rules: vec![],
        probes: Probes::default(),
        lifecycle: Lifecycle::default(),
        target: None,
    }
}

/// Exactly these pods are wanted.
pub(crate) fn desired(pods: &[&Arc<PodSpec>]) -> Desired {
    let pods: BTreeMap<_, _> = pods
        .iter()
        .map(|p| (p.uid.clone(), Arc::clone(p)))
        .collect();
    Desired {
        pods,
        services: [service("ready", false), service("any", true)]
            .into_iter()
            .map(|s| (s.key.clone(), Arc::new(s)))
            .collect(),
    }
}

/// A service with all pods behind it.
pub(crate) fn service(name: &str, with_unready: bool) -> ServiceSpec {
    ServiceSpec {
        key: PodKey {
            namespace: "default".into(),
            name: name.into(),
        },
        selector: [("all".into(), "yes".into())].into(),
        address: ServiceAddress::Any,
        ports: vec![ServicePort {
            name: String::new(),
            protocol: Protocol::Tcp,
            port: 80,
            target: TargetPort::Number(8080),
            node_port: None,
        }],
        with_unready,
        client_affinity: false,
        warnings: vec![],
    }
}

/// Whom pods could talk to when it was last looked.
#[derive(Debug)]
pub(crate) struct Seen {
    changes: u64,
    view: ClusterView,
}

impl Seen {
    pub(crate) fn new(state: &NodeState) -> Arc<Self> {
        let view = network::view(state, &["192.0.2.1".parse().unwrap()]);
        let changes = state.network_changes;
        Arc::new(Self { changes, view })
    }

    /// What holds for every view (N1 to N3 of `tests/README.md`), and that it changed only if that was said.
    pub(crate) fn check(self: &Arc<Self>, now: &NodeState) -> Arc<Self> {
        let seen = Self::new(now);
        check_view(now, &seen.view);
        assert!(self.changes <= seen.changes, "it counts up");
        if self.changes == seen.changes {
            assert_eq!(self.view, seen.view, "unsaid change");
        }
        seen
    }
}

fn check_view(now: &NodeState, view: &ClusterView) {
    let mut ips: Vec<_> = view.pods.iter().flat_map(|p| &p.ips).collect();
    let count = ips.len();
    ips.sort();
    ips.dedup();
    assert_eq!(ips.len(), count, "no address twice: {view:?}");
    for service in &view.services {
        let ready_only = !service.spec.with_unready;
        let may = |p: &&PodState| {
            let ready = p.flags.ready.yes && p.stopping.is_none() && p.verdict.is_none();
            matches!(p.sandbox, Sandbox::Ready { .. }) && !p.finished() && (ready || !ready_only)
        };
        let mut expected: Vec<_> = now.pods.values().filter(may).map(|p| &p.spec.key).collect();
        expected.sort();
        let found: Vec<_> = service.endpoints.iter().map(|e| &e.pod).collect();
        let name = &service.spec.key;
        assert_eq!(found, expected, "{name}: the ready, live pods, sorted");
    }
}

/// What the shim's record tells of the newest run.
fn effective(c: &ContainerState) -> Effective {
    let asked = c.asked.as_ref();
    let asked = asked.filter(|asked| Some(asked.attempt) == c.run.attempt());
    asked.map_or_else(Effective::default, |asked| asked.effective.clone())
}

/// What the next agent finds of a pod that is known so well, in this sandbox.
pub(crate) fn recovered(pod: &PodState, sandbox: RecoveredSandbox) -> Recovered {
    let containers = pod.containers.iter().map(|c| {
        let newest = match &c.run {
            Run::None => None,
            Run::Running {
                attempt,
                image_id,
                started,
                pid,
            } => Some(RecoveredRun {
                attempt: *attempt,
                image_id: image_id.clone(),
                started: *started,
                pid: *pid,
                effective: effective(c),
                exit: None,
                stop_sent: c.stop.sent,
            }),
            Run::Ended(e) => Some(RecoveredRun {
                attempt: e.attempt,
                image_id: e.image_id.clone(),
                started: e.exit.started,
                pid: 0,
                effective: effective(c),
                exit: Some(e.exit.clone()),
                stop_sent: c.stop.sent,
            }),
        };
        let known = RecoveredContainer {
            newest,
            previous: c.previous.as_ref().map(|e| e.exit.clone()),
            backoff: c.backoff,
            start_error: c.start_error.clone(),
            round: c.round,
            health: c.health(),
            hooks: Some(c.hooks.clone()),
            kill: c.kill,
            asked: c.all_asked(),
        };
        (c.name.clone(), known)
    });
    Recovered {
        spec: Arc::clone(&pod.spec),
        sandbox,
        containers: containers.collect(),
        created: pod.created,
        stopping: pod.stopping,
        verdict: pod.verdict.clone(),
        evictions: pod.evictions,
        finishing: pod.finishing,
        foreign: Some(pod.foreign.clone()),
        flags: Some(pod.flags),
        waits: pod.sandbox_waits(),
        actuated: Some(pod.resizing.actuated),
    }
}

/// An exit with this code.
pub(crate) fn exit(code: i32, started: Stamp, finished: Stamp) -> Exit {
    Exit {
        code,
        signal: None,
        oom_killed: false,
        message: String::new(),
        started,
        finished,
    }
}

/// The type of condition that a readiness gate may wait for.
pub(crate) const GATE: &str = "example.com/gate";

/// Somebody says whether the gate is open.
pub(crate) fn gate(open: bool) -> ConditionChange {
    let status = match open {
        true => ConditionStatus::True,
        false => ConditionStatus::False,
    };
    ConditionChange::Set(Condition {
        type_: GATE.into(),
        status,
        reason: "Said".into(),
        message: String::new(),
    })
}
