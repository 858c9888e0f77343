"""A node under systemd: pods without a network, the values of their cgroups, and agent restarts."""

import json
import shlex

from catalogue import scenario
from machine import Failed

IMAGE = "docker.io/library/busybox:test"


def pod(name, spec="", container="", command="trap 'exit 0' TERM; while :; do sleep 1 & wait; done"):
    """A manifest of a pod with one container `main`."""
    return f"""apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  terminationGracePeriodSeconds: 5
{spec}
  containers:
  - name: main
    image: {IMAGE}
    command: [sh, -c, {json.dumps(command)}]
{container}
"""


def main_pid(vm, name):
    """The pid, on the node, of the first process of a pod's container."""
    found = vm.pod(name)
    return vm.out(f"head -n 1 {vm.cgroup(found, 'main')}/cgroup.procs")


def agent_pid(vm):
    return vm.out("systemctl show -p MainPID --value coracle")


def whole_pages(vm, value):
    """What the kernel makes of an amount of memory."""
    page = int(vm.out("getconf PAGESIZE"))
    return value // page * page


def equal(what, got, wanted):
    if got != wanted:
        raise Failed(f"{what} is `{got}`, not `{wanted}`")


@scenario(seconds=120)
def pods_start_without_a_network(vm):
    """The machine has no network but its loopback; pods run, with logs, exec and probes."""
    equal("the node's links", vm.out("ls /sys/class/net"), "lo")
    vm.run("echo 1 >/sys/kernel/tracing/events/module/module_request/enable")
    vm.manifest(
        "web",
        pod(
            "web",
            command="echo hello from $HOSTNAME; mkdir /www; echo fine >/www/health; exec httpd -f -p 8080 -h /www",
            container="""    readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1, timeoutSeconds: 30}
    livenessProbe: {exec: {command: [cat, /www/health]}, periodSeconds: 1, timeoutSeconds: 30}""",
        ),
    )
    vm.wait_running("web")
    # The kernel would load the modules for the packet rules one by one, which takes longer than everything else.
    equal("modules requested by rules", vm.out("grep -c ' nft-[0-9]' /sys/kernel/tracing/trace || true"), "0")
    equal("the log", vm.out("coracle logs web"), "hello from web")
    equal("exec's output", vm.out("coracle exec web -- cat /www/health"), "fine")
    table = vm.out("coracle get pods")
    if "web" not in table or "Running" not in table:
        raise Failed(f"`coracle get pods` says: {table}")
    status = vm.out("systemctl show -p StatusText --value coracle")
    equal("the service's status", status, "1 pod, 1 running")
    vm.run("coracle exec web -- rm /www/health")
    restarted = lambda p: p["status"]["containerStatuses"][0]["restartCount"] == 1
    vm.wait_pod("web", "restarted by its liveness probe", restarted)


