"""Upgrades that come back by themselves: a trial under systemd, judged by the former program."""

import random
import re
import time

import catalogue
from catalogue import scenario
from machine import Failed

from scenarios.node import agent_pid, equal, main_pid, pod

PROGRAM = "/usr/local/bin/coracle"


def PREPARE(vm):
    """Installs coracle with the owner's key, and puts a good program at /root/newer."""
    catalogue.install(vm)
    vm.run("mkdir -p /etc/coracle/upgrade-keys && cp /payload/upgrade/owner.pub /etc/coracle/upgrade-keys/")
    vm.run("{ cat /payload/coracle; printf newer; } >/root/newer && cp /payload/upgrade/newer.sig /root/newer.sig && sync")


def is_newer(vm):
    """Whether the installed program is the good one."""
    return vm.run(f"cmp -s /root/newer {PROGRAM}", check=False).status == 0


def refused(vm, script, why):
    said = vm.run(script, check=False, seconds=90)
    if said.status != 1 or why not in said.err:
        raise Failed(f"`{script}` ended with {said.status}: {said.out} {said.err}")


def over(vm, seconds=150):
    """Waits for the end of a trial; returns what `--status` says."""
    vm.until("the trial to end", "! test -e /var/lib/coracle/upgrade/trial.json", seconds=seconds)
    return vm.out("coracle upgrade --status")


@scenario(seconds=200)
def a_signed_program_takes_over_and_pods_do_not_notice(vm):
    """Signatures are demanded; the agent is replaced, pods keep their processes, and `--rollback` goes back."""
    vm.manifest("steady", pod("steady"))
    vm.wait_running("steady")
    pid, agent = main_pid(vm, "steady"), agent_pid(vm)
    vm.run("mv /root/newer.sig /root/kept.sig")
    refused(vm, "coracle upgrade /root/newer", "no signature")
    refused(vm, "coracle upgrade /root/newer --unsigned", "--unsigned is not accepted")
    vm.run("cp /payload/upgrade/newer.stranger /root/newer.sig")
    refused(vm, "coracle upgrade /root/newer", "by none of the keys")
    vm.run("base64 /root/kept.sig >/root/newer.sig")
    equal("the agent's process", agent_pid(vm), agent)
    said = vm.out("coracle upgrade /root/newer --within 20s", seconds=90)
    if "confirmed" not in said or not is_newer(vm):
        raise Failed(f"the upgrade said: {said}")
    if agent_pid(vm) == agent:
        raise Failed("the agent was not replaced")
    equal("the pod's process", main_pid(vm, "steady"), pid)
    gap(vm)
    # Also if pods would stop with the agent.
    vm.run("mkdir -p /etc/coracle/config.d")
    vm.write("/etc/coracle/config.d/stop.conf", "kind: KubeletConfiguration\ncoracle: {stopPodsOnExit: true}\n")
    vm.run("systemctl restart coracle && coracle config print | grep 'stopPodsOnExit: true'", seconds=90)
    vm.run("coracle upgrade --rollback --within 20s", seconds=90)
    equal("the newer program is there", is_newer(vm), False)
    equal("the pod's process", main_pid(vm, "steady"), pid)
    vm.run("rm /etc/coracle/config.d/stop.conf && systemctl restart coracle", seconds=90)
    equal("failed units", vm.out("systemctl --failed --plain --no-legend"), "")


def gap(vm):
    """Notes the time without an API: from the request to stop until the new agent serves."""
    lines = vm.out("journalctl -u coracle -o short-monotonic").splitlines()
    at = lambda line: float(re.match(r"\[\s*([0-9.]+)\]", line)[1])
    stop = max(at(line) for line in lines if "Stopping coracle.service" in line)
    up = max(at(line) for line in lines if "is up" in line)
    vm.notes.append(f"no API for {up - stop:.2f} s on this emulated machine")


@scenario(seconds=300)
def a_bad_program_gives_way_to_the_former_one(vm):
    """One that crashes, one that loses a pod, and one that cannot be executed: the former program is back, by itself."""
    # One after the other: a program below kills the pod that is older.
    for name in ("one", "two"):
        vm.manifest(name, pod(name))
        vm.wait_running(name)
    pid = main_pid(vm, "two")
    refused(vm, "coracle upgrade /payload/upgrade/crashes --within 30s", "the new agent crashed twice")
    vm.run(f"cmp /payload/coracle {PROGRAM}")
    vm.wait_running("one")
    equal("the format of the records", vm.out("grep -ho '\"format\":[0-9]*' /var/lib/coracle/format.json /run/coracle/format.json"), '"format":1\n"format":1')
    refused(vm, "coracle upgrade /payload/upgrade/loses --within 30s", "was restarted")
    vm.run(f"cmp /payload/coracle {PROGRAM}")
    vm.wait_running("one")
    equal("the other pod's process", main_pid(vm, "two"), pid)
    # What was checked is damaged afterwards.
    vm.run("systemd-run -q coracle upgrade /root/newer --within 10m")
    vm.until("the agent to be on trial", "coracle upgrade --status", lambda out: "has to stay up" in out)
    vm.run(f"echo nothing >/root/broken && chmod 755 /root/broken && mv /root/broken {PROGRAM} && kill -9 {agent_pid(vm)}")
    said = over(vm)
    if "crashed twice" not in said:
        raise Failed(f"the trial ended: {said}")
    vm.run(f"cmp /payload/coracle {PROGRAM}")
    vm.wait_running("two")
    equal("the other pod's process", main_pid(vm, "two"), pid)


