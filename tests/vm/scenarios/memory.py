"""Reserved and protected memory on cgroup v2, by the settings."""

from catalogue import install, scenario

from scenarios.node import equal, pod, whole_pages

MI = 1 << 20
SETTINGS = """kind: KubeletConfiguration
featureGates: {MemoryQoS: true}
memoryReservationPolicy: TieredReservation
memoryThrottlingFactor: 0.5
systemReserved: {cpu: 200m, memory: 64Mi}
systemReservedCgroup: /system.slice
enforceNodeAllocatable: [pods, system-reserved-compressible]
"""


def PREPARE(vm):
    vm.run("mkdir -p /etc/coracle")
    vm.write("/etc/coracle/config.yaml", SETTINGS)
    install(vm)


def values(vm, folder, *files):
    return vm.out(f"cd {folder} && cat {' '.join(files)}").splitlines()


@scenario(seconds=300)
def pods_have_what_is_left_and_requests_are_protected(vm):
    """memory.max above all pods, memory.min and .low by class, memory.high between request and limit; all read back."""
    figures = "    resources: {requests: {memory: 16Mi, cpu: 100m}, limits: {memory: 32Mi}}"
    vm.manifest("burstable", pod("burstable", container=figures))
    same = "    resources: {limits: {memory: 24Mi, cpu: 50m}}"
    vm.manifest("guaranteed", pod("guaranteed", container=same))
    burstable = vm.cgroup(vm.wait_running("burstable", seconds=200))
    guaranteed = vm.cgroup(vm.wait_running("guaranteed", seconds=200))
    files = ["memory.min", "memory.low", "memory.high", "memory.max"]
    text = lambda *amounts: [amount if amount == "max" else str(amount * MI) for amount in amounts]
    equal("the burstable container", values(vm, f"{burstable}/c-main", *files), text(0, 16, 24, 32))
    equal("its pod", values(vm, burstable, *files), text(0, 16, "max", 32))
    equal("the guaranteed container", values(vm, f"{guaranteed}/c-main", *files), text(24, 0, "max", 24))
    equal("its pod", values(vm, guaranteed, *files), text(24, 0, "max", 24))
    above = guaranteed.rsplit("/", 1)[0]
    equal("all pods", values(vm, above, "memory.min"), text(40))
    equal("burstable pods", values(vm, f"{above}/burstable", "memory.low", "cpu.weight"), text(16) + ["4"])
    total = int(vm.out("awk '/^MemTotal:/ {print $2}' /proc/meminfo")) * 1024
    equal("the limit of all pods", values(vm, above, "memory.max"), [str(whole_pages(vm, total - 64 * MI))])
    # 200m are 204 shares.
    equal("the system's weight", values(vm, "/sys/fs/cgroup/system.slice", "cpu.weight"), ["8"])
    for name in ("burstable", "guaranteed"):
        equal("values that are not in effect", vm.out(f"coracle describe pod {name} | grep -c 'is to be' || true"), "0")
    events = vm.out("coracle get events")
    for said in ("Updated Node Allocatable limit across pods", "Updated limits on system reserved cgroup /system.slice"):
        equal(said, said in events, True)
