//! What an edit of a Job's file begins again, and what stays.

use super::*;

#[test]
fn what_is_complete_stays_so_until_the_file_changes() {
    let mut world = World::new();
    let text = document("Never", "");
    world.read(&text);
    world.end("j-0-0", 0);
    assert_eq!(world.outcome(), "Complete CompletionsReached");
    for rebooted in [false, true] {
        let mut next = world.next_agent(rebooted);
        next.read(&text);
        assert_eq!(next.outcome(), "Complete CompletionsReached");
        assert_eq!(next.running(), [""; 0]);
        // A file that cannot be read for a while, or is on a disk that is not there yet, changes nothing.
        let mut late = world.next_agent(rebooted);
        late.read("");
        late.read(&text);
        assert_eq!(late.running(), [""; 0]);
        // What concerns what comes, not what was done, does not begin it again.
        next.read(&document(
            "Never",
            "  parallelism: 1\n  completions: 1\n  backoffLimit: 3\n",
        ));
        let again = next.running();
        assert_eq!(again, [""; 0]);
        next.read(&document("Never", "  completions: 2\n"));
        next.gone();
        assert_eq!(next.running(), ["j-0-0"], "another edition");
        assert_eq!(next.status()["succeeded"], 0);
    }
    // An agent that takes its pods along has not been told to forget anything.
    let mut leaving = world.next_agent(false);
    leaving.read(&text);
    leaving.tell(Event::Node(NodeFact::DesiredChanged(Desired {
        leaving: true,
        ..Desired::default()
    })));
    leaving.gone();
    assert_eq!(leaving.names(), [""; 0]);
    let mut next = leaving.next_agent(true);
    next.read(&text);
    assert_eq!(next.outcome(), "Complete CompletionsReached");
    // Removed and put back, it runs again.
    world.read("");
    world.gone();
    world.read(&text);
    assert_eq!(world.running(), ["j-0-0"]);
}

#[test]
fn the_default_written_down_makes_no_other_edition() {
    let bare = document("Never", "");
    let written = document("Never", "  parallelism: 1\n");
    for (one, other) in [(&bare, &written), (&written, &bare)] {
        let mut world = World::new();
        world.read(one);
        world.end("j-0-0", 0);
        world.read(other);
        world.gone();
        assert_eq!(world.running(), [""; 0]);
        let outcome = world.outcome();
        assert!(outcome.starts_with("Complete"), "{outcome}");
    }
}

#[test]
fn a_job_came_once_and_its_generation_grows_with_its_file() {
    let mut world = World::new();
    world.now.wall = Wall(1_800_000_000_000_000);
    world.read(&document("Never", ""));
    let shown = |world: &World| {
        let shown = world.state.shown_workloads().next().expect("shown").json(1);
        let metadata = &shown["metadata"];
        let created = metadata["creationTimestamp"].as_str().map(str::to_owned);
        (created, metadata["generation"].as_u64())
    };
    let (first, generation) = shown(&world);
    assert_eq!(generation, Some(1));
    world.pass(60_000);
    world.read(&document("Never", ""));
    assert_eq!(shown(&world), (first.clone(), Some(1)));
    world.read(&document("Never", "  backoffLimit: 3\n"));
    assert_eq!(shown(&world), (first.clone(), Some(2)));
    let mut next = world.next_agent(true);
    next.read(&document("Never", "  backoffLimit: 3\n"));
    assert_eq!(shown(&next), (first, Some(2)));
}
