#!/usr/bin/env python3
"""Measures coracle's figures against their budgets, and peers if they are installed, and prints one table.

    tests/bench/run [--pods 50] [--rounds 15] [--only configuration|network|planner|pods|probes|pull|start|upgrade|workloads]

Times come from the pods themselves (a busybox container makes a file, and the kernel stamps it), so that polling is not
measured. Figures can be compared within one run on one machine; no figure passes or fails.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import configuration
import network
import probes
import pull
import start
import upgrade
import workloads

REPO = pathlib.Path(__file__).resolve().parents[2]
IMAGE = "docker.io/library/busybox:bench"


def boottime():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def find_binary():
    found = sorted(REPO.glob("target/*/release/coracle"), key=lambda path: path.stat().st_mtime)
    if not found:
        sys.exit("error: no release binary\n  hint: cargo build --release")
    return found[-1]


class Agent:
    """A release agent in a temporary directory."""

    def __init__(self, binary):
        self.binary = binary
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="coracle-bench.", dir="/tmp"))
        self.cgroup = f"coracle-bench-{os.getpid()}-{self.dir.name.split('.')[1]}"
        for part in ("manifests", "out", "preload"):
            (self.dir / part).mkdir()
        # On a real node the state of the boot is on tmpfs, too.
        (self.dir / "run").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "bench", self.dir / "run"], check=True)
        self.env = dict(os.environ, CORACLE_SOCKET=str(self.dir / "run/coracle.sock"))
        self.log = open(self.dir / "agent.log", "wb")
        # The agent has a network of its own, apart from the machine's bridges, rules and ports.
        self.launch("unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
        self.wait_listening()
        self.idle_pss = pss([self.process.pid])

    def launch(self, *before):
        self.process = subprocess.Popen(
            [*before, self.binary, "run", "--manifests", self.dir / "manifests", "--root", self.dir / "root", "--run-dir",
             self.dir / "run", "--log-dir", self.dir / "logs", "--preload", self.dir / "preload", "--cgroup-parent",
             "/" + self.cgroup, "--stop-pods-on-exit"],
            stdout=subprocess.DEVNULL, stderr=self.log, close_fds=False)

    def wait_listening(self):
        while True:
            try:
                probe = socket.socket(socket.AF_UNIX)
                probe.connect(self.env["CORACLE_SOCKET"])
                probe.close()
                break
            except OSError:
                time.sleep(0.01)

    def cli(self, *args):
        done = subprocess.run([self.binary, *args], env=self.env, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        return done.stdout

    def write(self, name, text):
        hidden = self.dir / "manifests" / f".{name}"
        hidden.write_text(text)
        at = boottime()
        hidden.rename(self.dir / "manifests" / name)
        return at

    def pod(self, name, script, network=False):
        return json.dumps({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "hostNetwork": not network, "terminationGracePeriodSeconds": 1,
                "volumes": [{"name": "out", "hostPath": {"path": str(self.dir / "out")}}],
                "containers": [{
                    "name": "main", "image": "busybox:bench", "command": ["sh", "-c", script],
                    "volumeMounts": [{"name": "out", "mountPath": "/out"}]}],
            }})

    def wait_empty(self):
        while json.loads(self.cli("get", "pods", "-A", "-o", "json"))["items"]:
            time.sleep(0.05)

    def remove(self, *names):
        for name in names:
            (self.dir / "manifests" / name).unlink()
        self.wait_empty()

    def pids(self):
        """The pids of agent and shims."""
        found = [self.process.pid]
        for folder in pathlib.Path("/sys/fs/cgroup").glob(f"**/{self.cgroup}/pods/**/shim/cgroup.procs"):
            found += [int(pid) for pid in folder.read_text().split()]
        return sorted(set(found))

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        for place in ("run/pods", "run/configuration"):
            subprocess.run(["umount", self.dir / place], stderr=subprocess.DEVNULL)
        subprocess.run(["umount", self.dir / "run"], check=False)
        for top in pathlib.Path("/sys/fs/cgroup").glob(f"**/{self.cgroup}"):
            subprocess.run(["find", top, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+"],
                           stderr=subprocess.DEVNULL)
        shutil.rmtree(self.dir, ignore_errors=True)


def pss(pids):
    total = 0
    for pid in pids:
        try:
            text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total


def cpu_and_writes(pids):
    cpu, written = 0, 0
    for pid in pids:
        try:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            cpu += int(fields[11]) + int(fields[12])
            io = pathlib.Path(f"/proc/{pid}/io").read_text()
            written += int(next(line.split()[1] for line in io.splitlines() if line.startswith("write_bytes")))
        except OSError:
            continue
    return cpu / os.sysconf("SC_CLK_TCK"), written


def idle(agent, seconds):
    """Seconds of cpu and bytes written by the agent and its shims, a minute."""
    pids, minutes = agent.pids(), seconds / 60
    before = cpu_and_writes(pids)
    time.sleep(seconds)
    after = cpu_and_writes(pids)
    return (after[0] - before[0]) / minutes, (after[1] - before[1]) / minutes


def stamp(agent, name):
    """The time at which the container made its file, on CLOCK_BOOTTIME, from the kernel's own time stamp."""
    wall = (agent.dir / "out" / name).stat().st_mtime_ns / 1e9
    return wall - (time.time() - boottime())


