"""Measures the cold start: exec of the agent -> process of the first pod, which is on the node's network. Used by bench.py."""

import statistics
import time


def cold(agent, row, rounds, cold_start):
    """`cold_start(name)` starts the agent once more, with a pod of that name that is new."""
    def case(what, name):
        times = []
        for index in range(rounds):
            times.append(cold_start(f"{name}{index}"))
            time.sleep(0.2)
        low, high = min(times) * 1000, max(times) * 1000
        row(f"cold start, {what} ({low:.0f} to {high:.0f} ms)", f"{statistics.median(times) * 1000:.1f} ms", "60 ms")

    def running():
        return '"phase":"Running"' in "".join(agent.cli("get", "pods", "-o", "json").split())

    case("no bridge", "none")
    agent.write("bridge.json", agent.pod("bridge", "exec sleep 100000", network=True))
    while not running():
        time.sleep(0.01)
    case("a pod on the bridge", "live")
    agent.remove("bridge.json")
    case("a bridge without pods", "left")
