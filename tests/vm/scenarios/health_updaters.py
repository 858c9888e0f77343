"""RAUC and Mender with the files of `examples/health`: an update stays if the required pods are Ready, else the former system is back."""

import json
import subprocess
import tempfile
from pathlib import Path

from catalogue import scenario

from scenarios import health
from scenarios.node import equal

# Continues on this file's machine.
MACHINE = health.MACHINE

EXAMPLES = health.EXAMPLE.parent
SCRIPT = EXAMPLES / "ArtifactCommit_Enter_50_coracle"
MARK_GOOD = EXAMPLES / "rauc-mark-good.service"
UNIT = "/etc/systemd/system/coracle-mark-good.service"
# It runs, so that only its probe says that it does not work.
SICK = health.required("sick", container="    readinessProbe: {exec: {command: ['false']}, periodSeconds: 1}")

RAUC_CONFIGURATION = """[system]
compatible=vm
bootloader=custom

[handlers]
bootloader-custom-backend=/usr/local/sbin/boot-loader

[keyring]
path=certificate.pem

[slot.rootfs.0]
device=/var/lib/boot-loader/a.img
type=raw
bootname=A

[slot.rootfs.1]
device=/var/lib/boot-loader/b.img
type=raw
bootname=B
"""

# RAUC asks for all but `next`.
BOOT_LOADER = """#!/bin/sh
# A boot loader's memory, in files, and its choice: the first slot that is good has one try, and is not chosen again
# unless it is marked as good meanwhile.
set -eu
cd /var/lib/boot-loader
case $1 in
get-primary) cut -d ' ' -f 1 order ;;
set-primary) case $2 in A) echo A B ;; B) echo B A ;; esac >order; echo good >"$2" ;;
get-state) if [ "$(cat "$2")" = good ]; then echo good; else echo bad; fi ;;
set-state) echo "$3" >"$2" ;;
next) for slot in $(cat order); do [ "$(cat "$slot")" != good ] || { echo tried >"$slot"; echo "$slot"; break; }; done ;;
*) exit 1 ;;
esac
sync
"""

# The command line of the machine's first boot does not say so.
OVERRIDE = "/etc/systemd/system/rauc.service.d"
BOOTED_FROM_A = "[Service]\\nExecStart=\\nExecStart=/usr/bin/rauc --mount=/run/rauc service --override-boot-slot=A"


