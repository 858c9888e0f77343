"""Measures the cost of probes: the agent's cpu with many HTTP probes, and the whole cost of an exec probe. Used by bench.py."""

import json
import os
import pathlib
import re
import socket
import time

TICKS = os.sysconf("SC_CLK_TCK")


def fetch(agent, path):
    with socket.socket(socket.AF_UNIX) as api:
        api.connect(agent.env["CORACLE_SOCKET"])
        api.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := api.recv(1 << 16):
            answer += part
    return answer.decode()


def carried_out(agent):
    """The number of successful probes so far."""
    text = fetch(agent, "/metrics/probes")
    return sum(int(float(n)) for n in re.findall(r'^prober_probe_total\{.*result="successful".*\} (\S+)', text, re.M))


def cpu(pids, children):
    """The cpu seconds of processes, including children that they have reaped if `children` is set."""
    total = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += sum(int(field) for field in fields[11:15 if children else 13])
    return total / TICKS


def pod(agent, name, script, probe, network):
    manifest = json.loads(agent.pod(name, script, network))
    manifest["spec"]["containers"][0]["readinessProbe"] = {"periodSeconds": 1, **probe}
    return json.dumps(manifest)


def measure(agent, pids, children, seconds):
    """CPU per second, CPU per probe, and probes per second: the median of three measurements."""
    return sorted(measure_once(agent, pids, children, seconds / 3) for _ in range(3))[1]


def measure_once(agent, pids, children, seconds):
    counted, used, began = carried_out(agent), cpu(pids, children), time.monotonic()
    time.sleep(seconds)
    counted, used, took = carried_out(agent) - counted, cpu(pids, children) - used, time.monotonic() - began
    return used / took, used / max(counted, 1), counted / took


def started(agent, names):
    while True:
        items = json.loads(agent.cli("get", "pods", "-A", "-o", "json"))["items"]
        ready = sum(c["type"] == "Ready" and c["status"] == "True" for p in items for c in p["status"]["conditions"])
        if ready >= len(names):
            return
        time.sleep(0.2)


def costs(agent, row, count, seconds):
    serve = "mkdir -p /www; echo ok > /www/index.html; exec httpd -f -p 8080 -h /www"
    names = [f"probed{index}" for index in range(count)]
    for name in names:
        asks = {"httpGet": {"path": "/", "port": 8080}, "failureThreshold": 3}
        agent.write(name + ".json", pod(agent, name, serve, asks, True))
    started(agent, names)
    share, each, rate = measure(agent, [agent.process.pid], False, seconds)
    row(f"{count} pods probed by HTTP every second, cpu", f"{share * 100:.2f} % of a core", "3 % with 100")
    row(f"  a probe ({rate:.0f} a second)", f"{each * 1e6:.0f} us", "")
    agent.remove(*[name + ".json" for name in names])
    names = names[:10]
    for name in names:
        asks = {"exec": {"command": ["true"]}}
        agent.write(name + ".json", pod(agent, name, "exec sleep 1000", asks, False))
    started(agent, names)
    _, each, _ = measure(agent, agent.pids(), True, seconds)
    row("a probe by exec, cpu of agent, shim and program", f"{each * 1e3:.2f} ms", "5 ms")
    agent.remove(*[name + ".json" for name in names])
