"""A shutdown of a machine with pods of several priorities: logind waits, and pods stop in order, hooks included."""

import json
import time

from catalogue import scenario
from machine import Failed

from scenarios import order
from scenarios.node import agent_pid, equal, pod

# Continues on the machine of those that reboot, too.
MACHINE = order.__name__.rsplit(".", 1)[1]
ORDER = 1

# The groups of the settings below that have pods, three each; another group has none.
PRIORITIES = [0, 1000, 10000, 2000000000]
SETTINGS = """kind: KubeletConfiguration
shutdownGracePeriodByPodPriority:
- {priority: 0, shutdownGracePeriodSeconds: 40}
- {priority: 1000, shutdownGracePeriodSeconds: 40}
- {priority: 5000, shutdownGracePeriodSeconds: 100}
- {priority: 10000, shutdownGracePeriodSeconds: 40}
- {priority: 2000000000, shutdownGracePeriodSeconds: 30}
"""
TOTAL = 250

# Prints when its hook begins, when it gets the stop signal and when it ends, by the clock that all pods share.
NOW = "cut -d' ' -f1 /proc/uptime"
STAMPS = f"""now() {{ {NOW}; }}
trap 'echo told $(now); sleep 1; echo gone $(now); exit 0' TERM; while :; do sleep 1 & wait $!; done"""
HOOK = f"    lifecycle: {{preStop: {{exec: {{command: [sh, -c, \"echo hook $({NOW}) >/proc/1/fd/1\"]}}}}}}"

DELAY = "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager InhibitDelayMaxUSec"
LOCKS = "systemd-inhibit --list --no-legend | grep -c '^coracle .*shutdown.*delay' || true"


def names(group):
    return [f"{letter}{group}" for letter in "abc"]


def twelve(vm):
    """Starts twelve pods, and waits until logind would wait long enough for them."""
    vm.run("mkdir -p /etc/coracle/config.d")
    vm.write("/etc/coracle/config.d/shutdown.yaml", SETTINGS)
    vm.run("systemctl reload coracle")
    vm.until("logind to wait longer", DELAY, lambda out: out == f"t {(TOTAL + 1) * 1000000}")
    for group, priority in enumerate(PRIORITIES):
        for name in names(group):
            text = pod(name, spec=f"  priority: {priority}", container=HOOK, command=STAMPS)
            # They end by themselves, which takes some seconds on a busy emulated machine.
            vm.manifest(name, text.replace("GracePeriodSeconds: 5", "GracePeriodSeconds: 30"))
    for group in range(len(PRIORITIES)):
        for name in names(group):
            vm.wait_running(name, seconds=300)


def stamps(vm, name):
    """The times that a pod printed in the previous boot, from the logs on disk."""
    lines = vm.out(f"cat /var/log/pods/default_{name}_*/main/*.log").splitlines()
    said = {}
    for line in lines:
        words = line.split(" ", 3)[3].split()
        if len(words) == 2 and words[0] in ("hook", "told", "gone"):
            said[words[0]] = float(words[1])
    if set(said) != {"hook", "told", "gone"}:
        raise Failed(f"pod {name} was not stopped gracefully: {lines[-5:]}")
    return said


def check_order(vm):
    """Checks that no pod of a group begins to stop, with its hook, before all pods of the previous group have ended."""
    groups = [[stamps(vm, name) for name in names(group)] for group in range(len(PRIORITIES))]
    for before, after in zip(groups, groups[1:]):
        gone = max(pod["gone"] for pod in before)
        begun = min(pod["hook"] for pod in after)
        if begun < gone:
            raise Failed(f"a hook ran at {begun}, before {gone}: {groups}")
    for pods in groups:
        for said in pods:
            if not said["hook"] <= said["told"] <= said["gone"]:
                raise Failed(f"out of order: {said}")
    vm.notes.append(f"groups took {[round(max(p['gone'] for p in g) - min(p['hook'] for p in g), 1) for g in groups]} s")


def off_and_on(vm):
    begin = time.monotonic()
    vm.wait_off(TOTAL)
    vm.notes.append(f"off after {time.monotonic() - begin:.0f} s")
    vm.start()
    vm.wait_booted()
    vm.until("the agent to answer", "coracle get pods -A -o name", seconds=60)


