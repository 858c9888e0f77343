//! Rollouts at random: pods and files change, agents restart.

use super::*;

/// Numbers that look random, the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        // xorshift64 (Marsaglia 2003)
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }
}

#[test]
fn whatever_happens_to_pods_and_files_the_last_file_holds_in_the_end() {
    for seed in 1..100_u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let kind = ["Deployment", "StatefulSet", "ReplicaSet", "DaemonSet"][dice.below(4)];
        let mut world = World::new();
        let mut file = String::new();
        let mut wanted = (0, 'a');
        for _ in 0..60 {
            let before = world.live();
            match dice.below(8) {
                0 => {
                    let letter = ['a', 'b', 'c'][dice.below(3)];
                    let replicas = dice.below(5);
                    let more = match (kind, dice.below(3)) {
                        ("Deployment", 0) => "  strategy: {type: Recreate}\n".to_owned(),
                        ("Deployment", _) => {
                            strategy(&dice.below(3).to_string(), &(1 + dice.below(2)).to_string())
                        }
                        ("StatefulSet", 0) => "  podManagementPolicy: Parallel\n".to_owned(),
                        _ => String::new(),
                    };
                    file = document(kind, letter, replicas, &more);
                    wanted = (replicas, letter);
                    world.read(&file);
                }
                1 => world.gone(),
                2 => {
                    // The agent starts again; how far rollouts were may be lost.
                    let kept = world.state.workloads.rollouts();
                    world.restart(if dice.below(2) == 0 { kept } else { Vec::new() });
                    world.read(&file);
                }
                3 => {
                    let uids: Vec<PodUid> = world.state.pods.keys().cloned().collect();
                    if !uids.is_empty() {
                        let uid = uids[dice.below(uids.len())].clone();
                        let grace_ms = None;
                        let fact = PodFact::DeleteRequested { grace_ms };
                        world.tell(Event::Pod { uid, fact });
                    }
                }
                4 => world.pass(100_000),
                _ => {
                    let uids: Vec<PodUid> = world.state.pods.keys().cloned().collect();
                    if !uids.is_empty() {
                        let uid = uids[dice.below(uids.len())].clone();
                        world.set_pod_ready(&uid, dice.below(3) > 0);
                    }
                }
            }
            // maxSurge is 2 at most.
            let bound = before.max(wanted.0.max(1) + 2);
            assert!(world.live() <= bound, "{seed} {kind}: {}", world.shown());
        }
        for _ in 0..40 {
            for letter in ['a', 'b', 'c'] {
                world.set_ready(letter, true);
            }
            world.gone();
        }
        let (replicas, letter) = match (kind, file.is_empty()) {
            (_, true) => (0, 'a'),
            ("DaemonSet", _) => (1, wanted.1),
            _ => wanted,
        };
        let all = vec![letter.to_string(); replicas].join(" ");
        assert_eq!(world.shown(), all, "{seed} {kind}");
        world.pass(700_000);
        assert_eq!(world.shown(), all, "{seed} {kind}");
        let next = super::super::next(&world.state, world.now.time);
        assert_eq!(next, Step::Rest, "{seed} {kind}");
    }
}