def wait_file(path, patience=60):
    deadline = time.monotonic() + patience
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def start_once(agent, name, network=False):
    at = agent.write(name + ".json", agent.pod(name, f": > /out/{name}; exec sleep 1000", network))
    if not wait_file(agent.dir / "out" / name):
        sys.exit((agent.dir / "agent.log").read_text())
    took = stamp(agent, name) - at
    agent.remove(name + ".json")
    time.sleep(0.2)  # starts are isolated, so that each one pays for the kernel's grace period
    return took


def start_latency(agent, rounds):
    return [start_once(agent, f"start{index}") for index in range(rounds)]


def cold_start(agent, name):
    """Exec of an agent that is killed and started again -> process of a pod that was written meanwhile."""
    with open(f"/proc/{agent.process.pid}/ns/net", "rb") as netns:
        agent.process.kill()
        agent.process.wait()
        (agent.dir / "run/coracle.sock").unlink()
        agent.write(name + ".json", agent.pod(name, f": > /out/{name}; exec sleep 1000"))
        os.set_inheritable(netns.fileno(), True)
        at = boottime()
        agent.launch("nsenter", f"--net=/proc/self/fd/{netns.fileno()}", "--")
        os.set_inheritable(netns.fileno(), False)
        if not wait_file(agent.dir / "out" / name):
            sys.exit((agent.dir / "agent.log").read_text())
    agent.wait_listening()
    (agent.dir / "manifests" / (name + ".json")).unlink()
    while name in agent.cli("get", "pods"):
        time.sleep(0.05)
    return stamp(agent, name) - at


def crash_latency(agent, rounds):
    times = []
    for index in range(rounds):
        name = f"crash{index}"
        script = f"if [ -e /out/{name}-1 ]; then : > /out/{name}-2; exec sleep 1000; fi; : > /out/{name}-1; exit 1"
        agent.write(name + ".json", agent.pod(name, script))
        if not wait_file(agent.dir / "out" / f"{name}-2"):
            sys.exit((agent.dir / "agent.log").read_text())
        times.append(stamp(agent, f"{name}-2") - stamp(agent, f"{name}-1"))
        agent.remove(name + ".json")
        time.sleep(0.2)
    return times


def many(agent, count):
    names = [f"many{index}" for index in range(count)]
    at = boottime()
    for name in names:
        agent.write(name + ".json", agent.pod(name, f": > /out/{name}; exec sleep 1000"))
    for name in names:
        if not wait_file(agent.dir / "out" / name):
            sys.exit((agent.dir / "agent.log").read_text())
    return max(stamp(agent, name) for name in names) - at, [name + ".json" for name in names]


