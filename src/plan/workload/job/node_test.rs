//! What the node and clients do to a Job's pods.

use super::*;
use crate::plan::PodFact;

#[test]
fn what_the_node_or_a_client_does_to_a_pod_is_no_restart_that_counts() {
    for (what, counts) in [
        ("it fails", true),
        ("a client restarts it", false),
        ("its shim is lost", false),
    ] {
        let mut world = World::new();
        world.read(&document("OnFailure", "  backoffLimit: 2\n"));
        for _ in 0..4 {
            let uid = world.uids('a')[0].clone();
            match what {
                "it fails" => world.end("j-0-0", 1),
                "a client restarts it" => world.tell(Event::Pod {
                    uid,
                    fact: PodFact::RestartRequested {
                        container: None,
                        grace_ms: Some(1_000),
                    },
                }),
                _ => {
                    let exit = Exit::lost(world.now, world.now);
                    world.exit("j-0-0", exit);
                }
            }
            world.pass(700_000);
            if counts && world.running().is_empty() {
                break;
            }
            assert_eq!(world.running(), ["j-0-0"], "{what}");
        }
        let outcome = match counts {
            true => "Failed BackoffLimitExceeded",
            false => "",
        };
        assert_eq!(world.outcome(), outcome, "{what}");
    }
}
