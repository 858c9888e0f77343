"""Confinement by what this kernel has: AppArmor, and device rules of cgroup v2."""

from catalogue import scenario
from machine import Failed

from scenarios.node import equal, main_pid, pod

SLEEP = "trap 'exit 0' TERM; while :; do sleep 1 & wait; done"


def confined(name, profile, container="", command=SLEEP):
    """A pod with this AppArmor profile."""
    return pod(name, spec=f"  securityContext: {{appArmorProfile: {profile}}}", container=container, command=command)


@scenario(seconds=300)
def app_armor_confines_containers_and_what_is_executed_in_them(vm):
    """The default profile, one of the node's, one that is not loaded, and exec."""
    administrator = "    securityContext: {capabilities: {add: [SYS_ADMIN]}, seccompProfile: {type: Unconfined}}"
    vm.manifest("usual", confined("usual", "{type: RuntimeDefault}", administrator))
    vm.manifest("free", confined("free", "{type: Unconfined}", administrator))
    vm.wait_running("usual")
    vm.wait_running("free")
    label = lambda name: vm.out(f"cat /proc/{main_pid(vm, name)}/attr/current")
    equal("the profile", label("usual"), "coracle-default (enforce)")
    equal("the profile of exec", vm.out("coracle exec usual -- cat /proc/self/attr/current"), "coracle-default (enforce)")
    equal("no profile", label("free"), "unconfined")
    # With these capabilities only the profile forbids a mount.
    mount = "coracle exec {} -- sh -c 'mkdir -p /tmp/m && mount -t tmpfs none /tmp/m'"
    vm.run(mount.format("free"))
    refused = vm.run(mount.format("usual"), check=False)
    if refused.status == 0 or "ermission denied" not in refused.err:
        raise Failed(f"mount ended with {refused.status}: {refused.err}")
    # A profile that the node loads later.
    vm.manifest("own", confined("own", "{type: Localhost, localhostProfile: no-notes}"))
    waits = lambda pod: "AppArmor profile not found: no-notes" in str(pod["status"])
    vm.wait_pod("own", "without its profile", waits)
    vm.write("/etc/apparmor.d/no-notes", "profile no-notes flags=(attach_disconnected) {\n  file,\n  signal,\n  deny /notes/** w,\n}\n")
    vm.run("apparmor_parser --replace /etc/apparmor.d/no-notes")
    vm.wait_running("own", seconds=120)
    equal("the node's profile", label("own"), "no-notes (enforce)")
    vm.run("coracle exec own -- sh -c 'mkdir -p /notes; touch /elsewhere'")
    if vm.run("coracle exec own -- touch /notes/x", check=False).status == 0:
        raise Failed("the node's profile allows what it denies")


@scenario(seconds=300)
def devices_come_and_go_and_no_others_can_be_opened(vm):
    """A container has the device that it asks for by the rules of cgroup v2, waits for it, and restarts when it is back."""
    vm.run("modprobe zram num_devices=1")
    added = int(vm.out("cat /sys/class/zram-control/hot_add"))
    remove = f"echo {added} >/sys/class/zram-control/hot_remove"
    vm.run(remove)
    annotation = f"  annotations: {{coracle.dev/devices: '/dev/zram{added}:/dev/disk:rw:restart'}}\n"
    # The default capabilities let it make nodes; opening them is another matter.
    vm.manifest("disk", pod("disk").replace("spec:\n", "", 1).replace("metadata: {name: disk, labels: {app: disk}}", f"metadata:\n  name: disk\n{annotation}spec:"))
    vm.wait_pod("disk", "waiting for its device", lambda pod: "DeviceMissing" in str(pod["status"]))
    equal("the number of the new device", vm.out("cat /sys/class/zram-control/hot_add"), str(added))
    vm.wait_running("disk", seconds=90)
    vm.run("coracle exec disk -- sh -c 'head -c 0 /dev/disk && test -b /dev/disk'")
    major, minor = vm.out("stat -c '%t %T' /dev/vda").split()
    inside = f"mknod /tmp/vda b {int(major, 16)} {int(minor, 16)} && head -c 1 /tmp/vda"
    refused = vm.run(f"coracle exec disk -- sh -c '{inside}'", check=False)
    if refused.status == 0 or "peration not permitted" not in refused.err:
        raise Failed(f"the node's disk: {refused.status} {refused.err}")
    condition = lambda wanted: lambda pod: any(
        c["type"] == "DevicesReady" and c["status"] == wanted for c in pod["status"]["conditions"]
    )
    vm.run(remove)
    gone = vm.wait_pod("disk", "without its device", condition("False"))
    equal("restarts without it", gone["status"]["containerStatuses"][0]["restartCount"], 0)
    vm.run("cat /sys/class/zram-control/hot_add")
    back = lambda pod: condition("True")(pod) and pod["status"]["containerStatuses"][0]["restartCount"] == 1
    vm.wait_pod("disk", "restarted with its device", back, seconds=90)
    vm.run("coracle exec disk -- head -c 0 /dev/disk")
    vm.pods_gone()
    vm.run(remove)


