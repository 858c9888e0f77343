"""ConfigMaps, Secrets and claims on a machine whose power fails."""

import random
import time

from catalogue import scenario
from machine import Failed

from scenarios.node import equal, pod
from scenarios.power import DOWN_SECONDS, node_events

KEYS = 6

# Says when it sees files of different turns (none are left in a folder that was replaced since it was entered); adds a line to the claim for each turn of its own.
READER = f"""
number=$(tail -n 1 /claim/lines 2>/dev/null); number=${{number:-0}}
while :; do
    cd /config/..data || exit 1
    seen=$(cat key0 key{KEYS - 1} | sort -u | wc -l)
    [ "$seen" -le 1 ] || echo "files of $seen turns"
    cd /
    number=$((number + 1)); echo $number >>/claim/lines; sync /claim/lines
done"""

VOLUMES = """  volumes:
  - {name: config, configMap: {name: turns}}
  - {name: claim, persistentVolumeClaim: {claimName: data}}"""

MOUNTS = "    volumeMounts: [{name: config, mountPath: /config}, {name: claim, mountPath: /claim}]"

CLAIM = """---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
"""


def document(turn):
    """A ConfigMap whose keys all have the same value, and a Secret."""
    data = ", ".join(f"key{number}: {turn}" for number in range(KEYS))
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: turns}}\ndata: {{{data}}}\n"


SECRET = """apiVersion: v1
kind: Secret
metadata: {name: broker}
stringData: {password: hunter2}
"""

VARIABLE = "    env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: broker, key: password}}}]"


@scenario(seconds=400, thorough=True)
def an_encrypted_secret_is_read_also_after_a_reboot_and_by_no_other_machine(vm):
    """`coracle secret encrypt` with the host's key; a reboot; and a machine without that key."""
    vm.write("/root/broker.yaml", SECRET)
    vm.run("coracle secret encrypt /root/broker.yaml -o /etc/coracle/manifests/broker.yaml && rm /root/broker.yaml")
    equal("the file's mode", vm.out("stat -c %a /etc/coracle/manifests/broker.yaml"), "600")
    vm.manifest("client", pod("client", container=VARIABLE))
    read = "coracle exec client -- sh -c 'echo $PASSWORD'"
    vm.wait_running("client", seconds=90)
    equal("the password", vm.out(read), "hunter2")
    equal("files on disk that have it", vm.out("grep -rl hunter2 /etc/coracle /var/lib/coracle /var/log || true"), "")
    vm.reboot(DOWN_SECONDS)
    vm.wait_running("client", seconds=90)
    equal("the password after a reboot", vm.out(read), "hunter2")
    # The same files on a machine with another key.
    vm.run("mv /var/lib/systemd/credential.secret /root/key && systemd-creds setup 2>/dev/null")
    vm.reboot(DOWN_SECONDS)
    why = vm.until("the file to be refused", "coracle get files --no-headers", lambda out: "Rejected" in out, seconds=90)
    if "broker.yaml" not in why:
        raise Failed(f"another file was refused: {why}")
    waits = lambda p: 'secret "broker" not found' in str(p["status"])
    vm.wait_pod("client", "waiting for its Secret", waits, seconds=90)
    vm.run("mv /root/key /var/lib/systemd/credential.secret && touch /etc/coracle/manifests/broker.yaml")
    vm.wait_running("client", seconds=120)
    equal("the password with the key", vm.out(read), "hunter2")


# Changes the ConfigMap again and again, as an editor would that loses nothing.
BUSY = """'
turn=0
cd /etc/coracle/manifests
while :; do
    turn=$((turn + 1))
    sed "s/: round[0-9]*/: round$turn/g" turns.yaml >.turns && sync .turns && mv .turns turns.yaml && sync .
done'"""


@scenario(seconds=250, count=1, thorough=True)
def power_cuts_leave_configuration_and_claims_whole(vm, count):
    """Power cuts while a ConfigMap changes and a claim is written: files are of one turn, and what was synced is there."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    vm.notes.append(f"seed {seed}, {count} power cuts")
    vm.manifest("turns", document("round0"))
    vm.manifest("reader", pod("reader", spec=VOLUMES, container=MOUNTS, command=READER) + CLAIM)
    vm.wait_running("reader")
    vm.run("sync")
    least = 0
    for number in range(count):
        vm.run("systemd-run -q --unit=busy sh -c " + BUSY)
        # The moment of the cut is the test's input, so nothing is awaited here.
        time.sleep(chance.uniform(1, 8))
        least = max(least, int(vm.out("coracle exec reader -- tail -n 1 /claim/lines || echo 0") or 0))
        vm.power_cut()
        vm.start()
        vm.wait_booted()
        vm.wait_running("reader", seconds=90)
        said = vm.run("coracle fsck", check=False, seconds=60)
        if said.status != 0:
            raise Failed(f"cut {number}: {said.out} {said.err}")
        equal("failed units", vm.out("systemctl --failed --plain --no-legend"), "")
        if "UncleanShutdown" not in node_events(vm):
            raise Failed(f"cut {number}: the node does not say so: {node_events(vm)}")
        equal("half changes seen", vm.out("grep -rh 'files of' /var/log/pods/default_reader_* || true"), "")
        # The folder of a change that was cut off is gone.
        folder = "$(dirname $(find /run/coracle/configuration/volumes -name ..data))"
        equal("folders of the volume", vm.out(f"find {folder} -mindepth 1 -maxdepth 1 -type d | wc -l"), "1")
        lines = [int(line) for line in vm.out("coracle exec reader -- cat /claim/lines").split()]
        # A line may be there twice: it was written, and the power failed before its number was read.
        missing = sorted(set(range(1, least + 1)) - set(lines))
        if missing or sorted(lines) != lines:
            raise Failed(f"cut {number}: lines up to {least} were synced; missing: {missing[:5]}, in order: {sorted(lines) == lines}")
        equal("claims", vm.out("coracle get pvc --no-headers | cut -d' ' -f1"), "data")
    vm.notes.append(f"{least} lines were synced")
    vm.pods_gone()
    vm.run("coracle volume rm --force data")
