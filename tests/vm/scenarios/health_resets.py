"""greenboot, watchdog(8) and a watchdog of the kernel, with the files of `examples/health`: a machine that is not well boots again."""

import subprocess
import time

from catalogue import scenario
from machine import Failed

from scenarios import health
from scenarios.health_updaters import EXAMPLES, SICK, ends_well
from scenarios.node import equal

# Continues on this file's machine.
MACHINE = health.MACHINE

GREENBOOT = "greenboot@0.0.1"
CHECK = EXAMPLES / "greenboot-50-coracle.sh"
TEST = EXAMPLES / "watchdog-test-coracle"
FED_BY_SYSTEMD = EXAMPLES / "watchdog.conf"

# As in greenboot's later releases: that of this one is ordered before sysinit.target.
UNIT = """[Unit]
Before=boot-complete.target
RequiresMountsFor=/boot /etc /payload
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/payload/bin/greenboot health-check
PrivateMounts=yes
[Install]
WantedBy=multi-user.target
"""

# The variables of GRUB's environment, in a file.
EDITENV = """#!/bin/sh
set -eu
file=$1
case $2 in
list) cat "$file" ;;
set | unset)
    { grep -v "^${3%%=*}=" "$file" || true; } >"$file.new"
    [ "$2" = unset ] || echo "$3" >>"$file.new"
    mv "$file.new" "$file"
    sync ;;
esac
"""

# What greenboot's script for GRUB does at each boot: it counts down.
COUNT = """[Unit]
Before=greenboot-healthcheck.service
RequiresMountsFor=/boot
[Service]
Type=oneshot
ExecStart=/bin/sh -euc 'n=$(sed -n s/^boot_counter=//p /boot/grub2/grubenv); [ -z "$n" ] || grub2-editenv /boot/grub2/grubenv set boot_counter=$((n - 1))'
[Install]
WantedBy=multi-user.target
"""


def PAYLOAD(folder, cache):
    """Adds greenboot, which Debian does not have, from the registry of crates."""
    own = cache / "greenboot"
    if not (own / "bin" / "greenboot").exists():
        # Away from the project, whose settings for cargo are not this program's.
        subprocess.run(["cargo", "install", "--quiet", "--locked", "--root", own, GREENBOOT], cwd="/", check=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "greenboot").write_bytes((own / "bin" / "greenboot").read_bytes())
    (folder / "bin" / "greenboot").chmod(0o755)


def variables(vm):
    return dict(line.split("=", 1) for line in vm.out("grub2-editenv /boot/grub2/grubenv list").splitlines())


@scenario(seconds=600, on=("amd64",), thorough=True)
def greenboot_goes_back_when_its_tries_are_used_up(vm):
    """A boot with a required pod that is not Ready is tried again, and after the last try greenboot asks for the former system."""
    vm.manifest("web", health.required("web"))
    vm.run("mkdir -p /boot /etc/motd.d /etc/greenboot/check/required.d && echo GREENBOOT_MAX_BOOT_ATTEMPTS=1 >/etc/greenboot/greenboot.conf")
    # A file system of its own, with Debian's options: greenboot remounts it.
    vm.run("truncate -s 4M /var/lib/boot.img && mkfs.ext2 -q /var/lib/boot.img && echo '/var/lib/boot.img /boot ext2 loop,errors=remount-ro 0 0' >>/etc/fstab && mount /boot")
    vm.run("mkdir /boot/grub2 && : >/boot/grub2/grubenv")
    vm.write("/usr/local/bin/grub2-editenv", EDITENV, "755")
    vm.write("/usr/local/bin/bootc", "#!/bin/sh\necho \"$@\" >>/var/lib/bootc\n", "755")
    vm.write("/etc/greenboot/check/required.d/50-coracle.sh", CHECK.read_text(), "755")
    for name, text in (("greenboot-healthcheck", UNIT), ("boot-count", COUNT)):
        vm.write(f"/etc/systemd/system/{name}.service", text)
    vm.run("systemctl -q daemon-reload; systemctl -q enable greenboot-healthcheck boot-count")
    vm.reboot(120)
    equal("the boot is good", ends_well(vm, "greenboot-healthcheck"), True)
    equal("GRUB's variables", variables(vm), {"boot_success": "1"})

    vm.manifest("sick", SICK)
    vm.run("sed -i 's/within 5m$/within 5s/' /etc/greenboot/check/required.d/50-coracle.sh")
    vm.command_and_go("systemctl reboot")
    vm.wait_off(120)
    # The first try ends with a reboot by greenboot.
    vm.start()
    vm.wait_booted()
    vm.wait_off(150)
    vm.start()
    vm.wait_booted()
    equal("the second boot is good", ends_well(vm, "greenboot-healthcheck"), False)
    equal("GRUB's variables without a good boot", variables(vm), {"boot_success": "0", "boot_counter": "0"})
    said = vm.out("journalctl --sync; journalctl -b -u greenboot-healthcheck -o cat | grep '^not healthy: '")
    equal(f"the pod is named: {said}", "pod default/sick: " in said, True)
    vm.command_and_go("/payload/bin/greenboot rollback")
    vm.wait_off(120)
    # The former system does not have that pod.
    vm.start()
    vm.wait_booted()
    equal("what was asked for", vm.out("cat /var/lib/bootc"), "rollback")
    vm.run("rm /etc/coracle/manifests/sick.yaml && systemctl restart greenboot-healthcheck", seconds=150)
    equal("GRUB's variables at last", variables(vm), {"boot_success": "1"})
    vm.run("systemctl -q disable greenboot-healthcheck boot-count; umount /boot; sed -i /boot.img/d /etc/fstab")
    vm.run("rm -r /etc/greenboot /etc/motd.d /etc/systemd/system/greenboot-healthcheck.service /etc/systemd/system/boot-count.service /usr/local/bin/grub2-editenv /usr/local/bin/bootc /var/lib/bootc /var/lib/boot.img && systemctl daemon-reload")