def by_its_comment(vm, file):
    """Installs an example by the commands of its comment."""
    text = file.read_text()
    vm.write(f"/root/{file.name}", text)
    commands = [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")]
    vm.run(" && ".join(["cd /root", *commands, f"rm {file.name}"]), seconds=90)


def waits(vm, old, new):
    """Changes how long the installed unit waits, from the next boot on."""
    vm.run(f"grep -q 'within {old}$' {UNIT} && sed -i 's/within {old}$/within {new}/' {UNIT}")


def slots(vm):
    """The slot that RAUC is booted from, and what it knows of all: names as the boot loader has them."""
    status = json.loads(vm.out("rauc status --output-format=json", seconds=60))
    known = {slot["bootname"]: slot["boot_status"] for part in status["slots"] for slot in part.values()}
    return status["booted"], known


def boot_next(vm):
    """What happens when a machine that is not well is switched off and on: the boot loader chooses."""
    # Before and not after, because its files are on a disk of the machine.
    slot = vm.out("boot-loader next")
    vm.kernel = f"rauc.slot={slot}"
    vm.power_cut()
    vm.start()
    vm.wait_booted()
    return slot


def ends_well(vm, unit):
    """Waits until a unit that checks the boot has ended; returns whether it succeeded."""
    ended = lambda state: state in ("active", "failed")
    return vm.until(f"{unit} to end", f"systemctl show -p ActiveState --value {unit}", ended, seconds=150) == "active"


@scenario(seconds=300, on=("amd64",), thorough=True)
def mender_commits_an_artifact_only_on_a_healthy_node(vm):
    """Artifacts of the real mender-artifact with the state script: one is committed, and one is rolled back by `mender commit`."""
    vm.manifest("web", health.required("web"))
    vm.run(
        "mkdir -p /data/mender /srv/app /root/update && echo '{}' >/etc/mender/mender.conf && echo device_type=vm >/data/mender/device_type && "
        "echo artifact_name=first >/etc/mender/artifact_info && echo first >/srv/app/version && "
        "cd /root/update && echo /srv/app >dest_dir && echo version >filename && echo 644 >permissions"
    )

    def install(name, script):
        """Makes and installs an artifact of Mender's own kind `single-file`, which can be rolled back."""
        vm.write(f"/root/update/{SCRIPT.name}", script, "755")
        files = "-f version -f dest_dir -f filename -f permissions"
        make = f"mender-artifact write module-image -T single-file -t vm -n {name} -o {name}.mender {files} --script {SCRIPT.name}"
        vm.run(f"cd /root/update && echo {name} >version && {make} && mender install {name}.mender", seconds=90)
        equal("the file after the installation", vm.out("cat /srv/app/version"), name)

    def is_now(name):
        equal("the file", vm.out("cat /srv/app/version"), name)
        equal("the artifact", vm.out("mender show-artifact", seconds=60), name)

    install("second", SCRIPT.read_text())
    vm.run("mender commit", seconds=90)
    is_now("second")
    vm.manifest("sick", SICK)
    vm.wait_pod("sick", "running", lambda pod: pod["status"]["phase"] == "Running")
    install("third", SCRIPT.read_text().replace("--within 5m", "--within 1s"))
    commit = vm.run("mender commit", seconds=90, check=False)
    equal("the end of the commit", commit.status, 1)
    equal(f"the pod is named: {commit.err}", "pod default/sick" in commit.err, True)
    is_now("second")
    vm.run("rm -r /data/mender/* /etc/mender/* /srv/app /root/update")


@scenario(seconds=600, on=("amd64",), thorough=True)
def rauc_leaves_a_slot_that_was_not_marked_as_good(vm):
    """A bundle is installed, its slot booted with a required pod that is not Ready, and the former slot is booted again."""
    vm.manifest("web", health.required("web"))
    vm.run("mkdir -p /etc/rauc /root/bundle /var/lib/boot-loader")
    with tempfile.TemporaryDirectory() as folder:
        new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=updates"
        subprocess.run([*new.split(), "-keyout", "key.pem", "-out", "certificate.pem"], cwd=folder, check=True, capture_output=True)
        vm.write("/root/key.pem", Path(folder, "key.pem").read_text(), "600")
        vm.write("/etc/rauc/certificate.pem", Path(folder, "certificate.pem").read_text())
    vm.write("/etc/rauc/system.conf", RAUC_CONFIGURATION)
    vm.write("/usr/local/sbin/boot-loader", BOOT_LOADER, "755")
    vm.run("cd /var/lib/boot-loader && echo A B >order && echo tried >A && echo bad >B && truncate -s 1M a.img b.img")
    vm.run(f"mkdir {OVERRIDE} && printf '{BOOTED_FROM_A}' >{OVERRIDE}/slot.conf")
    by_its_comment(vm, MARK_GOOD)
    vm.run("systemctl start coracle-mark-good", seconds=150)
    equal("the slots at first", slots(vm), ("A", {"A": "good", "B": "bad"}))
    manifest = "[update]\\ncompatible=vm\\nversion=2\\n[bundle]\\nformat=verity\\n[image.rootfs]\\nfilename=system.img\\n"
    vm.run(
        f"cd /root/bundle && {{ echo the second system; head -c 16K /dev/urandom; }} >system.img && printf '{manifest}' >manifest.raucm && "
        "rauc --cert=/etc/rauc/certificate.pem --key=/root/key.pem bundle . /root/second.raucb && rauc install /root/second.raucb",
        seconds=120,
    )
    vm.run("cmp -n 16384 /root/bundle/system.img /var/lib/boot-loader/b.img")
    # The other system has a pod that does not get ready.
    vm.manifest("sick", SICK)
    waits(vm, "5m", "5s")
    vm.run(f"rm -r {OVERRIDE}")
    equal("the slot of the first boot", boot_next(vm), "B")
    equal("that boot is good", ends_well(vm, "coracle-mark-good"), False)
    # Not because all pods were late.
    vm.wait_running("web", seconds=120)
    equal("a second check", vm.run("systemctl start coracle-mark-good", seconds=90, check=False).status, 1)
    said = vm.out("journalctl --sync; journalctl -b -u coracle-mark-good -o cat | grep '^not healthy: ' | tail -n 1")
    equal(f"only the pod is named: {said}", said.startswith("not healthy: pod default/sick: ") and "web" not in said, True)
    equal("the slots without a good boot", slots(vm), ("B", {"A": "good", "B": "bad"}))
    vm.run("rm /etc/coracle/manifests/sick.yaml")
    waits(vm, "5s", "5m")
    equal("the slot of the second boot", boot_next(vm), "A")
    equal("the former boot is good", ends_well(vm, "coracle-mark-good"), True)
    equal("the slots at last", slots(vm), ("A", {"A": "good", "B": "bad"}))
    history = vm.out("coracle healthcheck --history")
    equal(f"why is in the former system, too: {history}", "pod default/sick: " in history, True)
    vm.kernel = ""
    vm.run(
        "systemctl -q disable coracle-mark-good; systemctl -q unmask rauc-mark-good; systemctl stop rauc; rm -r "
        f"{UNIT} /etc/rauc /root/bundle /root/key.pem /root/second.raucb /var/lib/boot-loader /usr/local/sbin/boot-loader && systemctl daemon-reload",
        seconds=90,
    )
