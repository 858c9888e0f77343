"""Pods that start after units and mounts of the real systemd."""

import json

from catalogue import scenario
from machine import Failed

from scenarios.node import equal, pod
from scenarios.power import DOWN_SECONDS

UNIT = """[Unit]
Description=Something that takes its time
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/sleep 3
[Install]
WantedBy=multi-user.target
"""

MOUNT = """[Mount]
What=tmpfs
Where=/srv/data
Type=tmpfs
"""


NOT_ACTIVE = "unit `slow.service` is not active"


def after(name, items):
    """A pod that starts after these."""
    labels = f"metadata: {{name: {name}, annotations: {{coracle.dev/after: {json.dumps(items)}}}, labels: {{"
    return pod(name).replace(f"metadata: {{name: {name}, labels: {{", labels)


def missing(vm, name, what):
    """Waits until the pod waits, among others for this; returns its message."""
    waits = lambda pod: pod["status"].get("reason") == "WaitingForDependencies" and what in pod["status"]["message"]
    return vm.wait_pod(name, f"waiting for {what}", waits)["status"]["message"]


@scenario(seconds=400, thorough=True)
def pods_start_after_units_and_mounts_also_after_a_reboot(vm):
    """A unit that starts, fails, stops and comes back; a mount; and the same order by itself after a reboot."""
    vm.write("/etc/systemd/system/slow.service", UNIT)
    vm.write("/etc/systemd/system/srv-data.mount", MOUNT)
    vm.run("systemctl daemon-reload")
    vm.manifest("data", after("data", "mount:/srv/data"))
    vm.manifest("web", after("web", "unit:slow.service?again, data:ready"))
    message = missing(vm, "web", NOT_ACTIVE)
    if "pod `default/data`" not in message:
        raise Failed(f"the pod before it is not named: {message}")
    vm.run("systemctl start slow.service")
    missing(vm, "web", "The pod waits: pod `default/data` is not ready")
    vm.run("systemctl start srv-data.mount")
    vm.wait_running("data")
    old = vm.wait_running("web")
    # A unit that is lost stops the pod, because it says `again`.
    vm.run("systemctl stop slow.service")
    missing(vm, "web", NOT_ACTIVE)
    vm.run("systemctl start slow.service")
    if vm.wait_running("web")["metadata"]["uid"] == old["metadata"]["uid"]:
        raise Failed("it is still the same pod")
    vm.run("systemctl -q enable slow.service && systemctl add-wants -q multi-user.target srv-data.mount", seconds=90)
    vm.reboot(DOWN_SECONDS)
    vm.wait_running("data")
    vm.wait_running("web", seconds=90)
    boot = {row["name"]: row for row in json.loads(vm.out("coracle boot -o json"))["items"]}
    items = {item["after"]: item for item in boot["web"]["items"]}
    equal("what web waited for", sorted(items), ["default/data:ready", "unit:slow.service"])
    equal("how that went", {item["state"] for item in items.values()}, {"there"})
    # Both count from the start of the machine.
    active = int(vm.out("systemctl show -p ActiveEnterTimestampMonotonic --value slow.service")) / 1e6
    admitted = boot["web"]["admittedSeconds"]
    vm.notes.append(f"the unit was active {active:.1f} s after the machine's start, the pod was let in after {admitted:.1f} s")
    if admitted < active:
        raise Failed("the pod began before its unit was active")
    vm.pods_gone()
    vm.run("systemctl -q disable slow.service; rm -r /etc/systemd/system/multi-user.target.wants/srv-data.mount; systemctl stop srv-data.mount slow.service", seconds=90)
