"""Sizes of claims that the file system enforces: project quotas of ext4."""

import json

from catalogue import install, scenario

from scenarios.node import equal, pod

CLAIM = """apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: SIZE}}
---
"""
FOLDER = "/var/lib/coracle/claims/default_NAME"
MI = 1 << 20


def PREPARE(vm):
    # The boot does not wait for this mount.
    vm.run("systemctl start var-lib-coracle.mount && systemctl stop var-lib-coracle.mount", seconds=60)
    vm.run("tune2fs -O quota,project /dev/disk/by-label/coracle-data && sed -i '/coracle-data/s/defaults/prjquota/' /etc/fstab")
    vm.run("systemctl daemon-reload && systemctl start var-lib-coracle.mount", seconds=60)
    install(vm)


def user(name, claim, command="while :; do sleep 1000; done"):
    """A pod that has the claim at /data."""
    volume = f"  volumes: [{{name: v, persistentVolumeClaim: {{claimName: {claim}}}}}]"
    mount = "    volumeMounts: [{name: v, mountPath: /data}]"
    return pod(name, command=command, spec=volume, container=mount)


def claim(name, size):
    return CLAIM.replace("NAME", name).replace("SIZE", size)


def project(vm, name):
    """The number of the claim's project."""
    return json.loads(vm.out(f"cat {FOLDER.replace('NAME', name)}/claim.json"))["project"]


def write(vm, name, mib):
    """Tries to write a file of so many MiB; returns how many bytes it has then."""
    vm.run(f"coracle exec {name} -- sh -c 'rm -f /data/big; dd if=/dev/zero of=/data/big bs=1M count={mib} 2>/tmp/said; sync'", check=False)
    return int(vm.out(f"coracle exec {name} -- stat -c %s /data/big"))


@scenario(seconds=400)
def a_project_quota_limits_a_claim_and_grows_with_it(vm):
    """Writing beyond the size fails with ENOSPC; more storage takes effect at once; each claim has a project of its own."""
    vm.manifest("one", claim("one", "8Mi") + user("one", "one"))
    vm.manifest("two", claim("two", "16Mi") + user("two", "two"))
    before = vm.wait_running("one", seconds=100)
    vm.wait_running("two", seconds=100)
    if project(vm, "one") == project(vm, "two"):
        raise AssertionError("both claims have the same project")
    size = write(vm, "one", 12)
    equal("beyond the limit of 8 MiB", 7 * MI <= size <= 8 * MI, True)
    equal("the other claim", write(vm, "two", 12), 12 * MI)
    used = [line.split()[4] for line in vm.out("coracle volume ls").splitlines()[1:]]
    equal("the use of both", [amount[0] for amount in used], ["8", "1"])
    # Nothing is evicted for it, and no file is counted.
    equal("evictions", vm.out("coracle get events | grep -c Evicted || true"), "0")
    vm.manifest("one", claim("one", "20Mi") + user("one", "one"))
    vm.until("the claim to be larger", "coracle get pvc one --no-headers", lambda out: "20Mi" in out)
    equal("with more storage", write(vm, "one", 12), 12 * MI)
    equal("the same pod", vm.wait_running("one")["metadata"]["uid"], before["metadata"]["uid"])
    # A power cut at any time loses neither the size nor the number.
    numbers = [project(vm, name) for name in ("one", "two")]
    vm.run("sync")
    vm.power_cut()
    vm.start()
    vm.wait_booted()
    vm.wait_running("one", seconds=100)
    equal("the projects", [project(vm, name) for name in ("one", "two")], numbers)


@scenario(seconds=300)
def files_of_a_claim_from_before_the_quota_count(vm):
    """A claim that was counted so far is moved to a project as a whole, folders and links included."""
    vm.run("systemctl stop coracle coracle-pods && umount /var/lib/coracle", seconds=90)
    vm.run("mount -o rw /dev/disk/by-label/coracle-data /var/lib/coracle && systemctl start coracle", seconds=90)
    script = "mkdir -p /data/a/b; ln -sf /etc/passwd /data/a/link; dd if=/dev/zero of=/data/a/b/file bs=1M count=6; while :; do sleep 1000; done"
    vm.manifest("old", claim("old", "8Mi") + user("old", "old", script))
    vm.wait_running("old", seconds=100)
    vm.until("the file", "coracle exec old -- stat -c %s /data/a/b/file", lambda out: out == str(6 * MI))
    vm.run("rm /etc/coracle/manifests/old.yaml")
    vm.pods_gone()
    vm.run("systemctl stop coracle coracle-pods && umount /var/lib/coracle && mount /var/lib/coracle && systemctl start coracle", seconds=90)
    vm.manifest("old", claim("old", "8Mi") + user("old", "old"))
    vm.wait_running("old", seconds=100)
    size = write(vm, "old", 6)
    equal("2 MiB are left", MI <= size <= 2 * MI, True)
