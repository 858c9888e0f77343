"""A machine whose clock is wrong and then set: only shown times change, no delay does."""

import json

from catalogue import scenario
from machine import Failed

from scenarios.node import equal, pod

MACHINE = "node"
ORDER = 1

# Steps like those that people and time servers make on machines without a battery.
STEPS = ["-1 hour", "+10 years", "-10 years", "+1 hour"]
UPTIME = "cut -d' ' -f1 /proc/uptime"
SETTINGS = "kind: KubeletConfiguration\ncontainerLogMaxSize: 20Ki\ncontainerLogMaxFiles: 4\n"
# The back-off of the annotation below, in seconds: the first restart is immediate.
WAITS = [0, 4, 8, 16, 16]
# On a busy host a start in the emulated machine takes long.
LATE = 15


def step(vm, by):
    vm.run(f"date -s '{by}' >/dev/null")


def crashing():
    """A pod that records its start time and ends at once."""
    volume = "  volumes: [{name: starts, hostPath: {path: /var/tmp/starts, type: DirectoryOrCreate}}]"
    mount = "    volumeMounts: [{name: starts, mountPath: /starts}]"
    return pod("crashing", spec=volume, container=mount, command=f"{UPTIME} >>/starts/all; exit 1")


def starts(vm, count):
    """Waits for `count` starts of the crashing pod; returns their times since the boot."""
    enough = lambda out: len(out.split()) >= count
    return [float(word) for word in vm.until(f"start {count}", "cat /var/tmp/starts/all", enough, seconds=90).split()]


@scenario(seconds=400)
def setting_the_clock_changes_nothing_but_times_that_are_shown(vm):
    """Back-off, probes, grace and rotation, while the clock steps an hour back, ten years ahead, and back again."""
    vm.run("mkdir -p /etc/coracle/config.d")
    vm.write("/etc/coracle/config.d/clock.yaml", SETTINGS)
    vm.run("systemctl reload coracle")
    note = "annotations: {coracle.dev/restart-backoff: 'initial=4s,max=16s'}, labels"
    vm.manifest("crashing", crashing().replace("labels", note))
    probes = "    livenessProbe: {exec: {command: ['true']}, periodSeconds: 1, timeoutSeconds: 30}\n"
    vm.manifest("probed", pod("probed", container=probes + probes.replace("liveness", "readiness")))
    burst = "for i in 0 1 2 3 4 5 6 7 8 9; do n=$((n+1)); echo number $n $words; done"
    vm.manifest("chatty", pod("chatty", command=f"n=0; words=$(seq -s. 1 90); while :; do {burst}; sleep 1; done"))
    vm.wait_running("probed")
    vm.wait_running("chatty")
    for number, by in enumerate(STEPS):
        # The step comes in the middle of a wait.
        starts(vm, number + 2)
        step(vm, by)
    begun = starts(vm, len(WAITS) + 1)
    gaps = [after - before for before, after in zip(begun, begun[1:])]
    for gap, wanted in zip(gaps, WAITS):
        if not wanted - 0.5 <= gap <= wanted + LATE:
            raise Failed(f"waited {gaps} s between starts, not {WAITS}")
    vm.notes.append(f"waits between starts: {[round(gap, 1) for gap in gaps]} s")
    status = vm.wait_running("probed")["status"]["containerStatuses"][0]
    equal("restarts of the probed pod", status["restartCount"], 0)
    numbers = [int(line.split()[1]) for line in vm.out("coracle logs chatty").splitlines()]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] == 1:
        raise Failed(f"the log has not rotated, or has gaps: {numbers[:3]} … {numbers[-3:]}, {len(numbers)} lines")
    files = vm.out("ls /var/log/pods/default_chatty_*/main | wc -l")
    if int(files) > 4:
        raise Failed(f"{files} files of one log")
    vm.run("rm /etc/coracle/config.d/clock.yaml && systemctl reload coracle")


@scenario(seconds=200)
def a_grace_period_is_as_long_as_ever(vm):
    """Pods that ignore SIGTERM get exactly their grace period, however the clock is set meanwhile."""
    stays = "trap '' TERM; while :; do sleep 1000; done"
    for by in ["+10 years", "-10 years"]:
        vm.manifest("stubborn", pod("stubborn", command=stays).replace("Seconds: 5", "Seconds: 10"))
        vm.wait_running("stubborn")
        begin = float(vm.out(UPTIME))
        vm.run("rm /etc/coracle/manifests/stubborn.yaml")
        deleted = "coracle get pod stubborn -o jsonpath='{.metadata.deletionTimestamp}'"
        vm.until("the pod to be stopped", deleted, lambda out: out != "")
        step(vm, by)
        vm.until("the pod to go", "coracle get pods -o name", lambda out: out == "")
        took = float(vm.out(UPTIME)) - begin
        if not 10 <= took <= 10 + LATE:
            raise Failed(f"the pod ended after {took} s, not 10, when the clock was set by {by}")


@scenario(seconds=300, thorough=True)
def a_node_that_believes_in_1970_works_and_shuts_down(vm):
    """The battery-backed clock shows 1970: pods run, and get their grace although the clock is set during the shutdown."""
    polite = "trap 'sleep 4; echo gone; exit 0' TERM; while :; do sleep 1 & wait $!; done"
    created = "coracle get node -o json | grep -m 1 creationTimestamp"
    before = vm.out(created)
    vm.command_and_go("systemctl poweroff")
    vm.wait_off(120)
    vm.start(clock="1970-01-01T00:00:00")
    vm.wait_booted()
    # systemd corrects such an early time at boot; a system without systemd does not. The kernel takes none that would be
    # before its own start.
    vm.run("systemctl stop coracle && date -s @900 >/dev/null && systemctl start coracle")
    vm.manifest("polite", pod("polite", command=polite).replace("Seconds: 5", "Seconds: 20"))
    vm.run("rm -f /var/tmp/starts/all")
    vm.manifest("crashing", crashing())
    shown = vm.wait_running("polite")["status"]
    if not shown["startTime"].startswith("1970-01-01T00:"):
        raise Failed(f"it started {shown['startTime']}")
    first, second, third = starts(vm, 3)[:3]
    if not (second - first < LATE and 9.5 <= third - second <= 10 + LATE):
        raise Failed(f"starts at {first}, {second}, {third}")
    vm.command_and_go("systemctl poweroff; date -s '2026-01-01 00:00:00'")
    vm.wait_off(120)
    vm.start()
    vm.wait_booted()
    vm.wait_running("polite")
    equal("the creation time of the node", vm.out(created), before)
    equal("the end of the pod", vm.out("grep -rho gone /var/log/pods/default_polite_*"), "gone")
    state = json.loads(vm.out("cat /var/lib/coracle/graceful_node_shutdown_state"))
    if not ("1970" < state["startTime"] and "1970" < state["endTime"]):
        raise Failed(f"the state file says: {state}")
