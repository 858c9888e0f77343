//! An agent starts: pods on the host network run at once, whatever uses the bridge waits until the network is mended.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

use crate::common::{PATIENCE, shell_pod};
use crate::world::*;

const SLEEP: &str = "exec sleep 1000";

/// Asks a server that answers only a pod whose packets leave under the node's address, which takes the packet rules.
const ASK_AND_SLEEP: &str =
    "nc -w 5 192.0.2.12 7000 < /dev/null || echo unreachable; exec sleep 1000";

/// Gives the agent an `nft` that leaves word in the fifo `asked` and then reads a line of the fifo `hold`, both in the
/// agent's root, while they are there; an agent that finds `missing` there has no `nft`.
const NFT: &str = r#"
for word; do [ "$last" = --run-dir ] && root=${word%/run}; last=$word; done
mount -t tmpfs none /mnt && cp /usr/sbin/nft /mnt/nft && cat > /mnt/waits << END
#!/bin/sh
[ -p $root/hold ] && { echo > $root/asked; read line < $root/hold; }
exec /mnt/nft "\$@"
END
[ -e $root/missing ] || chmod 755 /mnt/waits && mount --bind /mnt/waits /usr/sbin/nft && exec "$@"
"#;

fn world() -> World {
    let world = World::with(Plan {
        wrapper: Some(NFT),
        ..Plan::default()
    });
    serve_on(&world.other, "other", &[OTHER4], 7000);
    world
}

/// Every `nft` of the agent waits while this is there.
struct Held {
    hold: File,
    asked: File,
    folder: PathBuf,
}

impl Held {
    fn new(world: &World) -> Self {
        let folder = world.agent.root.clone();
        let fifo = |name: &str| {
            let path = folder.join(name);
            let _ = fs::remove_file(&path);
            mkfifo(&path, Mode::from_bits_truncate(0o600)).expect("a fifo");
            // Both ways: neither side waits for the other to open it.
            OpenOptions::new().read(true).write(true).open(path)
        };
        Self {
            asked: fifo("asked").expect("opened"),
            hold: fifo("hold").expect("opened"),
            folder,
        }
    }

    /// Waits until an `nft` that had not left word before is there.
    fn wait_asked(&mut self) {
        assert!(self.is_asked(PollTimeout::try_from(PATIENCE).expect("short")));
        self.asked.read_exact(&mut [0]).expect("a line");
    }

