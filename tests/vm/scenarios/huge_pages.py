"""Huge pages: granted, limited by cgroup v2, and counted, as pods start and stop."""

import json

from catalogue import scenario

from scenarios.node import equal, pod

MACHINE = "node"

MI = 1 << 20
POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB"
SLEEP = "trap 'exit 0' TERM; while :; do sleep 1 & wait; done"


def fill(vm, pages):
    """Sets the number of 2 MiB pages in the kernel's pool; coracle reads it when it starts."""
    vm.run(f"echo 1 >/proc/sys/vm/compact_memory; echo {pages} >{POOL}/nr_hugepages && test $(cat {POOL}/nr_hugepages) = {pages}")
    vm.run("systemctl restart coracle", seconds=60)


def allocatable(vm):
    """The node's allocatable resources, from the API."""
    node = json.loads(vm.out("coracle get node -o json"))
    node = node["items"][0] if "items" in node else node
    return node["status"]["allocatable"]


def bytes_of(amount):
    """The bytes of an amount like `512Ki`."""
    for power, suffix in enumerate(["Ki", "Mi", "Gi"], start=1):
        if amount.endswith(suffix):
            return int(amount.removesuffix(suffix)) << 10 * power
    return int(amount)


def huge(name, mib, command=SLEEP):
    """A pod with a limit of 2 MiB pages, and a volume of them."""
    volume = "  volumes: [{name: pages, emptyDir: {medium: HugePages-2Mi}}]"
    mount = "    volumeMounts: [{name: pages, mountPath: /pages}]\n"
    limits = f"    resources: {{limits: {{memory: 32Mi, hugepages-2Mi: {mib}Mi}}}}"
    return pod(name, spec=volume, container=mount + limits, command=command)


def limits(vm, folder):
    """The limits of huge pages in a cgroup: by file, for all sizes of this kernel."""
    lines = vm.out(f"cd {folder} && grep -H . hugetlb.*.max").splitlines()
    return dict(line.split(":", 1) for line in lines)


def only_small(found, amount):
    """The expected values: this amount for 2 MiB pages, zero for other sizes."""
    return {file: str(amount) if file.startswith("hugetlb.2MB.") else "0" for file in found}


@scenario(seconds=300, thorough=True)
def pods_have_the_huge_pages_they_ask_for_and_no_more(vm):
    """hugetlb limits of pods and containers, a volume of such pages, and a pod that waits until another has ended."""
    before = allocatable(vm)
    fill(vm, 4)
    after = allocatable(vm)
    equal("huge pages for pods", after["hugepages-2Mi"], "8Mi")
    equal("memory set aside", bytes_of(before["memory"]) - bytes_of(after["memory"]), 8 * MI)
    # What fails is said on standard error, a pipe of its own: its lines may come after those written later.
    take = "exec 2>&1; fallocate -l 4194304 /pages/mine && echo mine; fallocate -l 2097152 /pages/more || echo no more; echo done; "
    vm.manifest("huge", huge("huge", 4, take + SLEEP))
    vm.manifest("plain", pod("plain"))
    group = vm.cgroup(vm.wait_running("huge", seconds=120))
    log = vm.until("it to have tried", "coracle logs huge", lambda out: out.endswith("done"))
    equal("the pages that it got", [line for line in log.splitlines() if line in ("mine", "no more")], ["mine", "no more"])
    for folder in (group, f"{group}/c-main"):
        found = limits(vm, folder)
        equal("the kernel's files", {"hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"} <= set(found), True)
        equal(folder, found, only_small(found, 4 * MI))
        equal("pages in use", vm.out(f"cat {folder}/hugetlb.2MB.current"), str(4 * MI))
    plain = vm.cgroup(vm.wait_running("plain", seconds=120))
    for folder in (plain, f"{plain}/c-main"):
        found = limits(vm, folder)
        equal(folder, found, only_small(found, 0))
    classes, above = plain.rsplit("/", 1)[0], plain.rsplit("/", 2)[0]
    # Some kernels show the largest number of pages instead of `max`.
    bounded = [value for value in limits(vm, classes).values() if value != "max" and int(value) < 1 << 62]
    equal("limits of its class", bounded, [])
    found = limits(vm, above)
    equal("all pods", found, only_small(found, 8 * MI))
    for name in ("huge", "plain"):
        equal("values that are not in effect", vm.out(f"coracle describe pod {name} | grep -c 'is to be' || true"), "0")
    equal("values shown", vm.out("coracle describe pod huge | grep -c 'hugetlb.2MB.max: '"), "2")
    # Granted pages stay granted over an agent restart.
    vm.run("systemctl restart coracle", seconds=60)
    vm.manifest("more", huge("more", 6))
    held = vm.wait_pod("more", "held", lambda p: p["status"].get("reason") == "OutOfhugepages-2Mi")
    why = f"Node didn't have enough resource: hugepages-2Mi, requested: {6 * MI}, used: {4 * MI}, capacity: {8 * MI}"
    equal("the reason of the wait", held["status"]["message"], why)
    equal("restarts", vm.pod("huge")["status"]["containerStatuses"][0]["restartCount"], 0)
    vm.run("rm /etc/coracle/manifests/huge.yaml")
    group = vm.cgroup(vm.wait_running("more", seconds=120), "main")
    equal("the other's pages", limits(vm, group)["hugetlb.2MB.max"], str(6 * MI))
    vm.pods_gone()
    equal("volumes left", vm.out("grep hugetlbfs /proc/mounts | grep -c coracle || true"), "0")
    vm.until("all pages to be free", f"cat {POOL}/free_hugepages", lambda out: out == "4")
    fill(vm, 0)
