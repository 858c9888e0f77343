"""A system that is an image: its root is a squashfs, so that /etc cannot be written to, and /var is in memory but for coracle's disk.
Later the same image with an overlay in memory over it."""

from catalogue import scenario

from scenarios.node import equal, pod

OPTIONS = {"root": "squash", "kernel": "vm.root=squash systemd.volatile=state"}
# What can be written to: the agent's settings and manifests are beside its state.
UNIT = """[Service]
ExecStart=
ExecStart=/usr/bin/coracle run --config /var/lib/coracle/box/config.yaml --manifests /var/lib/coracle/box/manifests --preload /var/lib/coracle/box/images
"""
MANIFESTS = "/var/lib/coracle/box/manifests"


def PREPARE(vm):
    vm.run("mkdir -p /run/extensions && cp /payload/packages/coracle.raw /run/extensions/ && systemd-sysext merge")
    vm.run(f"mkdir -p {MANIFESTS} /var/lib/coracle/box/images && cp /usr/share/coracle/config.yaml /var/lib/coracle/box/")
    vm.run("cp /payload/images/* /var/lib/coracle/box/images/")
    begin(vm)


def begin(vm):
    vm.run("mkdir -p /run/systemd/system/coracle.service.d")
    vm.write("/run/systemd/system/coracle.service.d/box.conf", UNIT)
    vm.run("systemctl daemon-reload && systemd-tmpfiles --create coracle.conf; systemctl start coracle", seconds=60)
    vm.until("the image to be imported", "coracle get images", lambda out: "busybox" in out)


@scenario(seconds=150)
def pods_run_on_a_squashfs_root(vm):
    """Nothing is written to /etc; pods with the host's network, with volumes and on the bridge run, and start again after a reboot."""
    equal("the root", vm.out("findmnt -no FSTYPE /"), "squashfs")
    equal("/var", vm.out("findmnt -no FSTYPE /var"), "tmpfs")
    vm.run("! touch /etc/coracle 2>/dev/null")
    volumes = "  volumes: [{name: node, hostPath: {path: /var/lib/coracle/box}}, {name: empty, emptyDir: {}}]"
    mounts = "    volumeMounts: [{name: node, mountPath: /node}, {name: empty, mountPath: /empty}]"
    vm.write(f"{MANIFESTS}/one.yaml", pod("one", spec=volumes, container=mounts))
    vm.write(f"{MANIFESTS}/host.yaml", pod("host", spec="  hostNetwork: true"))
    vm.wait_running("one")
    vm.wait_running("host")
    vm.run("coracle exec one -- sh -c 'echo kept >/node/data && echo >/empty/a && echo >/tmp/a'")
    vm.reboot(60)
    # The extension is in /run: what a real image has below /var/lib/extensions or in itself.
    PREPARE(vm)
    vm.wait_running("one")
    equal("the data", vm.out("coracle exec one -- cat /node/data"), "kept")
    vm.run(f"rm {MANIFESTS}/*")
    vm.until("all pods to go", "coracle get pods -A -o name", lambda out: out == "")


@scenario(seconds=150, thorough=True)
def pods_run_below_an_overlay_root(vm):
    """`coracle install` works as on any machine. State on the overlay itself cannot hold layers: the agent says so, and doctor what to do."""
    vm.kernel = "vm.root=overlay"
    vm.reboot(60)
    equal("the root", vm.out("findmnt -no FSTYPE /"), "overlay")
    vm.run("mkdir -p /etc/coracle/images && cp /payload/images/* /etc/coracle/images/")
    vm.run("/payload/coracle install --now", seconds=90)
    vm.until("the image to be imported", "coracle get images", lambda out: "busybox" in out)
    vm.manifest("one", pod("one"))
    vm.wait_running("one")
    vm.pods_gone()
    vm.run("systemctl stop coracle coracle-pods && umount /var/lib/coracle", seconds=60)
    doctor = vm.run("coracle doctor", check=False).out
    equal(f"the overlay in {doctor}", "overlay" in doctor, True)
    vm.run("mount -t tmpfs state /var/lib/coracle && systemctl start coracle", seconds=60)
    vm.until("the image to be imported", "coracle get images", lambda out: "busybox" in out)
    vm.manifest("memory", pod("memory"))
    vm.wait_running("memory")
    vm.pods_gone()
