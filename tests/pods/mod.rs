//! The pods of the planner's tests: valid specs with nothing special, made by hand.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::sync::Arc;

use coracle::plan::event::{ConditionChange, Desired};
use coracle::plan::memory::PodMemory;
use coracle::plan::recovered::{Recovered, RecoveredContainer, RecoveredRun, RecoveredSandbox};
use coracle::plan::run::Run;
use coracle::plan::state::{ContainerState, Sandbox};
use coracle::plan::{NodeState, PodState, network};
use coracle::spec::cluster::ClusterView;
use coracle::spec::*;
use coracle::types::{Effective, Exit, Stamp, Time, Wall};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A moment, with the wall clock at 1.1.2026 plus `ms`.
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
        // As if the manifest gave the UID; see `of_template`.
        template: PodUid::from("template"),
        workload: None,
        key: PodKey::new("default", name),
        manifest: Arc::new(manifest.into()),
        restart_policy: policy,
        restart_backoff: RestartBackoff::default(),
        swap_max_bytes: None,
        devices: None,
        after: Vec::new(),
        readiness_gates: vec![],
        grace_ms: 30_000,
        active_deadline_ms: None,
        priority: 0,
        host_network: false,
        host_pid: false,
        host_ipc: false,
        own_users: false,
        hostname: name.into(),
        given_hostname: None,
        given_subdomain: None,
        subdomain: None,
        hostname_as_fqdn: false,
        host_aliases: vec![],
        dns_policy: DnsPolicy::Default,
        dns_config: DnsConfig::default(),
        strict_groups: false,
        share_processes: false,
        fs_group: None,
        fs_group_on_mismatch: false,
        supplemental_groups: vec![],
        sysctls: vec![],
        init_containers: vec![],
        containers: containers.iter().map(|c| container(c)).collect(),
        ephemeral_containers: vec![],
        volumes: vec![],
        qos: QosClass::BestEffort,
        resources: PodResources::default(),
        storage_request_bytes: 0,
        storage_overhead_bytes: 0,
        huge_pages: HugePages::new(),
        placement: Placement::default(),
        may_preempt: true,
        tolerates_memory_pressure: false,
        service_links: true,
        pull_secrets: vec![],
        service_account: None,
        warnings: vec![],
    }
}

/// Has all containers ask for this device.
pub(crate) fn ask_for_device(spec: &mut PodSpec, device: &str) {
    let annotations = BTreeMap::from([("coracle.dev/devices".to_owned(), device.to_owned())]);
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "annotations": annotations },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    let context = convert::ConvertContext::of("n");
    let found = convert::documents(text.to_string().as_bytes(), "f", &context);
    spec.devices = found.expect("valid").pods[0].devices.clone();
    let manifest = Arc::make_mut(&mut spec.manifest);
    manifest.change_metadata(|metadata| metadata.annotations = Some(annotations));
}

/// The pod of a manifest that gives no UID: each pod made from it gets a new one.
pub(crate) fn of_template(mut spec: PodSpec) -> PodSpec {
    spec.template = spec.uid.clone();
    spec
}

/// The pod with these init containers; names that begin with `s` are sidecars.
pub(crate) fn with_inits(mut spec: PodSpec, inits: &[&str]) -> PodSpec {
    let shown = inits.iter().map(|c| core::Container {
        name: (*c).into(),
        image: Some("img:1".into()),
        ..Default::default()
    });
    let shown = Some(shown.collect());
    Arc::make_mut(&mut spec.manifest).change_spec(|spec| spec.init_containers = shown);
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

/// The pod with one more ephemeral container, added while it runs.
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
    Arc::make_mut(&mut spec.manifest).change_spec(|spec| {
        let inits = spec.init_containers.iter_mut().flatten();
        let mut all = inits.chain(&mut spec.containers);
        all.find(|c| c.name == name).unwrap().image = Some(image.into());
    });
}

/// Gives this container this much cpu and memory, and the pod the sum.
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
    Arc::make_mut(&mut spec.manifest).change_spec(|spec| {
        let mut all = spec.containers.iter_mut();
        all.find(|c| c.name == name).unwrap().resources = Some(resources);
    });
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

/// A rule about these exit codes.
pub(crate) fn rule(codes: ExitCodes, action: RestartAction) -> RestartRule {
    RestartRule { codes, action }
}

