"""CronJobs while the clock of the machine is wrong, is set, and the machine is off."""

from catalogue import scenario
from machine import Failed

from scenarios.node import IMAGE, equal

MACHINE = "node"
ORDER = 1

RUNS = "/var/tmp/cron-runs"
CRON = f"""apiVersion: batch/v1
kind: CronJob
metadata: {{name: tick}}
spec:
  schedule: "*/10 * * * *"
  timeZone: UTC
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          volumes: [{{name: out, hostPath: {{path: /var/tmp}}}}]
          containers:
          - name: main
            image: {IMAGE}
            command: [sh, -c, 'echo $HOSTNAME >>/out/cron-runs; sync']
            volumeMounts: [{{name: out, mountPath: /out}}]
"""


def runs(vm):
    """The scheduled minutes of all runs, in the order in which they ran."""
    return [int(line.split("-")[1]) for line in vm.out(f"cat {RUNS} 2>/dev/null || true").splitlines()]


def wait_runs(vm, count):
    vm.until(f"run {count}", f"cat {RUNS} 2>/dev/null | wc -l", lambda out: int(out) >= count)
    return runs(vm)


def minute(vm, text):
    return int(vm.out(f"date -u -d '{text}' +%s")) // 60


def settled(vm, count):
    """No further run is at work or comes."""
    vm.until("all runs to end", "coracle get cronjob tick -o jsonpath='{.status.active}'", lambda out: out == "")
    equal("the number of runs", len(runs(vm)), count)


@scenario(seconds=400)
def no_time_runs_twice_and_a_missed_one_once(vm):
    """The clock goes days ahead and back, the machine is off over a due time, and boots in 1970."""
    vm.run(f"rm -f {RUNS}; timedatectl set-ntp false 2>/dev/null || true")
    vm.run("date -u -s '2030-01-01 00:05:00' >/dev/null")
    vm.manifest("tick", CRON)
    vm.until("the CronJob", "coracle get cronjob tick")
    vm.run("date -u -s '2030-01-01 00:09:58' >/dev/null")
    equal("the first run", wait_runs(vm, 1), [minute(vm, "2030-01-01 00:10")])
    # Three days ahead: the last missed time, once.
    vm.run("date -u -s '2030-01-04 12:05:00' >/dev/null")
    equal("a run after the jump", wait_runs(vm, 2)[1:], [minute(vm, "2030-01-04 12:00")])
    settled(vm, 2)
    # Back to before the first run.
    vm.run("date -u -s '2030-01-01 00:04:00' >/dev/null")
    settled(vm, 2)
    vm.run("date -u -s '2030-01-04 12:09:55' >/dev/null")
    equal("the next run", wait_runs(vm, 3)[2:], [minute(vm, "2030-01-04 12:10")])
    vm.run("date -u -s '2030-01-04 12:01:05' >/dev/null")
    settled(vm, 3)
    vm.run("date -u -s '2030-01-04 12:12:00' >/dev/null")
    settled(vm, 3)
    # Off over due times.
    vm.command_and_go("systemctl poweroff")
    vm.wait_off(120)
    vm.start(clock="2030-01-05T06:34:00")
    vm.wait_booted()
    missed = wait_runs(vm, 4)[3:]
    if len(missed) != 1 or not minute(vm, "2030-01-05 06:30") <= missed[0] <= minute(vm, "2030-01-05 06:50"):
        raise Failed(f"ran {missed} after the boot")
    settled(vm, 4)
    # A clock that was never set says nothing; when it is set, what was missed runs once.
    vm.run("systemctl stop coracle && date -s @900 >/dev/null && systemctl start coracle")
    vm.until("an event", "coracle get events -o json", lambda out: "ClockNotSet" in out)
    settled(vm, 4)
    vm.run("date -u -s '2030-01-06 00:03:00' >/dev/null")
    equal("the run after 1970", wait_runs(vm, 5)[4:], [minute(vm, "2030-01-06 00:00")])
    settled(vm, 5)
    vm.run("rm /etc/coracle/manifests/tick.yaml")
    vm.until("its Jobs to go", "coracle get jobs -o name", lambda out: out == "")
