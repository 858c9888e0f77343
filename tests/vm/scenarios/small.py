"""A machine with 256 MB and a slow disk, whose root and /etc cannot be written to. Logs are in memory, there are no user namespaces, and
the kernel has no packet rules; in the end it has no overlay either."""

from catalogue import scenario

from scenarios.node import equal, pod

OPTIONS = {
    "memory_mb": 256,
    "kernel": "module_blacklist=nf_tables sysctl.user.max_user_namespaces=0",
    # A bad SD card: 4 MB and 100 operations a second.
    "throttle": "bps-total=4000000 iops-total=100",
}
PODS = 10

# What the agent sees: nothing can be written to but its state, on the slow disk, and what is in memory.
UNIT = """[Service]
ExecStart=
ExecStart=unshare -m --propagation slave sh -c 'mount -o remount,bind,ro / && mount -t tmpfs logs /var/log && exec /usr/local/bin/coracle run'
"""

# The default threshold of 100 MiB would leave little for pods.
SETTINGS = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {memory.available: 24Mi}\n"
FREE_MB = 128


def free_mb(vm):
    return int(vm.out("awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo"))


def PREPARE(vm):
    vm.run("mkdir -p /etc/coracle/images && cp /payload/images/* /etc/coracle/images/")
    vm.run("/payload/coracle install && mkdir -p /run/systemd/system/coracle.service.d", seconds=90)
    vm.write("/run/systemd/system/coracle.service.d/read-only.conf", UNIT)
    vm.write("/etc/coracle/config.yaml", SETTINGS)
    vm.run("sync && echo 3 >/proc/sys/vm/drop_caches")
    # A tmpfs cannot be reclaimed, as there is no swap.
    vm.run("mkdir /run/taken && mount -t tmpfs -o size=100% taken /run/taken")
    vm.run(f"head -c {max(0, free_mb(vm) - FREE_MB)}M /dev/zero >/run/taken/zeros")
    vm.run("systemctl daemon-reload && systemctl start coracle")
    vm.until("the image to be imported", "coracle get images", lambda out: "busybox" in out)


def waits_because(vm, name, words):
    """The pod's events say what is missing."""
    vm.until(f"`{words}` in the events of {name}", f"coracle get events | grep pod/{name}", lambda out: words in out)


@scenario(seconds=300)
def what_can_run_runs_and_what_cannot_says_why(vm):
    """Agent and ten pods with probes run in 128 MB; pods that need what the kernel lacks wait with the reason, and doctor names the option."""
    # On an emulated machine whose host is busy, `true` waits for many seconds while ten pods start at once.
    timeout = 30 * vm.arch.slow
    probe = f"    livenessProbe: {{exec: {{command: [\"true\"]}}, periodSeconds: 5, failureThreshold: 1, timeoutSeconds: {timeout}}}"
    host = "  hostNetwork: true"
    vm.write("/etc/coracle/manifests/ten.yaml", "---\n".join(pod(f"p{n}", spec=host, container=probe) for n in range(PODS)))
    for number in range(PODS):
        vm.wait_running(f"p{number}")
    vm.notes.append(f"{free_mb(vm)} of {FREE_MB} MB are free with the agent and {PODS} pods")
    vm.manifest("net", pod("net"))
    vm.manifest("users", pod("users", spec="  hostUsers: false"))
    waits_because(vm, "users", "CONFIG_USER_NS")
    waits_because(vm, "net", "CONFIG_NF_TABLES_INET")
    restarts = vm.out("coracle get pods -o jsonpath='{.items[*].status.containerStatuses[0].restartCount}'")
    equal("restarts", set(restarts.split()), {"0"})
    vm.pods_gone()
    # No root for containers either.
    vm.run("rmmod overlay && echo /bin/false >/proc/sys/kernel/modprobe")
    vm.manifest("root", pod("root", spec=host))
    waits_because(vm, "root", "CONFIG_OVERLAY_FS")
    doctor = vm.run("coracle doctor", check=False).out
    for option in ("CONFIG_USER_NS", "CONFIG_NF_TABLES_INET", "CONFIG_OVERLAY_FS"):
        equal(f"{option} in {doctor}", option in doctor, True)
    # As the agent sees it, /etc cannot be written to.
    agent = vm.out("systemctl show -p MainPID --value coracle")
    refused = vm.run(f"nsenter -t {agent} -m /payload/coracle install --prefix /run/box", check=False)
    equal("the installation", (refused.status, "coracle install --root IMAGE" in refused.err), (1, True))