@scenario(seconds=240)
def logind_waits_as_long_as_the_groups_need(vm):
    """The agent holds the delay lock, raises the delay by a drop-in, and takes the lock again after a restart of logind."""
    vm.until("the lock", LOCKS, lambda out: out == "1")
    vm.until("logind to wait longer", DELAY, lambda out: out == "t 31000000")
    text = vm.out("cat /run/systemd/logind.conf.d/99-coracle.conf")
    if "InhibitDelayMaxSec=31" not in text:
        raise Failed(f"the drop-in says: {text}")
    plan = vm.out("coracle shutdown --plan")
    if "30 s in total; logind waits up to 31 s: enough" not in plan:
        raise Failed(f"the plan says: {plan}")
    vm.run("systemctl kill -s KILL systemd-logind && systemctl restart systemd-logind")
    vm.until("the lock again", LOCKS, lambda out: out == "1")
    # While there is no agent, systemd keeps the lock.
    old = agent_pid(vm)
    vm.run("systemctl kill -s KILL --kill-whom=main coracle")
    equal("locks without an agent", vm.out(LOCKS), "1")
    vm.until("another agent", "systemctl show -p MainPID --value coracle", lambda out: out not in ("0", old))
    vm.until("one lock", LOCKS, lambda out: out == "1")


@scenario(seconds=240)
def a_file_that_wins_over_coracles_own_is_named(vm):
    """A drop-in that overrides coracle's makes logind wait less: plan and doctor ask logind each time, and name the file."""
    site = "/etc/systemd/logind.conf.d/zz-site.conf"
    again = "systemctl kill -s HUP systemd-logind"
    vm.until("logind to wait longer", DELAY, lambda out: out == "t 31000000")
    vm.run("mkdir -p /etc/systemd/logind.conf.d")
    vm.write(site, "[Login]\nInhibitDelayMaxSec=5\n")
    vm.run(again)
    vm.until("logind to wait less", DELAY, lambda out: out == "t 5000000")
    for command in ["coracle shutdown --plan", "coracle doctor || true"]:
        said = vm.out(command)
        for words in ["5 s", f"InhibitDelayMaxSec=31 or more in `{site}`"]:
            if words not in said:
                raise Failed(f"{command} does not say `{words}`: {said}")
    vm.run(f"rm {site} && {again}")
    vm.until("logind to wait longer again", DELAY, lambda out: out == "t 31000000")
    for command, words in [("coracle shutdown --plan", "up to 31 s: enough"), ("coracle doctor || true", "logind waits up to 31 s")]:
        said = vm.out(command)
        if words not in said:
            raise Failed(f"{command} does not say `{words}`: {said}")


@scenario(seconds=900)
def a_poweroff_stops_twelve_pods_in_four_groups_with_their_hooks(vm):
    """`systemctl poweroff`: each group begins with its hooks when the previous one has ended; the times are recorded."""
    twelve(vm)
    vm.command_and_go("systemctl poweroff")
    off_and_on(vm)
    check_order(vm)
    state = json.loads(vm.out("cat /var/lib/coracle/graceful_node_shutdown_state"))
    if not ("2000" < state["startTime"] < state["endTime"]):
        raise Failed(f"the state file says: {state}")
    ready = json.loads(vm.out("coracle get node -o json"))
    node = ready["items"][0] if "items" in ready else ready
    conditions = {c["type"]: c["status"] for c in node["status"]["conditions"]}
    equal("Ready", conditions["Ready"], "True")


@scenario(seconds=900)
def an_agent_killed_while_the_machine_goes_down_goes_on(vm):
    """kill -9 of the agent in the middle of `systemctl reboot`: logind still waits, the restarted agent goes on."""
    twelve(vm)
    vm.command_and_go("systemctl reboot")
    phase = f"coracle get pod {names(1)[0]} -o jsonpath='{{.status.phase}}'"
    vm.until("the second group's turn", phase, lambda out: out == "Failed", seconds=150)
    vm.run("systemctl kill -s KILL --kill-whom=main coracle")
    off_and_on(vm)
    check_order(vm)
    resumed = vm.out("journalctl -b -1 -o cat -u coracle.service | grep -c 'resuming the node shutdown in progress'")
    equal("the number of resumed shutdowns", resumed, "1")