fn container(name: &str) -> ContainerSpec {
    ContainerSpec {
        env_from: vec![EnvFrom {
            prefix: String::new(),
            kind: ObjectKind::ConfigMap,
            name: "app".into(),
            optional: false,
        }],
        name: name.into(),
        image: "img:1".into(),
        image_name: ImageName {
            registry: "docker.io".into(),
            repository: "library/img".into(),
            tag: Some("1".into()),
            digest: None,
        },
        pinned: None,
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
            app_armor: AppArmor::Unconfined,
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

/// Manifests that ask for exactly these pods.
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
        ..Desired::default()
    }
}

/// A service that selects all pods.
pub(crate) fn service(name: &str, with_unready: bool) -> ServiceSpec {
    ServiceSpec {
        families: coracle::spec::Families::All { v6_first: false },
        key: PodKey::new("default", name),
        selector: [("all".into(), "yes".into())].into(),
        address: ServiceAddress::Any,
        ports: vec![ServicePort {
            name: String::new(),
            protocol: Protocol::Tcp,
            port: 80,
            target: TargetPort::Number(8080),
            node_port: None,
        }],
        aliases: Vec::new(),
        with_unready,
        client_affinity: false,
        warnings: vec![],
    }
}

/// The addresses and endpoints at the last check.
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

    /// Checks what holds for every view (N1 to N3 of `tests/README.md`), and that it changes only if `network_changes` grows.
    pub(crate) fn check(self: &Arc<Self>, now: &NodeState) -> Arc<Self> {
        let seen = Self::new(now);
        check_view(now, &seen.view);
        assert!(self.changes <= seen.changes, "`network_changes` only grows");
        if self.changes == seen.changes {
            assert_eq!(
                self.view, seen.view,
                "the view changed, but `network_changes` did not grow"
            );
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
            let ready = p.flags.ready.yes && p.stopping().is_none() && p.verdict.is_none();
            matches!(p.sandbox, Sandbox::Ready { .. }) && !p.finished() && (ready || !ready_only)
        };
        let mut expected: Vec<_> = now.pods.values().filter(may).map(|p| &p.spec.key).collect();
        if expected.is_empty() {
            // Those that go serve as long as there is no other.
            let serves = |p: &&PodState| {
                let live = matches!(p.sandbox, Sandbox::Ready { .. }) && !p.finished();
                live && p.flags.ready.yes && p.stopping().is_some() && p.verdict.is_none()
            };
            expected.extend(now.pods.values().filter(serves).map(|p| &p.spec.key));
        }
        expected.sort();
        let found: Vec<_> = service.endpoints.iter().map(|e| &e.pod).collect();
        let name = &service.spec.key;
        assert_eq!(
            found, expected,
            "{name}: its endpoints are the ready, live pods, sorted"
        );
    }
}

/// The settings of the newest run in the shim's record.
fn effective(c: &ContainerState) -> Effective {
    let asked = c.run.course().and_then(|course| course.asked.as_ref());
    asked.map_or_else(Effective::default, |asked| asked.effective.clone())
}

/// What the next agent finds of this pod, if everything known of it was recorded, with this sandbox.
pub(crate) fn recovered(pod: &PodState, sandbox: RecoveredSandbox) -> Recovered {
    let containers = pod.containers.iter().map(|c| {
        let newest = match &c.run {
            Run::None => None,
            Run::Running(run) => Some(RecoveredRun {
                attempt: run.attempt,
                image_id: run.image_id.clone(),
                started: run.began,
                pid: run.pid,
                effective: effective(c),
                exit: None,
                stop_sent: c.stop().sent,
            }),
            Run::Ended(past) => Some(RecoveredRun {
                attempt: past.ended.attempt,
                image_id: past.ended.image_id.clone(),
                started: past.ended.exit.started,
                pid: 0,
                effective: effective(c),
                exit: Some(past.ended.exit.clone()),
                stop_sent: c.stop().sent,
            }),
        };
        let left = RecoveredContainer {
            newest,
            previous: c.previous.as_ref().map(|e| e.exit.clone()),
            ..RecoveredContainer::default()
        };
        (c.name.clone(), left)
    });
    Recovered {
        spec: Arc::clone(&pod.spec),
        sandbox,
        containers: containers.collect(),
        memory: written(&PodMemory::of(pod)),
    }
}

/// The memory after a round trip to disk.
pub(crate) fn written(memory: &PodMemory) -> PodMemory {
    let json = serde_json::to_vec(memory).unwrap();
    serde_json::from_slice(&json).unwrap()
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

/// The type of condition that a readiness gate waits for.
pub(crate) const GATE: &str = "example.com/gate";

/// A client opens or closes the gate.
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
