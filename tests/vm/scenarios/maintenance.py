"""A node under maintenance: cordoned and drained, over reboots and power cuts, until it is uncordoned."""

import json

from catalogue import scenario
from machine import Failed

from scenarios.node import equal, pod


def held(vm, name):
    vm.wait_pod(name, "to wait for the node", lambda found: found["status"].get("reason") == "NodeCordoned", seconds=300)


def unschedulable(vm):
    nodes = json.loads(vm.out("coracle get node -o json"))
    node = nodes["items"][0] if "items" in nodes else nodes
    return node["spec"].get("unschedulable", False)


def answers(vm):
    vm.until("the agent to answer", "coracle get pods -A -o name", seconds=300)


@scenario(seconds=1800, thorough=True)
def a_cordon_and_a_drain_outlast_reboots_and_power_cuts(vm):
    """Existing pods start again after a boot, new ones are held; after a drain no pod starts until `coracle uncordon`."""
    vm.manifest("low", pod("low"))
    vm.manifest("top", pod("top", spec="  priority: 1000"))
    for name in ("low", "top"):
        vm.wait_running(name, seconds=300)
    said = vm.out("coracle cordon")
    if not said.endswith(" cordoned"):
        raise Failed(f"cordon said: {said}")
    vm.manifest("new", pod("new"))
    held(vm, "new")
    # This flushes only the manifests: the cordon was on disk before the command returned.
    vm.run("sync -f /etc/coracle/manifests")
    vm.power_cut()
    vm.start()
    vm.wait_booted()
    answers(vm)
    equal("unschedulable", unschedulable(vm), True)
    for name in ("low", "top"):
        vm.wait_running(name, seconds=300)
    held(vm, "new")

    lines = vm.out("coracle drain", seconds=300).splitlines()
    wanted = ["evicting pod default/low", "pod/low evicted", "evicting pod default/top", "pod/top evicted"]
    equal("the output of drain", lines[1:-1], wanted)
    status = vm.out("systemctl show -p StatusText --value coracle")
    if not status.endswith("; drained"):
        raise Failed(f"systemd shows: {status}")
    vm.reboot(seconds=300)
    answers(vm)
    for name in ("low", "top", "new"):
        held(vm, name)
    equal("pods' processes", vm.out("pgrep -f '[w]hile :; do sleep 1' || true"), "")
    vm.run("coracle uncordon")
    for name in ("low", "top", "new"):
        vm.wait_running(name, seconds=300)
    equal("unschedulable", unschedulable(vm), False)
    vm.reboot(seconds=300)
    answers(vm)
    vm.wait_running("new", seconds=300)
