"""Measures ConfigMaps and Secrets: what they cost a start, how soon a change is seen, and memory. Used by bench.py."""

import json
import pathlib
import statistics
import time


def documents(values):
    """Two ConfigMaps and two Secrets with 30 keys in all."""
    items = []
    for kind, names in (("ConfigMap", ("a", "b")), ("Secret", ("c", "d"))):
        for name in names:
            field = "data" if kind == "ConfigMap" else "stringData"
            data = {f"key{index}": f"{values}-{index}" for index in range(7 + (name in "ab"))}
            items.append({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, field: data})
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def configured(text):
    """The pod with 4 volumes and 30 variables more."""
    pod = json.loads(text)
    spec, main = pod["spec"], pod["spec"]["containers"][0]
    for name in "abcd":
        source = {"configMap": {"name": name}} if name in "ab" else {"secret": {"secretName": name}}
        spec["volumes"].append({"name": name, **source})
        main["volumeMounts"].append({"name": name, "mountPath": f"/config/{name}"})
    main["env"] = []
    for index in range(30):
        name = "abcd"[index % 4]
        kind = "configMapKeyRef" if name in "ab" else "secretKeyRef"
        source = {kind: {"name": name, "key": f"key{index // 4 % 7}"}}
        main["env"].append({"name": f"V{index}", "valueFrom": source})
    return json.dumps(pod)


def start(agent, name, change, wait, stamp):
    text = agent.pod(name, f": > /out/{name}; exec sleep 100000")
    at = agent.write(f"{name}.json", change(text))
    wait(agent.dir / "out" / name)
    took = stamp(agent, name) - at
    agent.remove(f"{name}.json")
    time.sleep(0.2)
    return took


def slab():
    """The memory of the kernel and of all tmpfs, in KiB."""
    text = pathlib.Path("/proc/meminfo").read_text()
    lines = dict(line.split(":") for line in text.splitlines())
    return sum(int(lines[key].split()[0]) for key in ("Slab", "Shmem"))


def pages(folder):
    """The memory of all files below a folder of a tmpfs, in KiB."""
    files = (path.lstat() for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(file.st_blocks for file in files) / 2


def costs(agent, row, rounds, count, wait, stamp, pss, idle):
    agent.write("documents.json", documents("old"))
    plain, full = [], []
    for index in range(rounds):
        plain.append(start(agent, f"plain{index}", lambda text: text, wait, stamp))
        full.append(start(agent, f"full{index}", configured, wait, stamp))
    plain, full = statistics.median(plain) * 1000, statistics.median(full) * 1000
    row(f"4 volumes and 30 variables, beside {plain:.1f} ms", f"{full - plain:+.1f} ms", "3 ms")

    names = [f"many{index}" for index in range(count)]

    def grown(change, mark):
        """Starts the pods; returns how much the memory of the kernel has grown. They stay."""
        before = slab()
        for name in names:
            agent.write(f"{name}.json", change(agent.pod(name, f": > /out/{name}{mark}; exec sleep 100000")))
        for name in names:
            wait(agent.dir / "out" / f"{name}{mark}")
        time.sleep(1)
        return slab() - before

    def remove():
        agent.remove(*(f"{name}.json" for name in names))

    # The first pods fill caches of the kernel, which later ones find.
    grown(lambda text: text, "-warm")
    remove()
    bare = grown(lambda text: text, "-bare")
    remove()
    agent_before = pss([agent.process.pid])
    full = grown(configured, "-full")
    agent_grown = pss([agent.process.pid]) - agent_before
    folders = agent.dir / "run/configuration/volumes"
    used = pages(folders)
    left = {folder / name / "key0" for folder in folders.iterdir() for name in "abcd"}
    volumes = len(left)
    at = agent.write("documents.json", documents("new"))
    end = time.monotonic() + 60
    while left and time.monotonic() < end:
        left = {file for file in left if file.read_text() != "new-0"}
    seen = time.clock_gettime(time.CLOCK_BOOTTIME) - at
    row(f"change -> seen in {volumes} volumes of {count} pods", f"{seen * 1000:.0f} ms", "200 ms")
    # Each file has a page at least.
    row("memory of each volume, beyond the pages of its files", f"{(full - bare - used) / volumes:.1f} KB", "16 KB")
    row("pages of all files", f"{used:.0f} KB", "")
    row("agent's memory grown", f"{agent_grown:.0f} KB", "")
    # The same content again; and the agent writes down once, a minute after their start, that containers run.
    agent.write("documents.json", documents("new"))
    time.sleep(70)
    row(f"idle disk writes a minute, {volumes} volumes", f"{idle():.0f} bytes", "0 bytes")
    remove()
    agent.remove("documents.json")
