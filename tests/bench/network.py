"""Compares the pods' network with the node's own and with a bridge made by hand. Used by bench.py.

Everything runs in network namespaces of its own. Rounds of the compared networks alternate, so that other work of the
machine slows all of them down.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time

ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET6); s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("::", 7007)); s.listen(8)
print("listening", flush=True)
while True:
    c, _ = s.accept(); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        data = c.recv(64)
        if not data: break
        c.sendall(data)
"""

PING_PONG = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 7007)); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(200): s.sendall(b"x"); s.recv(1)
times = []
for _ in range(int(sys.argv[2])):
    began = time.perf_counter_ns(); s.sendall(b"x"); s.recv(1); times.append(time.perf_counter_ns() - began)
times.sort()
print(times[len(times) // 2])
"""


def run(*words, **more):
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


def unique(name):
    return f"cb{os.getpid()}{name}"


class Host:
    """A network namespace, by its file: that of a named namespace, or of a process."""

    def __init__(self, path):
        self.path = str(path)

    def words(self, *words):
        return ["nsenter", f"--net={self.path}", "--", *words]

    def run(self, *words):
        return run(*self.words(*words))

    def start(self, *words, wait_line=None):
        """Starts a server; returns once it has printed a line with `wait_line`."""
        process = subprocess.Popen(self.words(*words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while wait_line:
            line = process.stdout.readline()
            if wait_line in line:
                break
            if not line:
                sys.exit(f"error: {words} ended at once")
        return process


class HandMade:
    """A network made by hand: a bridge, a pair of interfaces for each pod, and no rules, or only the one that lets pods out."""

    def __init__(self, masquerade=False):
        self.names = [unique(f"{name}{'m' if masquerade else ''}") for name in ("node", "p1", "p2")]
        for name in self.names:
            run("ip", "netns", "add", name)
        self.node, *self.pods = [Host(f"/run/netns/{name}") for name in self.names]
        self.node.run("ip", "link", "set", "lo", "up")
        self.node.run("ip", "link", "add", "br0", "type", "bridge")
        self.node.run("ip", "addr", "add", "10.9.9.1/24", "dev", "br0")
        self.node.run("ip", "link", "set", "br0", "up")
        self.address = ["10.9.9.2", "10.9.9.3"]
        for index, pod in enumerate(self.pods):
            self.node.run("ip", "link", "add", f"v{index}", "type", "veth", "peer", "name", "eth0", "netns",
                          self.names[index + 1])
            self.node.run("ip", "link", "set", f"v{index}", "master", "br0", "up")
            pod.run("ip", "addr", "add", f"{self.address[index]}/24", "dev", "eth0")
            pod.run("ip", "link", "set", "lo", "up")
            pod.run("ip", "link", "set", "eth0", "up")
            pod.run("ip", "route", "add", "default", "via", "10.9.9.1")
        if masquerade:
            self.node.run("nft", "add table inet hand; add chain inet hand out { type nat hook postrouting priority 100; };"
                          "add rule inet hand out ip saddr 10.9.9.0/24 ip daddr != 10.9.9.0/24 masquerade")

    def close(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def pod_hosts(agent, names):
    """Two running pods as hosts, with their addresses."""
    hosts, ips = [], []
    for name in names:
        while True:
            # A list, because a single pod would be an error until the agent has read its file.
            pods = json.loads(agent.cli("get", "pods", "-o", "json"))["items"]
            pod = next((pod for pod in pods if pod["metadata"]["name"] == name), {"status": {}})
            ip, states = pod["status"].get("podIP"), pod["status"].get("containerStatuses") or [{}]
            if ip and "running" in states[0].get("state", {}):
                break
            time.sleep(0.02)
        uid = pod["metadata"]["uid"]
        record = json.loads((agent.dir / f"run/pods/{uid}/records/main.json").read_text())
        hosts.append(Host(f"/proc/{record['pid']}/ns/net"))
        ips.append(ip)
    return hosts, ips


def throughput(client, to, seconds):
    out = json.loads(client.run("iperf3", "-c", to, "-J", "-t", str(seconds)))
    return out["end"]["sum_received"]["bits_per_second"] / 1e9


def latency(client, to, count):
    return int(client.run(sys.executable, "-c", PING_PONG, to, str(count))) / 1000


def compare(agent, row, rounds):
    """Measures throughput and latency of coracle's bridge and of a hand-made one."""
    if not shutil.which("iperf3"):
        sys.exit("error: iperf3 is missing\n  hint: apt-get install iperf3")
    for name in ("net1", "net2"):
        agent.write(name + ".json", agent.pod(name, "exec sleep 100000", network=True))
    ours, ips = pod_hosts(agent, ("net1", "net2"))
    bare, masqueraded = HandMade(), HandMade(masquerade=True)
    servers = []
    try:
        for server in (ours[1], bare.pods[1], masqueraded.pods[1]):
            servers.append(server.start("iperf3", "-s", "--forceflush", wait_line="Server listening"))
            servers.append(server.start(sys.executable, "-c", ECHO, wait_line="listening"))
        node = Host(f"/proc/{agent.process.pid}/ns/net")
        # The servers' output is not read from here on: iperf3 prints little, and the pipe can hold it.
        for what, own, inside in (("pod - pod", ours[0], True), ("node - pod", node, False)):
            ways = [(own, ips[1])] + [(peer.pods[0] if inside else peer.node, peer.address[1])
                                      for peer in (bare, masqueraded)]
            fast, quick = [[] for _ in ways], [[] for _ in ways]
            for _ in range(rounds):
                for index, (client, to) in enumerate(ways):
                    fast[index].append(throughput(client, to, 1))
                    quick[index].append(latency(client, to, 3000))
            for name, unit, lists, budget in (("throughput", "Gbit/s", fast, ">= 95 %"), ("latency", "us", quick, "<= 105 %")):
                mine, hand, nat = (statistics.median(values) for values in lists)
                row(f"{name} {what}, {unit} (by hand {hand:.1f})", f"{mine:.1f} = {mine / hand * 100:.0f} %", budget)
                row(f"  by hand with masquerading ({nat:.1f})", f"{mine / nat * 100:.0f} %", "")
    finally:
        for server in servers:
            server.kill()
            server.wait()
        bare.close()
        masqueraded.close()
    agent.remove("net1.json", "net2.json")


def metric(agent, name):
    probe = socket.socket(socket.AF_UNIX)
    probe.connect(agent.env["CORACLE_SOCKET"])
    probe.sendall(b"GET /metrics HTTP/1.0\r\nHost: coracle\r\nConnection: close\r\n\r\n")
    text = b""
    while piece := probe.recv(65536):
        text += piece
    found = re.search(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$", text.decode(), re.M)
    return float(found.group(1)) if found else None


def starts(agent, row, rounds, start_once):
    """Measures file written -> process running, on the bridge and on the node's network, in turns."""
    start_once("warm-up", True)
    times = {True: [], False: []}
    for index in range(rounds):
        for network in (True, False):
            times[network].append(start_once(f"bridge{index}{network}".lower(), network))
    ours, host = (statistics.median(times[network]) * 1000 for network in (True, False))
    row(f"start on the bridge (hostNetwork {host:.1f} ms)", f"{ours - host:+.1f} ms", "+10 ms")


def many_ports(agent, row, count):
    """Measures the time of rules for `count` pods with two ports each, all at once and for one more."""
    def port_pod(index):
        pod = json.loads(agent.pod(f"port{index}", "exec sleep 100000", network=True))
        first = 20000 + 2 * index
        pod["spec"]["containers"][0]["ports"] = [
            {"containerPort": 80, "hostPort": first}, {"containerPort": 81, "hostPort": first + 1, "protocol": "UDP"}]
        return json.dumps(pod)

    def running():
        pods = json.loads(agent.cli("get", "pods", "-o", "json"))["items"]
        return sum(pod["status"].get("phase") == "Running" for pod in pods)

    for index in range(count):
        agent.write(f"port{index}.json", port_pod(index))
    while running() < count:
        time.sleep(0.1)
    node = Host(f"/proc/{agent.process.pid}/ns/net")

    def restored():
        """The time from a flush until the last port's rule is in the kernel's list again."""
        node.run("nft", "flush", "ruleset")
        began = time.monotonic()
        while str(20000 + 2 * count - 1) not in node.run("nft", "list", "ruleset"):
            time.sleep(0.002)
            if time.monotonic() - began > 30:
                sys.exit("error: the rules were not restored")
        return time.monotonic() - began

    seen = statistics.median(restored() for _ in range(5))
    applied = metric(agent, "coracle_firewall_apply_seconds")
    shown = "no metric" if applied is None else f"{applied * 1000:.1f} ms"
    row(f"{count} pods, {2 * count} ports: all rules applied", shown, "100 ms")
    row("  from a flush until they are in the kernel again", f"{seen * 1000:.0f} ms", "")
    figures = {"added": [], "removed": []}
    for _ in range(5):
        agent.write(f"port{count}.json", port_pod(count))
        while running() < count + 1:
            time.sleep(0.01)
        figures["added"].append(metric(agent, "coracle_firewall_apply_seconds"))
        (agent.dir / "manifests" / f"port{count}.json").unlink()
        while len(json.loads(agent.cli("get", "pods", "-o", "json"))["items"]) > count:
            time.sleep(0.01)
        figures["removed"].append(metric(agent, "coracle_firewall_apply_seconds"))
    for what, values in figures.items():
        values = [value for value in values if value is not None]
        shown = f"{statistics.median(values) * 1000:.1f} ms" if values else "no metric"
        row(f"  one pod's rules {what}", shown, "20 ms")
    agent.remove(*(f"port{index}.json" for index in range(count)))