@scenario(seconds=500, thorough=True)
def an_upgrade_survives_power_cuts(vm):
    """The power fails while a bad program is tried, while the former one is put back, before a good one is in its place, and before there is a record."""
    vm.manifest("steady", pod("steady"))
    vm.wait_running("steady")
    vm.run("sync")
    # While a bad one is tried: the machine comes up with an agent that cannot start.
    vm.run("systemd-run -q coracle upgrade /payload/upgrade/crashes --within 10m")
    vm.until("it to be in place", f"cmp /payload/upgrade/crashes {PROGRAM}")
    cut(vm)
    said = over(vm)
    if "crashed twice" not in said:
        raise Failed(f"the trial ended: {said}")
    vm.wait_running("steady", seconds=90)
    # While the former one is put back.
    tried(vm)
    vm.run("systemctl kill -s KILL coracle-upgrade; sed -i 's/\"phase\":\"Trial\"/\"phase\":\"Back\"/' /var/lib/coracle/upgrade/trial.json && sync")
    cut(vm)
    said = over(vm)
    if not said.startswith("went back") or is_newer(vm):
        raise Failed(f"the trial ended: {said}")
    vm.wait_running("steady", seconds=90)
    # Before the good one is in place, and while it is tried.
    tried(vm)
    vm.run(
        "systemctl kill -s KILL coracle-upgrade; cd /usr/local/bin && cp coracle coracle.new && cp coracle.former old && mv old coracle && "
        "sed -i 's/\"phase\":\"Trial\"/\"phase\":\"Install\"/; s/\"within_ms\":600000/\"within_ms\":60000/' /var/lib/coracle/upgrade/trial.json && sync"
    )
    cut(vm)
    vm.until("it to be in place", f"cmp /root/newer {PROGRAM}")
    said = over(vm)
    if not said.startswith("confirmed") or not is_newer(vm):
        raise Failed(f"the trial ended: {said}")
    # Before the trial of another one is recorded.
    vm.run(
        "cd /usr/local/bin && cp coracle coracle.new && ln coracle.former coracle.older && ln coracle l && mv l coracle.former && "
        "cd /var/lib/coracle/upgrade && echo '\"/usr/local/bin/coracle\"' >begun.json && sync"
    )
    cut(vm)
    vm.wait_running("steady", seconds=90)
    nothing_beside(vm)
    vm.run("cmp /payload/coracle /usr/local/bin/coracle.former")
    equal("failed units", vm.out("systemctl --failed --plain --no-legend"), "")


def nothing_beside(vm):
    """Beside the program is the former one, and nothing else."""
    left = vm.out("cd /usr/local/bin && ls -A | grep -vx -e coracle -e coracle.former || true")
    equal("what is left beside the program", left, "")


def tried(vm):
    """Begins a long trial of the good program, and waits until its agent is up."""
    vm.run("systemd-run -q coracle upgrade /root/newer --within 10m")
    vm.until("the agent to be on trial", "coracle upgrade --status", lambda out: "has to stay up" in out)


@scenario(seconds=250, count=1)
def power_cuts_at_any_time_leave_one_of_both_programs(vm, count):
    """The power fails at random moments of upgrades, good and bad ones: a healthy agent of one of both programs remains."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    vm.notes.append(f"seed {seed}, {count} power cuts")
    vm.manifest("steady", pod("steady"))
    vm.wait_running("steady")
    vm.run("cp /payload/coracle /root/first && cp /payload/upgrade/first.sig /root/first.sig; sync")
    for number in range(count):
        bad, newer = chance.random() < 0.5, is_newer(vm)
        file = "/payload/upgrade/crashes" if bad else "/root/first" if newer else "/root/newer"
        vm.run(f"rm -f /var/lib/coracle/upgrade/last.json && sync && systemd-run -q coracle upgrade {file} --within 20s")
        # The moment of the cut is the test's input, so nothing is awaited here.
        seconds = chance.uniform(0, 12)
        time.sleep(seconds)
        cut(vm)
        said = over(vm, 240)
        vm.notes.append(f"{file} cut after {seconds:.1f} s: {said}")
        changed = is_newer(vm) != newer
        if vm.run(f"cmp -s /payload/coracle {PROGRAM} || cmp -s /root/newer {PROGRAM}", check=False).status != 0:
            raise Failed(f"cut {number}: the program is neither of both")
        if changed != said.startswith("confirmed") or bad and changed:
            raise Failed(f"cut {number}: the program is the wrong one of both")
        vm.wait_running("steady", seconds=90)
        nothing_beside(vm)
        vm.run("coracle healthcheck --within 60s && coracle fsck", seconds=120)
    equal("failed units", vm.out("systemctl --failed --plain --no-legend"), "")


def cut(vm):
    """Cuts the power, and waits until the machine is up and shows the records of a trial."""
    vm.power_cut()
    vm.start()
    vm.wait_booted()
    vm.until("the disk with the records", "mountpoint -q /var/lib/coracle")