def peer_runc(rounds):
    """The time of create + start + run of the same program by runc, a new process each time."""
    if not shutil.which("runc"):
        return None
    folder = pathlib.Path(tempfile.mkdtemp(prefix="coracle-bench-runc.", dir="/tmp"))
    rootfs = folder / "rootfs"
    (rootfs / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", rootfs / "bin/busybox")
    subprocess.run(["runc", "spec"], cwd=folder, check=True)
    config = json.loads((folder / "config.json").read_text())
    config["process"].update(terminal=False, args=["/bin/busybox", "true"])
    (folder / "config.json").write_text(json.dumps(config))
    times = []
    for index in range(rounds):
        began = time.monotonic()
        done = subprocess.run(["runc", "run", f"coracle-bench-{os.getpid()}-{index}"], cwd=folder,
                              stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode:
            return None
        times.append(time.monotonic() - began)
        time.sleep(0.2)
    shutil.rmtree(folder)
    return times


def row(what, value, budget):
    print(f"{what:<56} {value:>18} {budget:>16}", flush=True)


def ms(values):
    return f"{statistics.median(values) * 1000:.1f} ms"


def pods(agent, args):
    row("binary", f"{agent.binary.stat().st_size / 1e6:.1f} MB", "12 MB")
    row("agent alone, PSS", f"{agent.idle_pss / 1024:.1f} MB", "8 MB")
    row("file written -> process running", ms(start_latency(agent, args.rounds)), "35 ms")
    row("crash -> first restart", ms(crash_latency(agent, args.rounds)), "30 ms")
    took, names = many(agent, 40)
    row("40 pods at once", f"{took:.2f} s", "1.0 s")
    agent.remove(*names)
    _, names = many(agent, args.pods)
    pids = agent.pids()
    row(f"agent + {len(pids) - 1} shims, PSS", f"{pss(pids) / 1024:.1f} MB", "30 MB with 50")
    time.sleep(3)
    # A minute after the last start, each pod's exits are written once.
    time.sleep(70)
    cpu, written = idle(agent, args.idle)
    row("idle cpu a minute", f"{cpu:.2f} s", "0.1 s")
    row("idle disk writes a minute", f"{written:.0f} bytes", "0 bytes")
    agent.remove(*names)
    peer = peer_runc(args.rounds)
    row("peer: runc run of the same program", ms(peer) if peer else "not installed", "")


def pods_network(agent, args):
    network.starts(agent, row, args.rounds, lambda name, bridge: start_once(agent, name, bridge))
    network.compare(agent, row, max(3, args.rounds // 3))
    network.many_ports(agent, row, 100)


def planner():
    command = ["cargo", "bench", "--quiet", "--package", "coracle-planner-tests", "--bench", "decision"]
    figures = subprocess.run(command, cwd=REPO, check=True, capture_output=True, text=True).stdout
    for line in figures.splitlines():
        name, us = line.split("\t")
        row(f"decision of 500 pods: {name}", f"{us} us", "1000 us")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pods", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--idle", type=int, default=60, help="seconds for which the idle agent is measured")
    parser.add_argument("--only", choices=["configuration", "network", "planner", "pods", "probes", "pull", "start", "upgrade", "workloads"],
                        help="measure only this part")
    parser.add_argument("--binary", type=pathlib.Path, help="measure this build, not the newest release build")
    args = parser.parse_args()
    if args.only == "planner":
        row("figure (median)", "coracle", "budget")
        return planner()
    binary = args.binary or find_binary()
    archive = pathlib.Path(tempfile.mkdtemp(prefix="coracle-bench-image.", dir="/tmp")) / "busybox.tar"
    subprocess.run(["sh", REPO / "examples/make-image.sh", archive, IMAGE], check=True)
    agent = Agent(binary)
    try:
        agent.cli("image", "import", str(archive))
        row("figure (median)", "coracle", "budget")
        if args.only in (None, "pods"):
            pods(agent, args)
        if args.only in (None, "configuration"):
            configuration.costs(agent, row, args.rounds, args.pods, wait_file, stamp, pss, lambda: idle(agent, args.idle)[1])
        if args.only in (None, "start"):
            start.cold(agent, row, args.rounds, lambda name: cold_start(agent, name))
        if args.only in (None, "network"):
            pods_network(agent, args)
        if args.only in (None, "probes"):
            probes.costs(agent, row, 100, 60)
        if args.only in (None, "pull"):
            pull.costs(agent, row, min(args.rounds, 5), pss)
        if args.only in (None, "workloads"):
            def new_agent():
                other = Agent(binary)
                other.cli("image", "import", str(archive))
                return other

            workloads.costs(agent, row, boottime, new_agent)
        if args.only in (None, "upgrade"):
            other, program = upgrade.supervised(Agent, binary)
            try:
                other.cli("image", "import", str(archive))
                upgrade.costs(other, row, program, args.pods)
            finally:
                other.close()
        if args.only is None:
            planner()
    finally:
        agent.close()
        shutil.rmtree(archive.parent, ignore_errors=True)


main()
