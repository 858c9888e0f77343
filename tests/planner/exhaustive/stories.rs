//! The pods of the stories, and how long the stories are.

use super::*;

fn search(policy: RestartPolicy, containers: &[&str], depth: u32) -> usize {
    search_pod(pods::pod("u", "p", policy, containers), depth)
}

fn search_pod(spec: PodSpec, depth: u32) -> usize {
    search_with(spec, [None, None], Work::Nothing, depth)
}

/// Also plays every story in which a client adds a container; `debugged` is the pod with it.
fn search_debugged(spec: PodSpec, debugged: PodSpec, depth: u32) -> usize {
    search_with(spec, [Some(debugged), None], Work::Nothing, depth)
}

/// Also plays every story in which the pod is edited.
fn search_edited(spec: PodSpec, edited: PodSpec, depth: u32) -> usize {
    search_with(spec, [None, Some(edited)], Work::Nothing, depth)
}

/// Also plays every story of a node that shuts down or is drained, and every one where that is cancelled.
fn search_with(spec: PodSpec, others: [Option<PodSpec>; 2], work: Work, depth: u32) -> usize {
    let [debugged, edited] = others.map(|pod| pod.map(Arc::new));
    let spec = Arc::new(spec);
    let containers = debugged.as_ref().unwrap_or(&spec).all_containers().count();
    let shortages = spec.resources.memory_request_bytes == SOME;
    let mut state = NodeState::new(Settings::default());
    state.apply(
        &Event::Node(NodeFact::DesiredChanged(pods::desired(&[&spec]))),
        at(1_000_000),
    );
    let mut story = Story {
        seen: pods::Seen::new(&state),
        agenda: Agenda::new(&state),
        state,
        now: 1_000_000,
        wanted: true,
        going: false,
        ran: vec![None; containers],
        probing: vec![],
        hooking: vec![],
        kills: 0,
    };
    let mut search = Search {
        spec,
        debugged,
        edited,
        work,
        shortages,
        told: HashMap::new(),
        stories: 0,
    };
    search.decide(&mut story);
    search.tell(&story, depth);
    search.stories
}

#[test]
fn no_short_story_of_one_container_breaks_an_invariant() {
    for policy in POLICIES {
        assert!(search(policy, &["x"], 9) > 50_000);
    }
}

#[test]
fn no_short_story_of_a_shutdown_breaks_an_invariant() {
    for policy in POLICIES {
        for priority in [0, 1500, 2000] {
            let mut spec = pods::pod("u", "p", policy, &["x"]);
            spec.priority = priority;
            assert!(search_with(spec, [None, None], Work::Shutdown, 6) > 5_000);
        }
        let spec = pods::with_inits(pods::pod("u", "p", policy, &["x"]), &["s1"]);
        assert!(search_with(spec, [None, None], Work::Shutdown, 6) > 5_000);
    }
}

#[test]
fn no_short_story_of_a_node_that_is_drained_breaks_an_invariant() {
    for policy in POLICIES {
        for inits in [&[][..], &["s1"]] {
            let spec = pods::with_inits(pods::pod("u", "p", policy, &["x"]), inits);
            assert!(search_with(spec, [None, None], Work::Cordon, 7) > 5_000);
        }
    }
}

#[test]
fn no_short_story_of_two_containers_breaks_an_invariant() {
    for policy in POLICIES {
        assert!(search(policy, &["x", "y"], 8) > 50_000);
    }
}

#[test]
fn no_short_story_of_init_containers_and_sidecars_breaks_an_invariant() {
    for policy in POLICIES {
        for inits in [&["i1"][..], &["s1"], &["i1", "s2"], &["s1", "i2"]] {
            let spec = pods::with_inits(pods::pod("u", "p", policy, &["x"]), inits);
            assert!(search_pod(spec, 7) > 5_000);
        }
    }
}

#[test]
fn no_short_story_of_an_added_container_breaks_an_invariant() {
    for policy in POLICIES {
        for inits in [&[][..], &["s1"]] {
            let spec = pods::with_inits(pods::pod("u", "p", policy, &["x"]), inits);
            let debugged = pods::with_ephemeral(&spec, "e", Some("x"));
            assert!(search_debugged(spec, debugged, 7) > 5_000);
        }
    }
}

