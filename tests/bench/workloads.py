"""Compares documents that stand for pods with files of the same pods: time to the last process, memory, wake-ups. Used by bench.py."""

import json
import pathlib
import statistics
import time


def own_kb(agent):
    """The agent's own memory, without pages of files."""
    text = pathlib.Path(f"/proc/{agent.process.pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous:"))


def wake_ups(agent, seconds):
    def count():
        switches = 0
        for status in pathlib.Path(f"/proc/{agent.process.pid}/task").glob("*/status"):
            lines = status.read_text().splitlines()
            switches += next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
        return switches

    before = count()
    time.sleep(seconds)
    return (count() - before) * 60 / seconds


def template(agent):
    pod = json.loads(agent.pod("none", ": > /out/$POD; exec sleep 1000"))
    del pod["metadata"]["name"], pod["apiVersion"], pod["kind"]
    pod["metadata"]["labels"] = {"app": "bench"}
    env = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    pod["spec"]["containers"][0]["env"] = [env]
    return pod


def deployment(agent, name, replicas=1):
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "bench"}}, "template": template(agent)}
    return json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec})


def single(agent, name):
    pod = template(agent)
    pod["metadata"]["name"] = name
    return json.dumps({"apiVersion": "v1", "kind": "Pod", **pod})


def costs(agent, row, boottime, new_agent):
    def until_all_run(agent, files, count):
        """Writes files, given by what makes their text; returns the seconds until their pods' last process."""
        out = agent.dir / "out"
        for old in out.iterdir():
            old.unlink()
        texts = {name: make(agent, name.removesuffix(".json")) for name, make in files.items()}
        at = boottime()
        for name, text in texts.items():
            agent.write(name, text)
        deadline = time.monotonic() + 120
        while len(made := list(out.iterdir())) < count:
            if time.monotonic() > deadline:
                raise SystemExit((agent.dir / "agent.log").read_text())
            time.sleep(0.01)
        wall = max(path.stat().st_mtime_ns for path in made) / 1e9
        return wall - (time.time() - boottime()) - at

    singles = {f"single{n}.json": single for n in range(100)}
    whole = {"whole.json": lambda agent, name: deployment(agent, name, 100)}
    times = {"singles": [], "whole": []}
    for _ in range(3):
        for what, files in (("singles", singles), ("whole", whole)):
            times[what].append(until_all_run(agent, files, 100))
            agent.remove(*files)
    files, one = (statistics.median(times[what]) for what in ("singles", "whole"))
    row("100 pods from files, all at once", f"{files:.2f} s", "")
    row("a Deployment of 100 replicas", f"{one / files:.2f} x that", "1.3 x")

    def costs_of(files):
        """KB and wake-ups a minute of an agent of its own."""
        other = new_agent()
        try:
            before = own_kb(other)
            until_all_run(other, files, len(files))
            # What follows from pods that stay up is done by then.
            time.sleep(70)
            return own_kb(other) - before, wake_ups(other, 30)
        finally:
            other.close()

    some = {f"d{n}.json": single for n in range(50)}
    documents = {f"d{n}.json": deployment for n in range(50)}
    (kb, wakes), (more_kb, more_wakes) = costs_of(some), costs_of(documents)
    row("50 pods from files, agent's own memory", f"{kb} KB", "")
    row("50 Deployments of one pod, more than that, each", f"{(more_kb - kb) / 50:+.1f} KB", "2 KB")
    row("wake-ups a minute, files and Deployments", f"{wakes:.0f}, {more_wakes:.0f}", "the same")
