"""The scenarios, and the state in which each begins. A file of `scenarios/` has a machine of its own, or shares that of the
file that it names as its `MACHINE`. Initially coracle is installed and runs, the busybox image is imported, and no pod exists."""

import sys
import time
from pathlib import Path

SCENARIOS = []


class Scenario:
    """A function of `scenarios/`, with its time limit. A counting scenario gets a number of repetitions (`--count` sets it);
    its time limit is for one repetition."""

    def __init__(self, function, seconds, count=None, on=None, needs=None, thorough=False):
        self.function, self.seconds, self.count = function, seconds, count
        # Whether it runs only if it is named, or with all (`--all`).
        self.thorough = thorough
        # Its architectures, if not all; an argument of the harness without which it cannot run.
        self.on, self.needs = on, needs
        module = sys.modules[function.__module__]
        self.file = Path(module.__file__).stem
        # Files may share a machine, one after the other.
        self.machine = getattr(module, "MACHINE", self.file)
        # Those that leave a machine unlike they found it come later on it.
        self.order = getattr(module, "ORDER", 0)
        # What is special about the machine: arguments of `Machine`.
        self.options = getattr(module, "OPTIONS", {})
        # Puts more on the disk with the program: a function of the disk's folder and one that is kept.
        self.payload = getattr(module, "PAYLOAD", None)
        self.full_name = f"{self.file}.{function.__name__}"
        self.about = (function.__doc__ or "").strip().splitlines()[0]

    def run(self, machine, count):
        machine.deadline = time.monotonic() + self.seconds * machine.arch.slow * (1 if self.count is None else count or self.count)
        if self.count is None:
            self.function(machine)
        else:
            self.function(machine, count or self.count)


def scenario(seconds, count=None, on=None, needs=None, thorough=False):
    """Marks a function as a scenario with a time limit, of `count` repetitions if it is a counting one."""

    def mark(function):
        SCENARIOS.append(Scenario(function, seconds, count, on, needs, thorough))
        return function

    return mark


def prepare(machine, scenario):
    """Prepares the machine for a scenario: by the `PREPARE` of its file, else by an installation of coracle."""
    module = sys.modules[scenario.function.__module__]
    getattr(module, "PREPARE", install)(machine)


def install(machine):
    """Installs coracle as a user would."""
    # The boot does not wait for these disks.
    machine.run("systemctl start payload.mount var-lib-coracle.mount", seconds=90)
    machine.run("mkdir -p /etc/coracle/images && cp /payload/images/* /etc/coracle/images/")
    machine.run("/payload/coracle install --now", seconds=90)
    machine.until("the image to be imported", "coracle get images", lambda out: "busybox" in out)


def tidy(machine):
    """Removes what a scenario left."""
    machine.deadline = None
    if machine.run("systemctl is-active coracle", check=False).status == 0:
        machine.pods_gone()
