//! Claims: their size where it is enforced by counting, and those that only one pod may use.

use super::*;
use coracle::plan::event::{Claim, Claims};
use coracle::spec::PodKey;

fn key(name: &str) -> PodKey {
    PodKey::new("default", name)
}

/// A pod that uses the claim `data`.
fn user(name: &str, priority: i32) -> PodSpec {
    let mut spec = named(name, priority);
    spec.volumes = vec![VolumeSpec {
        name: "v".into(),
        source: VolumeSource::Claim {
            name: "data".into(),
            read_only: false,
        },
    }];
    spec
}

/// The claim `data` of this size.
fn sized(bytes: Option<u64>) -> Event {
    let claim = Claim {
        one_pod: false,
        counted_bytes: bytes,
    };
    Event::Node(NodeFact::ClaimsChanged([(key("data"), claim)].into()))
}

fn taken(bytes: u64) -> Observation {
    Observation {
        claims: [(key("data"), bytes)].into(),
        ..of_disk(900 * MI, &[])
    }
}

/// What each pod is doing: `runs`, or why it is held.
fn stands(node: &Node) -> Vec<String> {
    let all = node.state.pods.values().map(|pod| {
        let how = match pod.hold() {
            Some(hold) => hold.reason.to_string(),
            None if pod.any_running() => "runs".to_owned(),
            None => "does not run".to_owned(),
        };
        format!("{} {how}", pod.spec.key.name)
    });
    all.collect()
}

/// A node whose only pod was evicted because its claim of 50 Mi was over its size, and is held for that.
fn held() -> Node {
    let mut node = node(policy(&[]), &[user("a", 0)]);
    node.tell(sized(Some(50 * MI)));
    look(&mut node, &taken(51 * MI));
    evicted(&mut node);
    node.work();
    node.end("c", 137);
    node.work();
    node.wait(10_000);
    node.work();
    assert_eq!(stands(&node), ["a ClaimOverSize"]);
    node
}

#[test]
fn a_pod_whose_claim_is_over_its_size_is_evicted() {
    for (size, used, message) in [
        (None, 90 * MI, None),
        (Some(50 * MI), 50 * MI, None),
        (
            Some(50 * MI),
            50 * MI + 1,
            Some("Usage of PersistentVolumeClaim \"data\" exceeds its size \"50Mi\". "),
        ),
    ] {
        let mut node = node(policy(&[hard(Signal::NodefsBytes, MI)]), &[user("a", 0)]);
        node.tell(sized(size));
        let walk = match size {
            Some(_) => Walk::Limited,
            None => Walk::None,
        };
        assert_eq!(look(&mut node, &taken(used)).1, walk);
        match message {
            None => assert!(!matches!(step(&node), Step::Record(_))),
            Some(message) => assert_eq!(evicted(&mut node), ("a".into(), message.into())),
        }
    }
}

#[test]
fn all_pods_that_use_it_go_one_after_the_other_but_no_critical_one() {
    let pods = [
        user("a", 0),
        user("b", 0),
        user("c", 2_000_000_000),
        named("d", 0),
    ];
    let mut node = node(policy(&[]), &[]);
    node.tell(sized(Some(MI)));
    let pods = pods.map(Arc::new);
    let all: Vec<_> = pods.iter().collect();
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&all))));
    node.work();
    node.wait(1);
    look(&mut node, &taken(2 * MI));
    assert_eq!(evicted(&mut node).0, "a");
    assert_eq!(evicted(&mut node).0, "b");
    assert!(!matches!(step(&node), Step::Record(_)), "{:?}", step(&node));
}

#[test]
fn the_evicted_pod_is_held_until_files_were_removed() {
    let mut node = held();
    let hold = node
        .state
        .pods
        .values()
        .next()
        .and_then(|pod| pod.hold().cloned());
    assert_eq!(
        hold.expect("held").message,
        "persistentvolumeclaim \"data\" takes more than its size \"50Mi\": remove files from it, or let it request more \
         storage"
    );
    // It is still measured, though nothing runs.
    assert_eq!(node.state.measured_claims(Walk::Limited), [key("data")]);
    let notices = node.notices.len();
    for used in [60 * MI, 51 * MI] {
        node.wait(LOOK_MS);
        assert_eq!(look(&mut node, &taken(used)).1, Walk::Limited);
        assert_eq!(stands(&node), ["a ClaimOverSize"]);
    }
    assert_eq!(node.notices.len(), notices, "it is reported once");
    node.wait(LOOK_MS);
    look(&mut node, &taken(50 * MI));
    node.work();
    assert_eq!(stands(&node), ["a runs"]);
}

#[test]
fn more_storage_admits_it_at_once_and_so_does_a_quota() {
    for (claim, runs) in [
        (sized(Some(51 * MI)), true),
        (sized(Some(51 * MI - 1)), false),
        (sized(None), true),
        (Event::Node(NodeFact::ClaimsChanged(Claims::new())), true),
    ] {
        let mut node = held();
        node.tell(claim);
        node.work();
        let expected = if runs { "a runs" } else { "a ClaimOverSize" };
        assert_eq!(stands(&node), [expected]);
    }
}

