"""Images from a registry on a machine whose power fails."""

import random
import time

import registry
from catalogue import scenario
from machine import Failed

from scenarios.node import IMAGE, equal, pod
from scenarios.power import node_events

# Pulls an image and removes it, again and again.
BUSY = f"""'
while :; do
    coracle image pull --quiet {registry.IMAGE}:2
    coracle image rm {registry.IMAGE}:2
done'"""


def puller(name, tag):
    """A pod of the registry's image; it says what is in it."""
    text = pod(name, command="sha256sum /data/*/* | sha256sum; exec sleep 100000")
    return text.replace(f"image: {IMAGE}", f"image: {registry.IMAGE}:{tag}")


@scenario(seconds=300, count=3)
def power_cuts_during_pulls_need_no_repair(vm, count):
    """Power cuts while layers are downloaded and unpacked: afterwards the pod runs its image, whole, and nothing is left."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    vm.notes.append(f"seed {seed}, {count} power cuts")
    registry.start(vm)
    content = None
    for number in range(count):
        vm.manifest("pulled", puller("pulled", 1))
        vm.run("sync && systemd-run -q --unit=busy sh -c " + BUSY)
        # The moment of the cut is the test's input, so nothing is awaited here.
        time.sleep(chance.uniform(0, 8))
        vm.power_cut()
        vm.start()
        vm.wait_booted()
        registry.start(vm)
        vm.wait_running("pulled", seconds=120)
        said = vm.until("the pod to say what it has", "coracle logs pulled", lambda out: out != "", seconds=60)
        content = content or said
        equal(f"cut {number}: the content", said, content)
        checked = vm.run("coracle fsck", check=False, seconds=60)
        if checked.status != 0:
            raise Failed(f"cut {number}: {checked.out} {checked.err}")
        events = node_events(vm)
        if "ImageDamaged" in events:
            raise Failed(f"cut {number}: the node's events are {events}")
        equal("unfinished imports", vm.out("ls /var/lib/coracle/images/tmp"), "")
        # What was cut off goes on where it was.
        vm.run(f"coracle image pull --quiet {registry.IMAGE}:2", seconds=90)
        equal("unfinished pulls", vm.out("ls /var/lib/coracle/images/pulls"), "")
        vm.run("rm /etc/coracle/manifests/pulled.yaml")
        vm.until("the pod to go", "coracle get pods -A -o name", lambda out: out == "")
        vm.run(f"coracle image rm {registry.IMAGE}:1 {registry.IMAGE}:2")
