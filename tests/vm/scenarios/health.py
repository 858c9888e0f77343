"""The health of a boot as systemd asks for it, and the black box over a real power cut."""

import json
import time
from pathlib import Path

from catalogue import scenario
from machine import Failed

from scenarios import order
from scenarios.node import equal, pod

# Continues on this file's machine.
MACHINE = order.__name__.rsplit(".", 1)[1]

EXAMPLE = Path(__file__).parents[3] / "examples" / "health" / "coracle-healthcheck.service"
UNIT = "/etc/systemd/system/coracle-healthcheck.service"
BOX = "/var/lib/coracle/black-box"
CRASHES = "echo this is why >&2; exit 7"


def required(name, **more):
    """A pod that the health of the boot depends on."""
    return pod(name, **more).replace("labels: {", 'annotations: {coracle.dev/required: "true"}, labels: {', 1)


def restarts(vm):
    return vm.pod("bad")["status"]["containerStatuses"][0]["restartCount"]


def box(vm):
    return json.loads(vm.out("coracle blackbox -o json"))["items"]


@scenario(seconds=500)
def a_boot_is_complete_with_its_required_pods_and_leaves_why_not(vm):
    """boot-complete.target follows the required pods. Why it was not reached, the power cut and the exits before it are
    shown in the next boot; crashes cause one write a minute."""
    vm.write(UNIT, EXAMPLE.read_text().replace("--within 5m", "--within 5s"))
    vm.run("systemctl daemon-reload && systemctl -q enable coracle-healthcheck", seconds=90)
    vm.manifest("web", required("web"))
    vm.manifest("bad", required("bad", command=CRASHES))
    vm.wait_running("web")
    vm.until("the box", "coracle blackbox bad --logs", lambda out: "this is why" in out, 90)
    equal("a start of the target", vm.run("systemctl start boot-complete.target", check=False, seconds=60).status, 1)
    equal("the target", vm.out("systemctl is-active boot-complete.target || true"), "inactive")
    # At the next boot everything wants the target, as systemd-bless-boot or an updater does; the broken pod does not count.
    vm.write(UNIT, EXAMPLE.read_text())
    vm.run("systemctl daemon-reload && systemctl add-wants -q multi-user.target boot-complete.target", seconds=90)
    vm.manifest("bad", pod("bad", command=CRASHES))
    # As if the last write were long ago, so that the first one of the next boot comes soon.
    vm.run(f"touch -d '2 minutes ago' {BOX} && sync")
    vm.power_cut()
    vm.start()
    vm.wait_booted()
    begin, writes = time.monotonic(), []

    def crash():
        count = restarts(vm)
        vm.run("coracle retry bad || true")
        vm.wait_pod("bad", "restarted", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] > count)
        at = float(vm.out(f"stat -c %.9Y {BOX}"))
        # The entries of one write follow each other at once.
        if not writes or at - writes[-1] > 1:
            writes.append(at)

    vm.until("the boot to be complete", "systemctl is-active boot-complete.target", seconds=120)
    vm.wait_pod("bad", "started", lambda pod: pod["status"].get("containerStatuses"))
    first = restarts(vm)
    # The file has not been written in this boot yet, or what it had is there as well.
    exits = {(entry["exitCode"], entry["output"]) for entry in box(vm) if entry["pod"] == "bad"}
    equal("the exits before the cut", exits, {(7, "this is why\n")})
    while not any(entry["reason"] == "UncleanShutdown" for entry in box(vm)):
        crash()
        if time.monotonic() - begin > 150:
            raise Failed("the power cut is not in the box")
    for _ in range(3):
        crash()
    seconds, crashes = time.monotonic() - begin, restarts(vm) - first
    vm.notes.append(f"{crashes} crashes in {seconds:.0f} s after the boot: {len(writes) - 1} writes of the black box")
    if len(writes) - 1 > 1 + seconds // 60 or crashes < 3:
        raise Failed(f"{crashes} crashes in {seconds:.0f} s, the box was written at {writes}")
    cut = next(entry for entry in box(vm) if entry["reason"] == "UncleanShutdown")
    equal("the first exit is from before the cut", min(entry["firstTime"] for entry in box(vm) if entry["pod"] == "bad") < cut["time"], True)
    history = vm.out("coracle healthcheck --history")
    equal(f"pod bad is in {history}", "pod default/bad: " in history, True)
    vm.run("coracle report -o /root/report.tar.gz", seconds=120)
    equal("the report's mode", vm.out("stat -c %a /root/report.tar.gz"), "600")
    packed = vm.out("tar -xzOf /root/report.tar.gz --wildcards '*black*box*'")
    equal("the report has the box", "UncleanShutdown" in packed and "this is why" in packed, True)
    clean = f"systemctl -q disable coracle-healthcheck; rm {UNIT} /etc/systemd/system/multi-user.target.wants/boot-complete.target"
    vm.run(f"{clean}; systemctl daemon-reload; rm /root/report.tar.gz", seconds=90)
