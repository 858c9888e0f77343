"""A node that runs out of memory, on cgroup v2: the kernel signals it by PSI, and the pod that causes it is evicted in time.
The machine is its own: on others the kernel has killed processes, and afterwards it stays short for five minutes."""

import json

from catalogue import scenario
from machine import Failed

from scenarios.node import equal, main_pid, pod

SETTINGS = """kind: KubeletConfiguration
evictionHard: {memory.available: 150Mi}
evictionPressureTransitionPeriod: PERIOD
"""
# Takes more and more memory.
HOG = "awk 'BEGIN { for (i = 0; 1; i++) list[i] = sprintf(\"%01000d\", i) }'"


def settings(vm, period):
    """`period`: for how long the node says that it has pressure when it has none."""
    vm.write("/etc/coracle/config.d/pressure.yaml", SETTINGS.replace("PERIOD", period))
    vm.run("systemctl reload coracle")


def node(vm):
    shown = json.loads(vm.out("coracle get node -o json"))
    return shown["items"][0] if "items" in shown else shown


def condition(vm, type_):
    return next(c["status"] for c in node(vm)["status"]["conditions"] if c["type"] == type_)


@scenario(seconds=400)
def a_memory_hog_is_evicted_before_the_kernel_kills_anybody(vm):
    """A pod takes all memory; other pods and the agent are not affected, and the node recovers when the pod is gone."""
    vm.run("mkdir -p /etc/coracle/config.d")
    # Until it has been looked at, however long that takes.
    settings(vm, "1h")
    for name in ["calm", "quiet"]:
        vm.manifest(name, pod(name))
        vm.wait_running(name)
    before = [main_pid(vm, name) for name in ["calm", "quiet"]]
    agent = vm.out("systemctl show -P MainPID coracle")
    if "checking memory at intervals only" in vm.out("journalctl -u coracle --no-pager"):
        raise Failed("the agent gets no alarms about memory")
    vm.manifest("hog", pod("hog", command=HOG, container="    resources: {requests: {memory: 16Mi}}"))
    evicted = vm.wait_pod("hog", "evicted", lambda p: p["status"].get("reason") == "Evicted", seconds=200)
    message = evicted["status"]["message"]
    begin = "The node was low on resource: memory. Threshold quantity: 150Mi, available: "
    if not message.startswith(begin) or "request is 16Mi" not in message:
        raise Failed(f"the message is {message}")
    vm.notes.append(message)
    equal("MemoryPressure", condition(vm, "MemoryPressure"), "True")
    equal("processes of the others", [main_pid(vm, name) for name in ["calm", "quiet"]], before)
    equal("the agent", vm.out("systemctl show -P MainPID coracle"), agent)
    equal("killed by the kernel", vm.out("journalctl -k --no-pager | grep -c 'Killed process' || true"), "0")
    vm.run("rm /etc/coracle/manifests/hog.yaml")
    settings(vm, "1s")
    vm.until("the node to recover", "coracle get node -o json", lambda out: '"KubeletHasSufficientMemory"' in out, seconds=90)
    vm.run("rm /etc/coracle/config.d/pressure.yaml && systemctl reload coracle")
