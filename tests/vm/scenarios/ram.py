"""A machine without a disk: its root is the initramfs, its init busybox. It has no bus, no /dev/shm and no IPv6, and a kernel
without the cpuset and pids controllers."""

import shlex

from catalogue import scenario
from machine import Failed

from scenarios.node import equal, pod

OPTIONS = {"root": "ram", "memory_mb": 512, "kernel": "cgroup_disable=cpuset,pids ipv6.disable=1"}


def PREPARE(vm):
    vm.run("mkdir -p /usr/local/bin /etc/coracle/manifests /etc/coracle/images /var/log")
    vm.run("cp /payload/coracle /usr/local/bin/ && cp /payload/images/* /etc/coracle/images/")
    start(vm)


def start(vm):
    vm.run("setsid coracle run </dev/null >>/var/log/coracle.log 2>&1 &")
    try:
        vm.until("the image to be imported", "coracle get images", lambda out: "busybox" in out)
    except Failed as failed:
        raise Failed(f"{failed}; {vm.out('tail -n 20 /var/log/coracle.log')}") from None


def within(vm, name, script):
    """Runs a script in a container, and returns its output."""
    done = vm.run(f"coracle exec {name} -- sh -c {shlex.quote(script)}", check=False)
    if done.status != 0:
        raise Failed(f"`{script}` ended with {done.status}: {done.out} {done.err}; {vm.out('tail -n 20 /var/log/coracle.log')}")
    return done.out.strip()


@scenario(seconds=120)
def pods_run_on_an_initramfs(vm):
    """A container has a root of its own, with exec, mounts, volumes and masked paths, and no way out of it."""
    equal("the root", vm.out("awk '$5 == \"/\" {print $1 - $2, $9}' /proc/self/mountinfo"), "0 rootfs")
    vm.run("mkdir -p /data/files /data/below && echo of the node >/data/files/text && ! test -e /dev/shm && echo secret >/secret")
    volumes = """  shareProcessNamespace: true
  volumes:
  - {name: node, hostPath: {path: /data}}
  - {name: empty, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}"""
    mounts = """    securityContext: {capabilities: {add: [SYS_ADMIN, SYS_PTRACE]}}
    volumeMounts:
    - {name: node, mountPath: /node, mountPropagation: HostToContainer}
    - {name: node, mountPath: /files, subPath: files, readOnly: true}
    - {name: empty, mountPath: /empty}
    - {name: memory, mountPath: /memory}"""
    vm.manifest("one", pod("one", spec=volumes, container=mounts))
    vm.manifest("host", pod("host", spec="  hostNetwork: true\n  hostPID: true"))
    one = vm.wait_running("one")
    vm.wait_running("host")
    equal("files", within(vm, "one", "cat /files/text /node/files/text"), "of the node\nof the node")
    vm.run("coracle exec one -- sh -c '! echo >/files/text && echo >/empty/a && echo >/memory/a && echo >/dev/shm/a'")
    # Not every machine has ACPI.
    masked = "cat /proc/timer_list /proc/keys | wc -c; for folder in /proc/acpi /sys/firmware; do ! test -d $folder || ls $folder; done"
    equal("masked paths", within(vm, "one", masked), "0")
    # What is mounted on the node later arrives, and what the pod mounts does not leave.
    vm.run("mount -t tmpfs later /data/below")
    mounted = vm.out("awk '{print $5}' /proc/self/mountinfo | sort")
    vm.run("coracle exec one -- mount -t tmpfs mine /empty")
    equal("the node's mounts", vm.out("awk '{print $5}' /proc/self/mountinfo | sort"), mounted)
    # The classic way out of a chroot leads to the container's root, and so does joining its own mount namespace again.
    climb = "i=0; while [ $i -lt 40 ]; do cd ..; i=$((i + 1)); done; ls"
    equal("above the root", "secret" in within(vm, "one", f"cd /; {climb}").split(), False)
    joined = within(vm, "one", "nsenter -m/proc/self/ns/mnt ls /")
    equal("in the namespace's root", "secret" in joined.split(), False)
    pid = vm.out(f"head -n 1 {vm.cgroup(one, 'main')}/cgroup.procs")
    left = vm.out(f"awk '{{print $5}}' /proc/{pid}/mountinfo | grep -E '^/(run|payload|data)' || true")
    equal("the node's mounts in the container", left, "")
    vm.run("umount /data/below")
    # What the kernel lacks is said, for each pod and by doctor.
    events = vm.out("coracle get events")
    equal("the missing limit of processes", "pids.max of the pod should be" in events, True)
    doctor = vm.run("coracle doctor", check=False).out
    for option in ("CONFIG_CGROUP_PIDS", "CONFIG_CPUSETS", "ipv6"):
        equal(f"{option} in {doctor}", option in doctor, True)