@scenario(seconds=120)
def cgroups_have_the_values_of_the_manifest(vm):
    """cpu, memory and pids of pod and container are in the files of cgroup v2."""
    vm.manifest(
        "bounded",
        pod(
            "bounded",
            container="    resources: {requests: {cpu: 250m, memory: 32Mi}, limits: {cpu: 500m, memory: 64Mi}}",
        ),
    )
    vm.manifest("free", pod("free"))
    bounded, free = vm.wait_running("bounded"), vm.wait_running("free")
    group = vm.cgroup(bounded)
    if "/system.slice/coracle-pods.service/pods/burstable/" not in group:
        raise Failed(f"the pod's cgroup is {group}")
    most = min(int(vm.out(f"cat /proc/sys/kernel/{name}")) for name in ["pid_max", "threads-max"])
    pods = most - min(max(most // 10, 512), most // 2)
    for folder, file, wanted in [
        (group, "cpu.weight", "10"),
        (group, "cpu.max", "50000 100000"),
        (group, "memory.max", str(64 << 20)),
        (f"{group}/c-main", "cpu.weight", "35"),
        (f"{group}/c-main", "cpu.max", "50000 100000"),
        (f"{group}/c-main", "memory.max", str(64 << 20)),
        (f"{group}/c-main", "memory.oom.group", "1"),
        (f"{group}/c-main", "cgroup.type", "domain"),
        (vm.cgroup(free), "cpu.weight", "1"),
        (vm.cgroup(free), "memory.max", "max"),
        (vm.cgroup(free), "pids.max", str(min(pods // 2, 4096))),
        ("/sys/fs/cgroup/system.slice/coracle-pods.service/pods", "pids.max", str(pods)),
    ]:
        equal(f"{folder}/{file}", vm.out(f"cat {folder}/{file}"), wanted)
    inner = vm.out("cd /sys/fs/cgroup/system.slice/coracle-pods.service; cat cgroup.procs pods/cgroup.procs pods/*/cgroup.procs")
    equal("processes in inner cgroups", inner, "")
    equal("the agent's cgroup", vm.out(f"cut -d: -f3 /proc/{agent_pid(vm)}/cgroup"), "/system.slice/coracle.service")
    scores = vm.out(f"cat /proc/{agent_pid(vm)}/oom_score_adj /proc/{main_pid(vm, 'free')}/oom_score_adj").split()
    equal("the oom scores of agent and besteffort pod", scores, ["-999", "1000"])


@scenario(seconds=120)
def a_container_that_eats_too_much_is_oom_killed(vm):
    """The kernel kills it in its own cgroup; its status shows that, and another pod is not affected."""
    vm.manifest("calm", pod("calm"))
    vm.wait_running("calm")
    before = main_pid(vm, "calm")
    vm.manifest(
        "hog",
        pod(
            "hog",
            spec="  restartPolicy: Never",
            command="awk 'BEGIN { text = \"x\"; while (1) text = text text }'; echo survived",
            container="    resources: {limits: {memory: 24Mi}}",
        ),
    )
    found = vm.wait_pod("hog", "failed", lambda p: p["status"]["phase"] == "Failed")
    ended = found["status"]["containerStatuses"][0]["state"]["terminated"]
    equal("reason and code", (ended["reason"], ended["exitCode"]), ("OOMKilled", 137))
    equal("the neighbour's pid", main_pid(vm, "calm"), before)
    equal("the agent", vm.out("systemctl is-active coracle coracle-pods"), "active\nactive")


def keeps_its_pods(vm, what, disturb, another_agent=True):
    """Disturbs the agent; the pod's process, its restart count and its cgroup values stay."""
    vm.manifest("steady", pod("steady", container="    resources: {limits: {memory: 32Mi}}"))
    vm.wait_running("steady")
    pid, agent = main_pid(vm, "steady"), agent_pid(vm)
    disturb(agent)
    if another_agent:
        vm.until(
            f"another agent after {what}",
            "systemctl is-active -q coracle && systemctl show -p MainPID --value coracle",
            lambda out: out not in ("0", agent),
        )
    after = vm.wait_running("steady")
    equal("the pod's process", main_pid(vm, "steady"), pid)
    equal("the restart count", after["status"]["containerStatuses"][0]["restartCount"], 0)
    equal("memory.max", vm.out(f"cat {vm.cgroup(after, 'main')}/memory.max"), str(32 << 20))
    equal("exec's output", vm.out("coracle exec steady -- echo still here"), "still here")
    # A change of the cgroup tree by systemd must not keep new pods from starting.
    vm.manifest("later", pod("later", container="    resources: {limits: {memory: 16Mi, cpu: 100m}}"))
    vm.wait_running("later")


@scenario(seconds=120)
def a_restart_of_the_service_keeps_pods(vm):
    """`systemctl restart coracle`, twice."""
    restart = lambda agent: vm.run("systemctl restart coracle && systemctl restart coracle", seconds=60)
    keeps_its_pods(vm, "a restart", restart)


@scenario(seconds=120)
def a_daemon_reload_keeps_pods(vm):
    """`systemctl daemon-reload`, and a property of the service changed while it runs."""
    disturb = lambda agent: vm.run(
        "systemctl daemon-reload && systemctl set-property --runtime coracle-pods.service CPUWeight=50 && "
        "systemctl set-property --runtime coracle.service MemoryHigh=200M && systemctl daemon-reload",
        seconds=60,
    )
    keeps_its_pods(vm, "a reload", disturb, another_agent=False)


@scenario(seconds=120)
def a_killed_agent_is_replaced(vm):
    """`kill -9` of the agent: systemd starts it again."""
    keeps_its_pods(vm, "a kill", lambda agent: vm.run(f"kill -9 {agent}"))


@scenario(seconds=200)
def a_hung_agent_is_replaced(vm):
    """A stopped agent sends nothing to the watchdog, and is restarted."""
    vm.run("systemctl show -p WatchdogUSec coracle | grep -q 'WatchdogUSec=1min'")
    # A minute would be too long for a test.
    vm.run(
        "mkdir -p /run/systemd/system/coracle.service.d && "
        "printf '[Service]\\nWatchdogSec=5\\n' >/run/systemd/system/coracle.service.d/watchdog.conf && "
        "systemctl daemon-reload && systemctl restart coracle",
        seconds=60,
    )
    try:
        keeps_its_pods(vm, "a hang", lambda agent: vm.run(f"kill -STOP {agent}"))
    finally:
        vm.run("rm -r /run/systemd/system/coracle.service.d && systemctl daemon-reload && systemctl restart coracle", seconds=60)
    vm.run("journalctl -b -u coracle | grep -q 'Watchdog timeout'")


@scenario(seconds=60)
def the_journal_has_fields(vm):
    """A pod's warnings can be found by its name, and have their priority."""
    vm.manifest("absent", pod("absent").replace(IMAGE, "docker.io/library/absent:1"))
    entry = json.loads(
        vm.until(
            "a warning about the pod",
            "journalctl -b -o json -n 1 CORACLE_POD=absent CORACLE_NAMESPACE=default PRIORITY=4 | grep .",
        )
    )
    equal("the identifier", entry["SYSLOG_IDENTIFIER"], "coracle")
    equal("the unit", entry["_SYSTEMD_UNIT"], "coracle.service")
    if "pod=default/absent" not in entry["MESSAGE"]:
        raise Failed(f"the message is `{entry['MESSAGE']}`")


@scenario(seconds=120)
def devices_of_the_node_cannot_be_opened(vm):
    """A container may create or mount a device node of the node's disk, but not open it; a privileged one may."""
    volumes = "  volumes: [{name: dev, hostPath: {path: /dev}}]"
    mount = "    volumeMounts: [{name: dev, mountPath: /node-dev}]"
    vm.manifest("plain", pod("plain", spec=volumes, container=mount))
    vm.manifest("mighty", pod("mighty", spec=volumes, container=mount + "\n    securityContext: {privileged: true}"))
    vm.wait_running("plain")
    vm.wait_running("mighty")
    numbers = vm.out("stat -c '%t %T' /dev/vda").split()
    major, minor = (int(number, 16) for number in numbers)
    look = f"""mknod /tmp/disk b {major} {minor}
        for disk in /tmp/disk /node-dev/vda; do
            head -c 1 $disk >/dev/null 2>/tmp/why && echo open || grep -o 'not permitted' /tmp/why
        done"""
    inside = lambda name, script: vm.out(f"coracle exec {name} -- sh -c {shlex.quote(script)}")
    equal("the result in a container", inside("plain", look), "not permitted\nnot permitted")
    equal("the result in a privileged container", inside("mighty", look), "open\nopen")
    own = """for device in null zero full random urandom tty; do test -c /dev/$device || echo no $device; done
        head -c 1 /dev/urandom | wc -c; echo x >/dev/null && echo written"""
    equal("its own devices", inside("plain", own), "1\nwritten")
