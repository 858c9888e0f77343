//! The time that changes of the rules take. Printed, not judged: the machine may be busy.
//! `cargo test --test firewall figures -- --nocapture`

use std::time::{Duration, Instant};

use coracle::network::firewall::Firewall;
use coracle::spec::Protocol;

use crate::world::{World, host_port, inside, pod, rules};

fn timed(f: impl FnOnce()) -> Duration {
    let start = Instant::now();
    f();
    start.elapsed()
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort();
    all[all.len() / 2]
}

#[test]
fn figures_of_a_hundred_pods_with_two_ports_each() {
    let world = World::new();
    let of = |number: u16| {
        let port = |port| host_port(Protocol::Tcp, None, port, 80);
        pod(number, &[port(1000 + number), port(2000 + number)])
    };
    inside(&world.node, || {
        let mut whole = Vec::new();
        let firewall = Firewall::default();
        for _ in 0..5 {
            let fresh = Firewall::default();
            whole.push(timed(|| {
                let all = (10..110).map(of);
                fresh
                    .update(|r| {
                        rules(r);
                        r.pods.extend(all);
                    })
                    .unwrap();
            }));
        }
        firewall
            .update(|r| {
                rules(r);
                r.pods.extend((10..110).map(of));
            })
            .unwrap();
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for _ in 0..10 {
            added.push(timed(|| {
                firewall.update(|r| r.pods.extend([of(200)])).unwrap()
            }));
            removed.push(timed(|| {
                firewall
                    .update(|r| {
                        r.pods.remove(&of(200).0);
                    })
                    .unwrap()
            }));
        }
        // Additions without a removal just before: after a removal the kernel still walks its connections.
        let mut alone = Vec::new();
        for number in 210..220 {
            alone.push(timed(|| {
                firewall.update(|r| r.pods.extend([of(number)])).unwrap();
            }));
        }
        let together = timed(|| {
            std::thread::scope(|scope| {
                for number in 300..340 {
                    let (firewall, netns, of) = (&firewall, &world.node, &of);
                    scope.spawn(move || {
                        inside(netns, || {
                            firewall.update(|r| r.pods.extend([of(number)])).unwrap()
                        })
                    });
                }
            });
        });
        println!(
            "100 pods with 200 ports: all {:?}, one added {:?} (after a removal {:?}), one removed {:?}; 40 added by 40 threads {together:?}",
            median(whole),
            median(alone),
            median(added),
            median(removed),
        );
    });
}
