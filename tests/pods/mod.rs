//! Which pods do the tests of the planner talk about? Valid specs with nothing special, made by hand.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use coracle::plan::event::Desired;
use coracle::plan::{Stamp, Time, Wall};
use coracle::spec::*;
use k8s_openapi::api::core::v1 as core;

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
            ..Default::default()
        }),
        status: None,
    };
    PodSpec {
        uid: PodUid::from(uid),
        key: PodKey {
            namespace: "default".into(),
            name: name.into(),
        },
        manifest: Arc::new(manifest),
        restart_policy: policy,
        grace_ms: 30_000,
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
        containers: containers.iter().map(|c| container(c)).collect(),
        volumes: vec![],
        qos: QosClass::BestEffort,
        resources: PodResources::default(),
        warnings: vec![],
    }
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
        tty: false,
    }
}

/// Exactly these pods are wanted.
pub(crate) fn desired(pods: &[&Arc<PodSpec>]) -> Desired {
    let pods: BTreeMap<_, _> = pods
        .iter()
        .map(|p| (p.uid.clone(), Arc::clone(p)))
        .collect();
    Desired { pods }
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
