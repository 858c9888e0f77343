"""A node that is rebooted, switched off, and switched on again."""

import json
import random
import time

from catalogue import scenario
from machine import Failed

from scenarios.node import equal, main_pid, pod

# Well below the two times 90 s that systemd waits for a unit.
DOWN_SECONDS = 60


@scenario(seconds=400)
def pods_start_again_soon_after_a_reboot(vm):
    """`reboot` ends in time; the same pods run again soon after the boot, without a network and without help."""
    names = [f"pod{number}" for number in range(5)]
    for name in names:
        vm.manifest(name, pod(name))
    before = {name: vm.wait_running(name) for name in names}
    vm.reboot(DOWN_SECONDS)
    for name, old in before.items():
        new = vm.wait_running(name)
        equal("the pod's uid", new["metadata"]["uid"], old["metadata"]["uid"])
        # As with a kubelet, runs that have logs on disk count and keep their numbers.
        equal("the restart count", new["status"]["containerStatuses"][0]["restartCount"], 1)
        if new["status"]["startTime"] == old["status"]["startTime"]:
            raise Failed(f"{name} has not started again: {new['status']['startTime']}")
    equal("failed units", vm.out("systemctl --failed --plain --no-legend"), "")
    equal("the node's events", node_events(vm), ["Rebooted", "Starting"])
    equal("restarts of the agent", vm.out("systemctl show -p NRestarts --value coracle"), "0")
    how_soon(vm, names)


def how_soon(vm, names):
    """Notes the time from the agent's start to those of the containers, and the time of the boot."""
    begun = int(vm.out("systemctl show -p ExecMainStartTimestampMonotonic --value coracle")) / 1e6
    ticks = int(vm.out("getconf CLK_TCK"))
    # The fields after the program's name in parentheses: the 20th is the start time, in ticks since boot.
    stat = lambda pid: vm.out(f"cat /proc/{pid}/stat").rsplit(")", 1)[1].split()
    started = sorted(int(stat(main_pid(vm, name))[19]) / ticks - begun for name in names)
    # The time from the kernel's start until the whole system was up.
    over = vm.until("the boot to be over", "systemctl show -p FinishTimestampMonotonic --value", lambda out: out not in ("", "0"))
    booted = int(over) / 1e6
    vm.notes.append(
        f"containers began {started[0]:.2f} s to {started[-1]:.2f} s after the agent, which began {begun:.1f} s after the kernel; "
        f"booting took {booted:.1f} s: a ratio of {started[0] / booted:.2f}"
    )
    # Emulation and other work of the host stretch both times; only a start that waits for something fails this check.
    if started[0] > booted * 1.5:
        raise Failed("the first container came too late")


@scenario(seconds=300)
def a_poweroff_ends_in_time_and_keeps_the_node(vm):
    """`poweroff` ends although a pod ignores SIGTERM; everything is there when the machine is switched on again."""
    vm.manifest("stubborn", pod("stubborn", command="trap '' TERM; while :; do sleep 1000; done"))
    vm.manifest("polite", pod("polite", command="trap 'echo told to end; exit 0' TERM; while :; do sleep 1 & wait; done"))
    vm.wait_running("stubborn")
    vm.wait_running("polite")
    vm.command_and_go("systemctl poweroff")
    vm.wait_off(DOWN_SECONDS)
    vm.start()
    vm.wait_booted()
    vm.wait_running("stubborn")
    vm.wait_running("polite")
    equal("the end of the pod", vm.out("grep -rho 'told to end' /var/log/pods/default_polite_*"), "told to end")
    last = vm.out("journalctl -b -1 -o cat -u coracle.service -u coracle-pods.service -n 20")
    if "Failed with result" in last or "timed out" in last:
        raise Failed(f"the units did not end well: {last}")
    equal("the image", vm.out("coracle get images -o name | wc -l"), "1")


def node_events(vm):
    """The reasons of the node's events, each once, without the one that every agent emits about the cgroup of all pods."""
    events = json.loads(vm.out("coracle get events -o json"))["items"]
    reasons = {event["reason"] for event in events if event["involvedObject"]["kind"] == "Node"}
    return sorted(reasons - {"NodeAllocatableEnforced"})


@scenario(seconds=250, count=1)
def power_cuts_need_no_repair(vm, count):
    """Power cuts at random times during imports, pod starts, edits and writes: nothing is lost, damaged or left over."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    vm.notes.append(f"seed {seed}, {count} power cuts")
    write = "while :; do echo line; dd if=/dev/urandom of=/tmp/data bs=64k count=16 2>/dev/null; done"
    vm.manifest("writer", pod("writer", command=write))
    vm.manifest("edited", pod("edited").replace("labels: {", "labels: {turn: t0, "))
    vm.manifest("restless", pod("restless", spec="  restartPolicy: Always", command="exit 1"))
    vm.wait_running("writer")
    vm.wait_running("edited")
    vm.run("sync")
    for number in range(count):
        vm.run("systemd-run -q --unit=busy sh -c " + BUSY)
        vm.manifest(f"new{number % 2}", pod(f"new{number % 2}"))
        vm.run(f"sync /etc/coracle/manifests/new{number % 2}.yaml /etc/coracle/manifests")
        # The moment of the cut is the test's input, so nothing is awaited here.
        time.sleep(chance.uniform(0, 6))
        vm.power_cut()
        vm.start()
        vm.wait_booted()
        names = ["writer", "edited", f"new{number % 2}"]
        for name in names:
            vm.wait_running(name, seconds=90)
        whole_and_clean(vm, number)
        vm.run(f"rm /etc/coracle/manifests/new{number % 2}.yaml && sync /etc/coracle/manifests")
        vm.until("it to go", f"coracle get pod new{number % 2} || true", lambda out: out == "")


# Again and again imports and removes an image, edits a manifest atomically, and restarts a pod.
BUSY = """'
turn=0
while :; do
    turn=$((turn + 1))
    coracle image import /payload/more/many.tar
    cd /etc/coracle/manifests
    sed "s/turn: [a-z0-9]*/turn: t$turn/" edited.yaml >.edited && sync .edited && mv .edited edited.yaml
    coracle delete pod edited --wait=false
    coracle image rm many:test
done'"""


def whole_and_clean(vm, number):
    """Checks that after a power cut everything is intact, and nothing is left over."""
    said = vm.run("coracle fsck", check=False, seconds=60)
    if said.status != 0:
        raise Failed(f"cut {number}: {said.out} {said.err}")
    events = node_events(vm)
    if "UncleanShutdown" not in events or "ImageDamaged" in events:
        raise Failed(f"cut {number}: the node's events are {events}")
    equal("failed units", vm.out("systemctl --failed --plain --no-legend"), "")
    pods = json.loads(vm.out("coracle get pods -A -o json"))["items"]
    uids = sorted(pod["metadata"]["uid"] for pod in pods)
    equal("folders of pods", sorted(vm.out("ls /var/lib/coracle/pods").split()), uids)
    equal("folders of logs", sorted(vm.out("ls /var/log/pods | sed 's/.*_//'").split()), uids)
    equal("unfinished imports", vm.out("ls /var/lib/coracle/images/tmp"), "")
    vm.run("coracle logs writer --tail 5 | grep -qx line")