#[test]
fn no_short_story_of_a_restart_in_place_breaks_an_invariant() {
    for policy in [RestartPolicy::Always, RestartPolicy::Never] {
        for inits in [&[][..], &["i1"], &["s1"]] {
            let mut spec = pods::with_inits(pods::pod("u", "p", policy, &["x", "y"]), inits);
            let x = pods::of(&mut spec, "x");
            x.restart_policy = Some(RestartPolicy::Never);
            let codes = ExitCodes::In(vec![1]);
            x.restart_rules = vec![pods::rule(codes, RestartAction::RestartAllContainers)];
            assert!(search_pod(spec, 7) > 5_000);
        }
    }
}

#[test]
fn no_short_story_of_probes_breaks_an_invariant() {
    for policy in [RestartPolicy::Always, RestartPolicy::Never] {
        for inits in [&[][..], &["s1"]] {
            let mut spec = pods::with_inits(pods::pod("u", "p", policy, &["x"]), inits);
            let probe = |threshold| Some(pods::probing(1_000, threshold));
            pods::of(&mut spec, "x").probes.startup = probe(1);
            pods::of(&mut spec, "x").probes.liveness = probe(1);
            if !inits.is_empty() {
                pods::of(&mut spec, "s1").probes.startup = probe(1);
                pods::of(&mut spec, "x").probes.startup = None;
            }
            let depth = if inits.is_empty() { 9 } else { 8 };
            assert!(search_pod(spec, depth) > 5_000);
        }
    }
}

#[test]
fn no_short_story_of_an_edited_image_breaks_an_invariant() {
    for policy in POLICIES {
        for inits in [&[][..], &["s1"]] {
            let spec = pods::with_inits(pods::pod("u", "p", policy, &["x"]), inits);
            let mut edited = spec.clone();
            pods::set_image(&mut edited, "x", "img:2");
            let depth = if inits.is_empty() { 9 } else { 7 };
            assert!(search_edited(spec, edited, depth) > 5_000);
        }
    }
}

#[test]
fn no_short_story_of_hooks_breaks_an_invariant() {
    let run = || Some(Hook::Exec(vec!["true".into()]));
    for policy in [RestartPolicy::Always, RestartPolicy::Never] {
        for inits in [&[][..], &["s1"]] {
            let mut spec = pods::with_inits(pods::pod("u", "p", policy, &["x"]), inits);
            let x = &mut pods::of(&mut spec, "x").lifecycle;
            (x.post_start, x.pre_stop) = (run(), run());
            if !inits.is_empty() {
                pods::of(&mut spec, "s1").lifecycle.post_start = Some(Hook::Sleep { ms: 1_000 });
                pods::of(&mut spec, "s1").lifecycle.pre_stop = run();
                pods::of(&mut spec, "x").lifecycle.post_start = None;
            }
            let depth = if inits.is_empty() { 9 } else { 8 };
            assert!(search_pod(spec, depth) > 5_000);
        }
    }
}

#[test]
fn no_short_story_of_a_deadline_breaks_an_invariant() {
    for policy in [RestartPolicy::Always, RestartPolicy::Never] {
        for inits in [&[][..], &["i1"], &["s1"]] {
            let mut spec = pods::with_inits(pods::pod("u", "p", policy, &["x"]), inits);
            spec.active_deadline_ms = Some(5_000);
            assert!(search_pod(spec, 7) > 5_000);
        }
    }
}

/// For a pod that requests this much memory, the node may have no room at all.
const SOME: u64 = 1_234;

#[test]
fn no_short_story_of_a_node_without_room_breaks_an_invariant() {
    for (policy, work) in [
        (RestartPolicy::Always, Work::Nothing),
        (RestartPolicy::Never, Work::Nothing),
        (RestartPolicy::Always, Work::Shutdown),
        (RestartPolicy::Always, Work::Cordon),
    ] {
        let mut spec = pods::pod("u", "p", policy, &["x"]);
        pods::set_resources(&mut spec, "x", 100, SOME);
        let mut edited = spec.clone();
        pods::set_image(&mut edited, "x", "img:2");
        let others = [None, Some(edited)];
        assert!(search_with(spec, others, work, 7) > 5_000);
    }
}

#[test]
fn no_short_story_of_a_resize_breaks_an_invariant() {
    for (policy, restarts) in [
        (RestartPolicy::Always, false),
        (RestartPolicy::Always, true),
        (RestartPolicy::Never, false),
    ] {
        let mut spec = pods::pod("u", "p", policy, &["x"]);
        pods::set_resources(&mut spec, "x", 100, 1_000);
        pods::of(&mut spec, "x").resize_restarts.memory = restarts;
        let mut edited = spec.clone();
        pods::set_resources(&mut edited, "x", 100, 2_000);
        assert!(search_edited(spec, edited, 9) > 5_000);
    }
}
