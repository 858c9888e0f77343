//! What a document costs the agent beyond the pod that it stands for: bytes of the heap, all that is kept of both while
//! they are wanted and shown.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use coracle::api::{EventRecord, ObjectKind, Store};
use coracle::plan::event::Desired;
use coracle::plan::{Agenda, Event, NodeFact, NodeState, Settings, status};
use coracle::spec::convert::{ConvertContext, documents};
use coracle::types::{Gather, Stamp, Time, Wall};

/// So many documents of each kind.
const NUMBER: usize = 50;

/// The system's allocator, which counts.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// What the C library takes for it, on 64 bits.
fn taken(layout: Layout) -> usize {
    (layout.size() + 8).next_multiple_of(16).max(32)
}

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(taken(layout), Ordering::Relaxed);
        // SAFETY: the caller's promises are those that it asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(taken(layout), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Wants and shows what these texts say, and returns the bytes that it takes.
fn kept(texts: &[String]) -> usize {
    let before = LIVE.load(Ordering::Relaxed);
    let (mut state, store) = (NodeState::new(Settings::default()), Store::new());
    let mut agenda = Agenda::new(&state);
    let found = texts.iter().map(|text| {
        let context = ConvertContext::of("n");
        documents(text.as_bytes(), "f", &context).expect("it is valid")
    });
    let (mut desired, mut workloads) = (Desired::default(), Vec::new());
    for found in found {
        let pods = found.pods.into_iter();
        desired
            .pods
            .extend(pods.map(|pod| (pod.uid.clone(), Arc::new(pod))));
        workloads.extend(found.workloads.into_iter().map(Arc::new));
    }
    let workloads = workloads.into_iter();
    desired.workloads = Arc::new(workloads.map(|w| (w.key.clone(), w)).gather());
    let now = Stamp {
        time: Time(1_000),
        wall: Wall(1_000_000),
    };
    let event = Event::Node(NodeFact::DesiredChanged(desired));
    for notice in agenda.record(&mut state, &event, now) {
        store.push_event(&EventRecord {
            namespace: notice.key.namespace.to_string(),
            name: notice.key.name.to_string(),
            uid: notice.uid.to_string(),
            kind: notice
                .workload
                .map_or(ObjectKind::Pod, ObjectKind::Workload),
            field_path: String::new(),
            type_: notice.reason.severity(),
            reason: notice.reason.to_string(),
            message: notice.message,
            annotations: BTreeMap::new(),
            at: now,
        });
    }
    drop(event);
    agenda.take_changed();
    let node = status::NodeFacts {
        name: "n".to_owned(),
        ips: Vec::new(),
    };
    for pod in state.pods.values() {
        store.upsert_pod(status::pod(pod, &node, &state.settings));
    }
    for shown in state.shown_workloads() {
        store.upsert_workload(shown);
    }
    assert_eq!(state.pods.len(), texts.len());
    store.compact();
    LIVE.load(Ordering::Relaxed) - before
}

/// The budget of `tests/bench/workloads.py`.
#[test]
fn a_deployment_takes_less_than_two_kilobytes_beyond_its_pod() {
    let template = |name: &str| {
        serde_json::json!({
            "metadata": { "name": name, "labels": { "app": "bench" } },
            "spec": {
                "hostNetwork": true,
                "terminationGracePeriodSeconds": 1,
                "volumes": [{ "name": "out", "hostPath": { "path": "/tmp/out" } }],
                "containers": [{
                    "name": "main",
                    "image": "busybox:1",
                    "command": ["sh", "-c", ": > /out/$POD; exec sleep 1000"],
                    "volumeMounts": [{ "name": "out", "mountPath": "/out" }],
                    "env": [{ "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
                }],
            },
        })
    };
    let pod = |number: usize| {
        let mut pod = template(&format!("d{number}"));
        (pod["apiVersion"], pod["kind"]) = ("v1".into(), "Pod".into());
        pod.to_string()
    };
    let deployment = |number: usize| {
        let mut template = template("");
        template["metadata"]["name"].take();
        let selector = serde_json::json!({ "matchLabels": { "app": "bench" } });
        let spec = serde_json::json!({ "replicas": 1, "selector": selector, "template": template });
        let metadata = serde_json::json!({ "name": format!("d{number}") });
        let (version, kind) = ("apps/v1", "Deployment");
        serde_json::json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec })
            .to_string()
    };
    let pods: Vec<String> = (0..NUMBER).map(pod).collect();
    let deployments: Vec<String> = (0..NUMBER).map(deployment).collect();
    // Once for what is made at its first use.
    kept(&pods);
    kept(&deployments);
    let (pods, deployments) = (kept(&pods) / NUMBER, kept(&deployments) / NUMBER);
    assert!(deployments - pods < 2_000, "{pods}, {deployments}");
}
