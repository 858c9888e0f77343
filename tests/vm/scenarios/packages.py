"""The Debian package and the system extension: installation, upgrade, removal."""

from catalogue import scenario
from machine import Failed

from scenarios.node import agent_pid, equal, main_pid, pod

# Everything of coracle that may be on a machine, apart from what other packages own.
LEFT = (
    "ls -d /usr/bin/coracle* /usr/local/bin/coracle* /usr/*/share/man/man1/coracle* /usr/share/man/man1/coracle* /etc/coracle /run/coracle "
    "/var/log/pods /etc/systemd/system/*coracle* /usr/lib/systemd/system/*coracle* /etc/systemd/system/*/*coracle* "
    "/usr/lib/tmpfiles.d/coracle* /etc/tmpfiles.d/coracle.conf /run/systemd/logind.conf.d/*coracle* "
    "/sys/fs/cgroup/system.slice/coracle* /var/lib/systemd/deb-systemd-helper-*/*coracle* /usr/share/*/coracle* 2>/dev/null; "
    "ls -A /var/lib/coracle 2>/dev/null | grep -v lost+found; grep coracle /proc/mounts | grep -v ' /var/lib/coracle '; "
    "ls /sys/class/net | grep -v lo; nft list tables; true"
)


def dpkg(vm, words, seconds=180):
    """dpkg without a terminal: it cannot ask."""
    return vm.out(f"dpkg {words} </dev/null 2>&1", seconds=seconds)


def imported(vm):
    vm.until("the image to be imported", "coracle get images", lambda out: "busybox" in out)


@scenario(seconds=360)
def a_package_replaces_an_installation_and_is_upgraded_under_running_pods(vm):
    """The package takes over from `coracle install`, then a later one from it: settings and pods stay, no unit is there twice."""
    vm.manifest("steady", pod("steady"))
    vm.wait_running("steady")
    pid, agent = main_pid(vm, "steady"), agent_pid(vm)
    vm.run("echo '# mine' >>/etc/coracle/config.yaml")
    for package in ("now", "later"):
        said = dpkg(vm, f"-i /payload/packages/{package}.deb")
        if agent_pid(vm) in (agent, "0"):
            raise Failed(f"the agent was not replaced: {said}")
        agent = agent_pid(vm)
        vm.wait_running("steady")
        equal("the pod's process", main_pid(vm, "steady"), pid)
        equal("the agent's program", vm.out(f"readlink /proc/{agent}/exe"), "/usr/bin/coracle")
        equal("the end of the settings", vm.out("tail -n 1 /etc/coracle/config.yaml"), "# mine")
        units = "systemctl show -p FragmentPath --value coracle.service coracle-pods.service | sed -n 's,^/usr/,/,; /./p'"
        equal("the units", vm.out(units).split(), [f"/lib/systemd/system/coracle{unit}.service" for unit in ("", "-pods")])
        equal("units", vm.out("systemctl is-enabled coracle; systemctl is-active coracle-pods").split(), ["enabled", "active"])
    equal("stray files", vm.out("ls -d /usr/local/bin/coracle /etc/systemd/system/coracle* /etc/coracle/*package 2>/dev/null; true"), "")
    version = vm.out("dpkg-query -W -f '${Version}' coracle")
    if "later" not in version:
        raise Failed(f"the version is {version}")
    refused = vm.run("/payload/coracle install --now", check=False)
    if refused.status != 1 or "installed by a package" not in refused.err:
        raise Failed(f"install beside the package: {refused.status} {refused.err}")
    equal("changed files", vm.out("dpkg --verify coracle | grep -v ' c /etc/coracle/config.yaml$' | grep -v /usr/share/doc/; true"), "")


@scenario(seconds=360)
def removing_keeps_data_and_purging_only_what_is_not_coracles(vm):
    """Removal stops pods in order and keeps their data; a purge leaves nothing but the data of hostPath volumes."""
    dpkg(vm, "-i /payload/packages/now.deb")
    vm.run("mkdir -p /srv/host && echo precious >/srv/host/data")
    vm.manifest(
        "last",
        pod(
            "last",
            spec="  volumes: [{name: node, hostPath: {path: /srv/host}}, {name: memory, emptyDir: {medium: Memory}}]",
            container="    volumeMounts: [{name: node, mountPath: /node}, {name: memory, mountPath: /memory}]",
            command="trap 'sleep 1; echo bye >>/node/last-words; exit 0' TERM; while :; do sleep 1 & wait; done",
        ),
    )
    vm.wait_running("last")
    dpkg(vm, "-r coracle")
    equal("the pod's last words", vm.out("cat /srv/host/last-words"), "bye")
    equal("processes", vm.run("pgrep -f coracle", check=False).out, "")
    vm.run("test -f /etc/coracle/manifests/last.yaml && test -d /var/lib/coracle/pods && test ! -e /run/coracle")
    dpkg(vm, "-i /payload/packages/later.deb")
    vm.wait_running("last")
    # What an administrator, or an agent that was killed, may have left mounted.
    vm.run("mkdir -p '/var/lib/coracle/pods/left over' && mount --bind /srv/host '/var/lib/coracle/pods/left over'")
    dpkg(vm, "-P coracle")
    equal("the volume's data", vm.out("cat /srv/host/data /srv/host/last-words").split(), ["precious", "bye", "bye"])
    equal("what is left", vm.out(LEFT), "")
    equal("failed units", vm.out("systemctl --failed --no-legend --plain; systemctl status coracle 2>&1 | grep -c loaded; true"), "0")


@scenario(seconds=120)
def a_system_extension_brings_the_agent(vm):
    """systemd-sysext lays the image over /usr: units, settings and agent are there, and a pod runs."""
    vm.run("! command -v coracle || dpkg -P coracle && rm -f /usr/local/bin/coracle /etc/systemd/system/*coracle*")
    vm.run("mkdir -p /run/extensions && cp /payload/packages/coracle.raw /run/extensions/ && systemd-sysext merge")
    vm.run("systemctl daemon-reload && systemd-tmpfiles --create && cmp /etc/coracle/config.yaml /usr/share/coracle/config.yaml")
    vm.run("mkdir -p /etc/coracle/images && cp /payload/images/* /etc/coracle/images/")
    equal("the mode of the manifests' directory", vm.out("stat -c %a /etc/coracle/manifests"), "700")
    # What a boot starts; the unit is wanted there.
    equal("the unit's target", vm.out("systemctl show -p WantedBy --value coracle"), "multi-user.target")
    vm.run("systemctl start coracle", seconds=60)
    imported(vm)
    vm.manifest("extended", pod("extended"))
    vm.wait_running("extended")
    vm.pods_gone()
    vm.run("systemctl stop coracle coracle-pods && systemd-sysext unmerge && systemctl daemon-reload", seconds=60)
    vm.run("rm -rf /etc/coracle /run/extensions/coracle.raw && ! test -e /usr/bin/coracle")
