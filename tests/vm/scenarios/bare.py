"""A kernel with what coracle cannot do without, and nothing more (bare.config), on a machine without a disk. `bare-kernel` builds it."""

from catalogue import scenario

from scenarios import ram
from scenarios.node import equal, pod
from scenarios.small import waits_because

OPTIONS = {"root": "ram", "memory_mb": 256}
PREPARE = ram.PREPARE

UNCONFINED = "seccompProfile: {type: Unconfined}"
# What doctor names; without these some pods run.
MISSING = ("SECCOMP", "POSIX_MQUEUE", "CGROUP_PIDS", "CPUSETS", "CFS_BANDWIDTH", "USER_NS", "IPV6", "BPF", "LANDLOCK", "PSI")


@scenario(seconds=180, needs="kernel")
def what_can_run_runs_on_a_bare_kernel(vm):
    """A pod without seccomp runs, with its limits, exec and a probe; others say which kernel option they need."""
    probe = "    livenessProbe: {exec: {command: [\"true\"]}, periodSeconds: 5}\n    resources: {limits: {memory: 32Mi}}"
    groups = f"  hostNetwork: true\n  securityContext: {{{UNCONFINED}, runAsUser: 7, runAsGroup: 8, supplementalGroups: [4000, 9]}}"
    vm.manifest("one", pod("one", spec=groups, container=probe, command="id; exec sleep 1000000"))
    vm.manifest("confined", pod("confined", spec="  hostNetwork: true"))
    vm.manifest("net", pod("net", spec=f"  securityContext: {{{UNCONFINED}}}"))
    vm.manifest("users", pod("users", spec=f"  hostUsers: false\n  securityContext: {{{UNCONFINED}}}"))
    limited = f"  hostNetwork: true\n  securityContext: {{{UNCONFINED}}}"
    vm.manifest("limited", pod("limited", spec=limited, container="    resources: {limits: {cpu: 500m}}"))
    one = vm.wait_running("one")
    equal("the limit", vm.out(f"cat {vm.cgroup(one, 'main')}/memory.max"), str(32 << 20))
    identity = "uid=7 gid=8 groups=8,9,4000"
    equal("the identity", vm.out("coracle logs one"), identity)
    equal("the identity of a program", vm.out("coracle exec one -- id"), identity)
    equal("a program", vm.out("coracle exec one -- sh -c 'echo within; test ! -e /dev/mqueue'"), "within")
    waits_because(vm, "confined", "CONFIG_SECCOMP")
    waits_because(vm, "net", "CONFIG_")
    waits_because(vm, "users", "CONFIG_USER_NS")
    waits_because(vm, "limited", "CONFIG_CFS_BANDWIDTH")
    waits_because(vm, "one", "CONFIG_CGROUP_PIDS")
    doctor = vm.run("coracle doctor", check=False).out
    for option in MISSING:
        equal(f"{option} in {doctor}", option in doctor.upper(), True)
    equal("restarts", vm.out("coracle get pod one -o jsonpath='{.status.containerStatuses[0].restartCount}'"), "0")
    vm.pods_gone()
