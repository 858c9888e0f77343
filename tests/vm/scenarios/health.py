"""The health of a boot, as systemd asks for it, and the black box over a real power cut."""

import json
import time
from pathlib import Path

from catalogue import scenario
from machine import Failed

from scenarios.node import equal, pod
from scenarios.power import DOWN_SECONDS

# Continues on this file's machine.
MACHINE = "order"

EXAMPLE = Path(__file__).parents[3] / "examples" / "health" / "coracle-healthcheck.service"
UNIT = "/etc/systemd/system/coracle-healthcheck.service"


def required(name, **more):
    """A pod that the health of the boot depends on."""
    return pod(name, **more).replace("metadata: {", 'metadata: {annotations: {coracle.dev/required: "true"}, ', 1)


def result(vm):
    """How the check of this boot went, once it is over."""
    shown = vm.until(
        "the check to be over",
        "systemctl show -p ActiveState --value coracle-healthcheck",
        lambda out: out in ("active", "failed"),
        200,
    )
    complete = vm.out("systemctl is-active boot-complete.target || true")
    return shown, complete


@scenario(seconds=600)
def a_boot_is_complete_only_with_its_required_pods_and_leaves_why_not(vm):
    """boot-complete.target is reached with a healthy required pod, and not with a broken one: the reason is on disk after
    the next boot. The black box has the power cut and the crashes, and the disk is written once a minute at most."""
    vm.write(UNIT, EXAMPLE.read_text())
    # Something has to ask for the target: on a real machine it is systemd-bless-boot, or the program of upgrades.
    vm.run("systemctl daemon-reload && systemctl -q enable coracle-healthcheck && systemctl add-wants -q multi-user.target boot-complete.target", seconds=90)
    vm.manifest("web", required("web"))
    vm.wait_running("web")
    vm.reboot(DOWN_SECONDS)
    equal("the check with a healthy pod", result(vm), ("active", "active"))
    equal("the history", vm.out("coracle healthcheck --history"), "no boot is recorded as not healthy")

    vm.manifest("bad", required("bad", command="echo this is why >&2; exit 7", spec="  restartPolicy: Always\n"))
    # A broken one is waited for, too.
    vm.write(UNIT, EXAMPLE.read_text().replace("--within 5m", "--within 15s"))
    vm.until("the box", "coracle blackbox bad --logs", lambda out: "this is why" in out)
    # The cut comes after what was written has reached the disk.
    vm.run("sync -f /etc/coracle; sync -f /var/lib/coracle")
    vm.power_cut()
    vm.start()
    vm.wait_booted()
    equal("the check with a broken pod", result(vm), ("failed", "inactive"))
    box = json.loads(vm.out("coracle blackbox -o json"))["items"]
    crashes = [entry for entry in box if entry["pod"] == "bad"]
    equal("the crashes", [(e["exitCode"], e["output"]) for e in crashes], [(7, "this is why\n")])

    # A minute and a half of crashes: the first write may be at once, the others are a minute apart.
    vm.until("the power cut in the box", "coracle blackbox", lambda out: "UncleanShutdown" in out, 90)
    times = set()
    begin = time.monotonic()
    while time.monotonic() - begin < 25:
        times.add(vm.out("stat -c %y /var/lib/coracle/black-box"))
        vm.run("coracle retry bad || true")
    vm.notes.append(f"the black box was written {len(times) - 1} times in 25 s of crashes")
    if len(times) > 2:
        raise Failed(f"the box is written too often: {sorted(times)}")

    vm.run("rm /etc/coracle/manifests/bad.yaml")
    vm.write(UNIT, EXAMPLE.read_text())
    vm.reboot(DOWN_SECONDS)
    equal("the check without it", result(vm), ("active", "active"))
    boots = json.loads(vm.out("coracle healthcheck --history -o json"))
    equal("unhealthy boots", len({boot["bootId"] for boot in boots}), 1)
    if not any(problem.startswith("pod default/bad: ") for boot in boots for problem in boot["problems"]):
        raise Failed(f"the reason is not recorded: {boots}")
    vm.run(f"systemctl -q disable coracle-healthcheck; rm {UNIT} /etc/systemd/system/multi-user.target.wants/boot-complete.target; systemctl daemon-reload", seconds=90)
