"""Installation, upgrade and removal of coracle."""

import catalogue
from catalogue import scenario
from machine import Failed

from scenarios.node import agent_pid, equal, main_pid, pod

# The machine is shared, because booting another one would take longer than these scenarios.
MACHINE = "node"
ORDER = 2


@scenario(seconds=200)
def installing_again_changes_nothing_and_an_upgrade_keeps_pods(vm):
    """A second installation reports everything as `unchanged`; a different binary replaces the agent while its pods run."""
    again = vm.out("/payload/coracle install --now", seconds=60)
    odd = [line for line in again.splitlines() if line.split()[0] not in ("unchanged", "kept")]
    equal("changes by a second install", odd, [])
    vm.manifest("steady", pod("steady"))
    vm.wait_running("steady")
    pid, agent = main_pid(vm, "steady"), agent_pid(vm)
    # A binary that differs only in a few bytes at its end stands for another version.
    vm.run("cp /payload/coracle /tmp/newer && echo newer >>/tmp/newer && echo '# mine' >>/etc/coracle/config.yaml")
    said = vm.out("/tmp/newer install --now", seconds=90)
    if "replaced   /usr/local/bin/coracle" not in said or "restarted  coracle.service" not in said:
        raise Failed(f"the upgrade said: {said}")
    if agent_pid(vm) == agent:
        raise Failed("the agent was not replaced")
    vm.wait_running("steady")
    equal("the pod's process", main_pid(vm, "steady"), pid)
    equal("the end of the settings", vm.out("tail -n 1 /etc/coracle/config.yaml"), "# mine")
    equal("the running program", vm.out(f"tail -n 1 /proc/{agent_pid(vm)}/exe | tail -c 6"), "newer")


@scenario(seconds=60)
def an_image_of_a_system_is_prepared(vm):
    """`--root` installs everything below a folder, and changes nothing on this machine."""
    vm.run("/payload/coracle install --root /tmp/image --prefix /usr")
    vm.run("test -s /tmp/image/usr/share/man/man1/coracle.1 && test -s /tmp/image/usr/share/man/man1/coracle-shutdown.1")
    vm.run("test -x /tmp/image/usr/bin/coracle && test -d /tmp/image/etc/coracle/manifests")
    vm.run("grep -q '^ExecStart=/usr/bin/coracle run' /tmp/image/etc/systemd/system/coracle.service")
    vm.run("test -e /tmp/image/etc/systemd/system/multi-user.target.wants/coracle.service")
    vm.run("grep -q '^ExecStart=/usr/local/bin/coracle run' /etc/systemd/system/coracle.service")
    vm.run("systemd-analyze verify --man=no /etc/systemd/system/coracle.service", seconds=60)


@scenario(seconds=200)
def uninstalling_leaves_nothing(vm):
    """Uninstalling is refused while pods run; then the pods are stopped gracefully, and nothing of coracle is left."""
    vm.manifest(
        "last",
        pod(
            "last",
            spec="  volumes: [{name: node, hostPath: {path: /tmp}}]",
            container="    volumeMounts: [{name: node, mountPath: /node}]",
            command="trap 'sleep 2; echo bye >>/node/last-words; exit 0' TERM; while :; do sleep 1 & wait; done",
        ),
    )
    vm.wait_running("last")
    refused = vm.run("coracle uninstall", check=False)
    if refused.status != 1 or "pods are running: last" not in refused.err:
        raise Failed(f"uninstall ended with {refused.status}: {refused.out} {refused.err}")
    vm.wait_running("last")
    vm.run("coracle uninstall --stop-pods", seconds=60)
    equal("the pod's last words", vm.out("cat /tmp/last-words"), "bye")
    equal("processes", vm.run("pgrep -f coracle", check=False).out, "")
    vm.run("test -f /etc/coracle/manifests/last.yaml")
    # A new installation restores everything.
    catalogue.install(vm)
    vm.wait_running("last")
    vm.run("coracle uninstall --stop-pods --purge", seconds=60)
    left = vm.out(
        "ls -d /usr/local/bin/coracle /usr/local/share/man/man1/coracle* /etc/coracle /run/coracle /var/log/pods /etc/systemd/system/*coracle* "
        "/etc/tmpfiles.d/coracle.conf /etc/systemd/system/*/*coracle* /sys/fs/cgroup/system.slice/coracle* 2>/dev/null; "
        "ls -A /var/lib/coracle 2>/dev/null | grep -v lost+found; grep coracle /proc/mounts | grep -v ' /var/lib/coracle '; "
        "ls /sys/class/net | grep -v lo; nft list tables; true"
    )
    equal("what is left", left, "")
    # What comes next on this machine needs coracle.
    catalogue.install(vm)