OWN_IDS = """  hostUsers: false
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: srv, hostPath: {path: /srv/own, type: DirectoryOrCreate}}"""

OWN_MOUNTS = """    securityContext: {procMount: Unmasked, capabilities: {add: [SYS_ADMIN]}, seccompProfile: {type: Unconfined}}
    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: srv, mountPath: /srv, readOnly: true}]"""


@scenario(seconds=300)
def pods_have_ids_of_their_own(vm):
    """`hostUsers: false` on cgroup v2 and with AppArmor: ids, volumes, an own /proc, and what this kernel cannot show."""
    vm.manifest("own", pod("own", spec=OWN_IDS, container=OWN_MOUNTS))
    vm.wait_running("own", seconds=90)
    first = int(vm.out("coracle exec own -- cat /proc/self/uid_map").split()[1])
    equal("the ids are none of the node's", first >= 65536, True)
    equal("the container's user on the node", vm.out(f"stat -c %u /proc/{main_pid(vm, 'own')}"), str(first))
    vm.run("coracle exec own -- touch /scratch/file")
    place = "/var/lib/coracle/pods/*/volumes/*/scratch/file"
    equal("its file on the node", vm.out(f"stat -c %u {place} 2>/dev/null || find /var/lib/coracle/pods -name file -exec stat -c %u {{}} +"), "0")
    vm.run("coracle exec own -- sh -c 'mkdir /tmp/proc && mount -t proc proc /tmp/proc && test -d /tmp/proc/1'")
    for inside in ("mount -o remount,bind,rw /srv && touch /srv/x", "mknod /tmp/vda b 254 0", "echo 1 >/proc/sys/kernel/panic", "echo b >/proc/sysrq-trigger"):
        if vm.run(f"coracle exec own -- sh -c '{inside}'", check=False).status == 0:
            raise Failed(f"a container of other ids may do this: {inside}")
    limits = vm.out("coracle exec own -- cat /sys/fs/cgroup/pids.max")
    equal("its own cgroup", limits, "max")
    vm.run("systemctl restart coracle", seconds=60)
    vm.run("coracle exec own -- kill 1", check=False)
    restarted = lambda found: found["status"]["containerStatuses"][0]["restartCount"] == 1 and found["status"]["containerStatuses"][0]["ready"]
    vm.wait_pod("own", "restarted", restarted, seconds=90)
    equal("the ids after a restart", vm.out("coracle exec own -- cat /proc/self/uid_map").split()[1], str(first))
    # A tmpfs shows other ids from Linux 6.3 on.
    memory = "  hostUsers: false\n  volumes: [{name: memory, emptyDir: {medium: Memory}}]"
    vm.manifest("memory", pod("memory", spec=memory, container="    volumeMounts: [{name: memory, mountPath: /memory}]"))
    version = tuple(int(part) for part in vm.out("uname -r").split("-")[0].split(".")[:2])
    if version >= (6, 3):
        vm.wait_running("memory")
    else:
        waits = lambda found: "a tmpfs can from Linux 6.3 on" in str(found["status"])
        vm.wait_pod("memory", "waiting, with the reason", waits)