    fn is_asked(&self, patience: PollTimeout) -> bool {
        let mut fds = [PollFd::new(self.asked.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, patience).expect("a fifo") > 0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Each that has opened it already reads a line.
        let _ = fs::remove_file(self.folder.join("hold"));
        let _ = self.hold.write_all(&[b'\n'; 1000]);
        let _ = fs::remove_file(self.folder.join("asked"));
    }
}

fn host_pod(name: &str) -> String {
    shell_pod(name, SLEEP, "  hostNetwork: true\n", "")
}

/// Starts the pod `live` on the bridge, kills the agent, flushes all rules, and kills the pod's container.
fn with_dead_container_of_live_pod() -> World {
    let world = world();
    let agent = &world.agent;
    agent.write("live.yaml", &shell_pod("live", ASK_AND_SLEEP, "", ""));
    let pod = agent.wait_running("live");
    agent.wait_line("live", "other 192.0.2.10");
    agent.kill();
    world.node().ok("nft", &["flush", "ruleset"]);
    let uid = pod["metadata"]["uid"].as_str().expect("a uid");
    let record = agent.root.join(format!("run/pods/{uid}/records/main.json"));
    let record = fs::read_to_string(record).expect("a record");
    let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
    let pid = record["pid"].as_i64().and_then(|pid| pid.try_into().ok());
    kill(Pid::from_raw(pid.expect("a pid")), Signal::SIGKILL).expect("it runs");
    world
}

fn restarts(pod: &serde_json::Value) -> i64 {
    let status = &pod["status"]["containerStatuses"][0];
    status["restartCount"].as_i64().expect("a number")
}

#[test]
fn at_the_start_pods_on_the_host_network_do_not_wait_for_rules_and_all_others_do() {
    let world = with_dead_container_of_live_pod();
    let agent = &world.agent;
    let mut held = Held::new(&world);
    agent.write("host.yaml", &host_pod("host"));
    agent.write("new.yaml", &shell_pod("new", ASK_AND_SLEEP, "", ""));
    agent.launch();
    held.wait_asked();
    agent.wait_running("host");
    // Gives the others the time that a start takes.
    agent.write("next.yaml", &host_pod("next"));
    agent.wait_running("next");
    let live = agent.pod("live");
    assert_eq!(restarts(&live), 0, "{live:#}");
    let state = &live["status"]["containerStatuses"][0]["state"];
    assert!(state["running"].is_null(), "{live:#}");
    let new = agent.pod("new");
    assert_eq!(new["status"]["phase"], "Pending", "{new:#}");
    assert!(new["status"]["podIP"].is_null(), "{new:#}");
    assert!(!held.is_asked(PollTimeout::ZERO), "one `nft` at a time");
    // Known from files, before anything is mended.
    assert_eq!(addresses(&live).len(), 2, "{live:#}");

    drop(held);
    let live = agent.wait_running("live");
    assert_eq!(restarts(&live), 1, "{live:#}");
    agent.wait_running("new");
    for pod in ["live", "new"] {
        agent.wait_line(pod, "other 192.0.2.10");
    }
}

#[test]
fn a_container_of_a_live_pod_does_not_start_without_the_rules() {
    let world = with_dead_container_of_live_pod();
    let agent = &world.agent;
    let missing = agent.root.join("missing");
    fs::write(&missing, "").expect("written");
    agent.launch();
    wait_event(agent, "the `nft` program is missing");
    let live = agent.pod("live");
    let state = &live["status"]["containerStatuses"][0]["state"];
    assert!(state["running"].is_null(), "{live:#}");
    // Installed: the container starts by itself.
    let pid = agent.pid().to_string();
    let install = ["-t", &pid, "-m", "chmod", "755", "/mnt/waits"];
    world.node().ok("nsenter", &install);
    agent.wait_running("live");
    agent.wait_line("live", "other 192.0.2.10");
}

#[test]
fn rules_that_no_pod_needs_any_more_go_in_one_run_beside_the_first_pod() {
    let world = world();
    let agent = &world.agent;
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    agent.remove("a.yaml");
    agent.wait_gone("a");
    agent.kill();
    let mut held = Held::new(&world);
    agent.write("host.yaml", &host_pod("host"));
    agent.launch();
    held.wait_asked();
    agent.wait_running("host");
    held.hold.write_all(b"\n").expect("one goes on");
    wait_for("a node without rules", || {
        let rules = world.node().ok("nft", &["list", "ruleset"]);
        if rules.is_empty() { Ok(()) } else { Err(rules) }
    });
    // A pod on the bridge comes next, by a run of its own.
    agent.write("b.yaml", &shell_pod("b", SLEEP, "", ""));
    held.wait_asked();
    assert!(!held.is_asked(PollTimeout::ZERO));
    drop(held);
    agent.wait_running("b");
}

#[test]
fn an_agent_killed_while_it_mends_leaves_the_next_one_the_same_work() {
    let world = with_dead_container_of_live_pod();
    let agent = &world.agent;
    let before = world.node().links();
    for _ in 0..3 {
        let mut held = Held::new(&world);
        agent.launch();
        held.wait_asked();
        agent.kill();
        // What the killed agent has started ends without a word to anybody.
        drop(held);
    }
    assert_eq!(world.node().links(), before);
    agent.launch();
    let live = agent.wait_running("live");
    assert_eq!(restarts(&live), 1, "{live:#}");
    agent.wait_line("live", "other 192.0.2.10");
    agent.remove("live.yaml");
    agent.wait_gone("live");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}
