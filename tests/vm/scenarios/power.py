"""A node that is restarted, switched off, and switched on again."""

from catalogue import scenario
from machine import Failed

from scenarios.node import equal, pod

# Well below the 90 s that systemd waits for a unit before it kills, twice.
DOWN_SECONDS = 60


@scenario(seconds=200)
def pods_start_again_after_a_reboot(vm):
    """`reboot` comes to its end in time; the same pods run again, without anybody's help."""
    vm.manifest("first", pod("first"))
    vm.manifest("second", pod("second"))
    before = {name: vm.wait_running(name) for name in ("first", "second")}
    vm.reboot(DOWN_SECONDS)
    for name, old in before.items():
        new = vm.wait_running(name)
        equal("the pod's uid", new["metadata"]["uid"], old["metadata"]["uid"])
        equal("the restart count", new["status"]["containerStatuses"][0]["restartCount"], 0)
        if new["status"]["startTime"] == old["status"]["startTime"]:
            raise Failed(f"{name} has not started anew: {new['status']['startTime']}")
    failed = vm.out("systemctl --failed --plain --no-legend")
    equal("failed units", failed, "")


@scenario(seconds=250)
def a_poweroff_ends_in_time_and_keeps_the_node(vm):
    """`poweroff` ends although a pod ignores SIGTERM; all is there when the machine is switched on again."""
    vm.manifest("stubborn", pod("stubborn", command="trap '' TERM; while :; do sleep 1000; done"))
    vm.manifest("polite", pod("polite", command="trap 'echo told to end; exit 0' TERM; while :; do sleep 1 & wait; done"))
    vm.wait_running("stubborn")
    vm.wait_running("polite")
    vm.command_and_go("systemctl poweroff")
    vm.wait_off(DOWN_SECONDS)
    vm.start()
    vm.wait_booted()
    vm.wait_running("stubborn")
    vm.wait_running("polite")
    equal("how the pod ended", vm.out("grep -rho 'told to end' /var/log/pods/default_polite_*"), "told to end")
    last = vm.out("journalctl -b -1 -o cat -u coracle.service -u coracle-pods.service -n 20")
    if "Failed" in last:
        raise Failed(f"the units did not end well: {last}")
    equal("the image", vm.out("coracle get images -o name | wc -l"), "1")
