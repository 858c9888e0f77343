"""Images from a registry, and bundles of them, on a machine whose power fails."""

import json
import random
import time

import registry
from catalogue import scenario
from machine import Failed

from scenarios.node import IMAGE, equal, pod
from scenarios.power import node_events

MACHINE = "power"
ORDER = 1

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


@scenario(seconds=300, count=1)
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
    vm.run("systemctl stop registry")


# Applies both bundles in turn and brings the former one back, again and again.
CHANGING = """'
while :; do
    coracle bundle apply /root/2.tar
    coracle bundle rollback
    coracle bundle apply /root/2.tar
    coracle bundle apply /root/1.tar
done'"""


@scenario(seconds=300, count=1, thorough=True)
def power_cuts_during_changes_of_a_bundle_leave_one_generation(vm, count):
    """Power cuts during `bundle apply` and `rollback`: afterwards one generation runs, wholly, and nothing needs repair."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    vm.notes.append(f"seed {seed}, {count} power cuts")
    registry.start(vm)
    digests = {}
    for tag in registry.TAGS:
        # One pod is in both generations, the other in one only.
        vm.run(f"mkdir -p /root/{tag}")
        for name in ("both", f"only{tag}"):
            vm.write(f"/root/{tag}/{name}.yaml", generation_pod(name, tag))
        vm.run(f"coracle bundle create -o /root/{tag}.tar --name site /root/{tag}", seconds=90)
    vm.run("systemctl stop registry && sync")
    for tag in registry.TAGS:
        vm.run(f"coracle bundle apply /root/{tag}.tar", seconds=90)
        digests[current_generation(vm)] = tag
    for number in range(count):
        vm.run("systemd-run -q --unit=busy sh -c " + CHANGING)
        # The moment of the cut is the test's input, so nothing is awaited here.
        time.sleep(chance.uniform(0, 8))
        vm.power_cut()
        vm.start()
        vm.wait_booted()
        tag = digests[current_generation(vm)]
        names = ["both", f"only{tag}"]
        for name in names:
            vm.wait_running(name, seconds=90)
            equal(f"cut {number}: what {name} says", vm.out(f"coracle logs {name}"), f"{tag} {tag}")
        equal(f"cut {number}: the pods", vm.out("coracle get pods -A -o name | sort").split(), [f"pod/{name}" for name in names])
        checked = vm.run("coracle fsck", check=False, seconds=60)
        if checked.status != 0:
            raise Failed(f"cut {number}: {checked.out} {checked.err}")
        if "ImageDamaged" in node_events(vm):
            raise Failed(f"cut {number}: the node's events are {node_events(vm)}")
        equal(f"cut {number}: unfinished imports", vm.out("ls /var/lib/coracle/images/tmp"), "")
        left = vm.out("ls /var/lib/coracle/bundles/site | grep -v state.json | wc -l")
        if int(left) > 2:
            raise Failed(f"cut {number}: {left} generations are kept")
        # What was cut off works when it is done again.
        vm.run("coracle bundle apply --ready-within 2m /root/2.tar", seconds=150)
        vm.run("coracle bundle apply --ready-within 2m /root/1.tar", seconds=150)
    vm.run("coracle bundle rm --force site")
    vm.until("the pods to go", "coracle get pods -A -o name", lambda out: out == "")
    vm.run("coracle image prune -a --force")


def current_generation(vm):
    """The digest of the bundle that is in force."""
    bundles = vm.until("the agent to answer", "coracle bundle ls -o json")
    return json.loads(bundles)["items"][0]["current"]["digest"]


def generation_pod(name, tag):
    """A pod that says which generation it and its image are of."""
    return puller(name, tag).replace("sha256sum /data/*/* | sha256sum; ", f"echo {tag} $(cat /data/version); ")