#[test]
fn after_an_agent_restart_it_is_held_until_its_claim_is_measured_or_larger() {
    enum Then {
        Measured(u64),
        Sized(Option<u64>),
    }
    for (then, runs) in [
        (Then::Measured(51 * MI), false),
        (Then::Measured(50 * MI), true),
        (Then::Sized(Some(51 * MI)), true),
        (Then::Sized(Some(50 * MI)), false),
        (Then::Sized(None), true),
    ] {
        let old = held();
        let mut node = Node::new(300_000);
        node.now = old.now;
        node.state.former_holds = old.state.holds();
        node.state.incarnations = old.state.incarnations.clone();
        node.tell(Event::Node(NodeFact::PolicyChanged(Arc::new(policy(&[])))));
        node.tell(sized(Some(50 * MI)));
        let wanted = Arc::new(user("a", 0));
        node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&wanted]))));
        node.work();
        assert_eq!(stands(&node), ["a ClaimOverSize"]);
        match then {
            Then::Measured(used) => {
                assert_eq!(look(&mut node, &taken(used)).1, Walk::Limited, "at once");
            }
            Then::Sized(bytes) => node.tell(sized(bytes)),
        }
        node.work();
        let expected = if runs { "a runs" } else { "a ClaimOverSize" };
        assert_eq!(stands(&node), [expected]);
    }
}

#[test]
fn a_pod_that_comes_later_is_held_too_unless_it_is_critical() {
    let mut node = held();
    let pods = [
        user("a", 0),
        user("b", 0),
        user("c", 2_000_000_000),
        named("d", 0),
    ];
    let pods: Vec<_> = pods.into_iter().map(Arc::new).collect();
    let all: Vec<_> = pods.iter().collect();
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&all))));
    node.work();
    let mut stands = stands(&node);
    stands.sort();
    assert_eq!(
        stands,
        ["a ClaimOverSize", "b ClaimOverSize", "c runs", "d runs"]
    );
}

#[test]
fn without_limits_of_disk_use_nothing_is_measured_or_refused() {
    let mut node = held();
    node.tell(Event::Node(NodeFact::PolicyChanged(Arc::default())));
    node.work();
    assert_eq!(stands(&node), ["a runs"]);
    assert_eq!(step(&node), Step::Rest);
}

#[test]
fn only_counted_claims_that_pods_use_are_measured() {
    let mut node = node(policy(&[]), &[user("a", 0)]);
    let counted = Claim {
        one_pod: false,
        counted_bytes: Some(MI),
    };
    let claims = [(key("data"), counted), (key("other"), counted)];
    node.tell(Event::Node(NodeFact::ClaimsChanged(claims.into())));
    assert_eq!(node.state.measured_claims(Walk::Limited), [key("data")]);
    assert_eq!(node.state.measured_claims(Walk::All), [key("data")]);
    assert_eq!(node.state.measured_claims(Walk::None), []);
    node.tell(sized(None));
    assert_eq!(node.state.measured_claims(Walk::All), []);
}

#[test]
fn only_one_pod_at_a_time_uses_a_read_write_once_pod_claim() {
    for (one_pod, expected) in [
        (false, ["a runs", "b runs", "c runs"]),
        (true, ["a runs", "b VolumeRestrictions", "c runs"]),
    ] {
        let mut node = Node::new(300_000);
        let claim = Claim {
            one_pod,
            counted_bytes: None,
        };
        let claims = [(key("data"), claim)];
        node.tell(Event::Node(NodeFact::ClaimsChanged(claims.into())));
        let pods = [user("a", 0), user("b", 0), named("c", 0)];
        let pods: Vec<_> = pods.into_iter().map(Arc::new).collect();
        let want = |node: &mut Node, pods: &[Arc<PodSpec>]| {
            let all: Vec<_> = pods.iter().collect();
            node.tell(Event::Node(NodeFact::DesiredChanged(desired(&all))));
            node.work();
        };
        want(&mut node, &pods);
        assert_eq!(stands(&node), expected);
        if !one_pod {
            continue;
        }
        let hold = node.state.pods.get("b").and_then(|pod| pod.hold().cloned());
        assert_eq!(
            hold.expect("held").message,
            "Predicate VolumeRestrictions failed: node has pod using PersistentVolumeClaim with the same name and \
             ReadWriteOncePod access mode (data is in use by pod default/a)"
        );
        // As soon as the first has gone, and not before.
        let all: Vec<_> = pods[1..].iter().collect();
        node.tell(Event::Node(NodeFact::DesiredChanged(desired(&all))));
        assert_eq!(stands(&node)[1], "b VolumeRestrictions");
        node.work();
        node.end_of(&PodUid::from("a"), 0);
        node.work();
        assert_eq!(stands(&node), ["b runs", "c runs"]);
    }
}

#[test]
fn one_pod_waits_for_the_document_of_a_claim_and_the_others_until_its_mode_is_known() {
    for (one_pod, expected) in [
        (false, ["a runs", "b runs", "c runs"]),
        (true, ["a runs", "b VolumeRestrictions", "c runs"]),
    ] {
        let mut node = Node::new(300_000);
        let pods = [user("a", 0), user("b", 0), named("c", 0)].map(Arc::new);
        let all: Vec<_> = pods.iter().collect();
        node.tell(Event::Node(NodeFact::DesiredChanged(desired(&all))));
        node.work();
        assert_eq!(stands(&node), ["a runs", "b VolumeBinding", "c runs"]);
        let hold = node.state.pods["b"].hold().cloned();
        assert_eq!(
            hold.expect("held").message,
            "Predicate VolumeBinding failed: persistentvolumeclaim \"data\" not found"
        );
        let claim = Claim {
            one_pod,
            counted_bytes: None,
        };
        let claims = [(key("data"), claim)];
        node.tell(Event::Node(NodeFact::ClaimsChanged(claims.into())));
        node.work();
        assert_eq!(stands(&node), expected);
    }
}
