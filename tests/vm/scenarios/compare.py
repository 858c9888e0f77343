"""The start of a pod, memory and idle beside Debian's `podman` and `crun` on the same machine: figures and their ratios. Not a
test of the figures: they depend on the machine. Only machines of other architectures have these programs."""

import statistics

from catalogue import scenario
from machine import Failed

ROUNDS = 7
PODS = 10

# Every program makes a file in its container; the kernel stamps it, and the time since just before the start is the figure.
TOOLS = r"""
now() { date +%s%N; }
# wait_file FILE
wait_file() { n=0; until [ -e "$1" ]; do n=$((n + 1)); [ $n -lt 600 ] || { echo "no $1" >&2; exit 1; }; sleep 0.1; done; }
# since FILE BEGIN: milliseconds
since() { echo "$(stat -c %.9Y "$1" | tr -d .) $2" | awk '{ printf "%.1f\n", ($1 - $2) / 1e6 }'; }
"""


def pod(name, network=False):
    """A manifest of a pod that says when its program runs."""
    return f"""apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  hostNetwork: {"false" if network else "true"}
  terminationGracePeriodSeconds: 0
  volumes: [{{name: out, hostPath: {{path: /run/out}}}}]
  containers:
  - name: main
    image: docker.io/library/busybox:test
    command: [sh, -c, ": >/out/{name}; exec sleep 10000"]
    volumeMounts: [{{name: out, mountPath: /out}}]
"""


def measure(vm, script, after, rounds=ROUNDS):
    """Milliseconds of each round; the first, which reads programs from the disk, is not counted."""
    times = []
    for index in range(rounds + 1):
        times.append(float(vm.out(f"{TOOLS}\nN={index}; rm -f /run/out/*\n{script}", seconds=120).splitlines()[-1]))
        vm.run(f"N={index}; {after}", seconds=120)
    return times[1:]


def memory_kb(vm, pids):
    """The proportional memory of processes."""
    return int(vm.out(f"for pid in {pids}; do grep ^Pss: /proc/$pid/smaps_rollup; done | awk '{{ sum += $2 }} END {{ print sum }}'"))


def ticks(vm, pids):
    """Hundredths of a second of processor time."""
    return int(vm.out(f"for pid in {pids}; do sed 's/.*) //' /proc/$pid/stat; done | awk '{{ sum += $12 + $13 }} END {{ print sum + 0 }}'"))


def idle_of(vm, pids):
    """Hundredths of a second of processor time in half a minute."""
    before = ticks(vm, pids)
    vm.run("sleep 30", seconds=60)
    return ticks(vm, pids) - before


@scenario(seconds=1200, on=("arm64", "armhf"))
def pods_beside_podman_and_crun(vm):
    """File written to process running, `podman run`, `podman kube play`, `crun run`; memory and idle of ten containers."""
    note = vm.notes.append
    vm.run("mkdir -p /run/out /run/kube && cp /usr/bin/busybox /run/kube/")
    vm.run("podman load -q -i /payload/images/busybox.tar", seconds=120)
    figures = {}

    def figure(name, times):
        figures[name] = statistics.median(times)
        note(f"{name}: {figures[name]:.0f} ms (median of {len(times)}; {min(times):.0f} to {max(times):.0f})")

    gone = "rm -f /etc/coracle/manifests/*; until [ -z \"$(coracle get pods -A -o name)\" ]; do sleep 0.2; done"
    for name, network in (("coracle, the node's network", False), ("coracle, on the bridge", True)):
        text = pod("p$N", network)
        script = f"""cat >/run/kube/pod.yaml <<POD
{text}POD
b=$(now); mv /run/kube/pod.yaml /etc/coracle/manifests/p.yaml; wait_file /run/out/p$N; since /run/out/p$N $b"""
        figure(name, measure(vm, script, gone))
    run = "podman run -d --name p$N --network host -v /run/out:/out docker.io/library/busybox:test sh -c ': >/out/p; exec sleep 10000' >/dev/null"
    figure("podman run", measure(vm, f"b=$(now); {run}; since /run/out/p $b", "podman rm -f -t 0 p$N"))
    kube = f"""cat >/run/kube/pod.yaml <<POD
{pod("p$N")}POD
b=$(now); podman kube play /run/kube/pod.yaml >/dev/null; wait_file /run/out/p$N; since /run/out/p$N $b"""
    figure("podman kube play", measure(vm, kube, "podman pod rm -f -t 0 p$N"))
    bundle = r"""cd /run/crun && sed -i -e 's/"terminal": true/"terminal": false/' -e 's/"readonly": true/"readonly": false/' config.json &&
        sed -i -z 's/"args": \[[^]]*\]/"args": ["\/bin\/busybox","touch","\/out"]/' config.json"""
    vm.run(f"mkdir -p /run/crun/rootfs/bin && cp /usr/bin/busybox /run/crun/rootfs/bin/ && cd /run/crun && crun spec && {bundle}")
    figure("crun run", measure(vm, "rm -f /run/crun/rootfs/out; cd /run/crun; b=$(now); crun run c$N; since rootfs/out $b", "true"))
    own = figures["coracle, the node's network"]
    for name, value in figures.items():
        if not name.startswith("coracle"):
            note(f"{name} takes {value / own:.1f} times as long as a pod of coracle")

    # Memory and idle, first of ten pods, then of ten containers of podman.
    for index in range(PODS):
        vm.manifest(f"m{index}", pod(f"m{index}"))
    vm.until("all pods", "ls /run/out | grep -c m", lambda out: out == str(PODS), seconds=120)
    pids = vm.out("pgrep -x coracle; pgrep -f '[s]him /run/coracle' | sort -u").split()
    pids = " ".join(sorted(set(pids)))
    own, idle = memory_kb(vm, pids), idle_of(vm, pids)
    note(f"coracle with {PODS} pods: {own / 1024:.1f} MB in {len(pids.split())} processes, {idle / 100:.2f} s of processor time in 30 s idle")
    vm.pods_gone()
    vm.run("for n in $(seq 10); do podman run -d --name p$n --network host docker.io/library/busybox:test sleep 10000 >/dev/null; done", seconds=300)
    pids = " ".join(vm.out("pgrep -x conmon").split())
    if len(pids.split()) != PODS:
        raise Failed(f"conmon runs as {pids}")
    other, idle = memory_kb(vm, pids), idle_of(vm, pids)
    note(f"conmon of podman with {PODS} containers: {other / 1024:.1f} MB, {idle / 100:.2f} s of processor time in 30 s idle; {other / own:.1f} times coracle's memory")
    vm.run("podman rm -f -t 0 -a", seconds=120)