@scenario(seconds=300, on=("amd64",), thorough=True)
def watchdog_reboots_a_machine_that_stays_unhealthy(vm):
    """watchdog(8) of Debian asks by the script of its test directory, and reboots when a required pod has not been Ready for long."""
    vm.manifest("web", health.required("web"))
    vm.run("mkdir -p /etc/watchdog.d")
    vm.write("/etc/watchdog.d/coracle", TEST.read_text().replace("--within 60s", "--within 20s"), "755")
    lines = [line.removeprefix("#   ") for line in TEST.read_text().splitlines() if line.startswith("#   ")]
    # This machine has no such device.
    settings = [line.replace("= 600", "= 10") for line in lines if not line.startswith("watchdog-device")]
    equal("settings of the comment", len(settings), 2)
    vm.write("/etc/watchdog.conf", "\n".join([*settings, "interval = 2", ""]))
    vm.wait_running("web", seconds=120)
    vm.run("systemctl -q unmask watchdog && systemctl start watchdog")
    # It has asked, and all is well.
    vm.until("a test", "cat /var/log/watchdog/*coracle* 2>/dev/null; pgrep -f 'watchdog.d/coracle|coracle healthcheck'", seconds=60)
    vm.manifest("sick", SICK)
    vm.wait_off(150)
    vm.start()
    vm.wait_booted()
    vm.run("rm /etc/coracle/manifests/sick.yaml; systemctl -q mask --now watchdog; rm /etc/watchdog.d/coracle")
    vm.run("coracle healthcheck --within 60s", seconds=90)


@scenario(seconds=300, on=("amd64",), thorough=True)
def a_watchdog_resets_a_machine_whose_systemd_hangs(vm):
    """systemd feeds the kernel's software watchdog; once it has crashed nothing does, and the pod runs again after the reset."""
    vm.manifest("web", health.required("web"))
    boot = vm.out("cat /proc/sys/kernel/random/boot_id")
    uid = vm.wait_running("web", seconds=120)["metadata"]["uid"]
    vm.run("modprobe softdog && mkdir -p /etc/systemd/system.conf.d")
    vm.write("/etc/systemd/system.conf.d/watchdog.conf", FED_BY_SYSTEMD.read_text())
    vm.run("systemctl daemon-reexec")
    vm.until("systemd to feed it", "cat /sys/class/watchdog/watchdog0/state", lambda out: out == "active")
    equal("its time", vm.out("cat /sys/class/watchdog/watchdog0/timeout"), "30")
    begin = time.monotonic()
    # It freezes, and has fed the watchdog at most half of its time ago.
    vm.run("kill -SEGV 1")
    vm.wait_off(90)
    if time.monotonic() - begin < 10:
        raise Failed("the machine went down before the watchdog's time")
    vm.start()
    vm.wait_booted()
    if vm.out("cat /proc/sys/kernel/random/boot_id") == boot:
        raise Failed("it is the same boot")
    vm.run("rm /etc/systemd/system.conf.d/watchdog.conf")
    vm.run("coracle healthcheck --within 60s", seconds=90)
    equal("the pod", vm.wait_running("web")["metadata"]["uid"], uid)
