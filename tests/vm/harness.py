"""Runs scenarios in virtual machines and prints the results. Started by `run`, which installs missing packages."""

import argparse
import fcntl
import hashlib
import importlib
import itertools
import json
import os
import queue
import resource
import shutil
import subprocess
import sys
import time
import traceback
from concurrent import futures
from pathlib import Path

import catalogue
import registry
import upgrades
from machine import ARCHITECTURES, LOGS, Failed, Machine

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
# The number of lines of the machine's journal and console that are shown for a failed scenario.
LAST_LINES = 40


def main():
    arguments = parse()
    for file in sorted((HERE / "scenarios").glob("*.py")):
        importlib.import_module(f"scenarios.{file.stem}")
    chosen = choose(arguments)
    if arguments.list:
        for scenario in chosen:
            print(f"{scenario.full_name:<44} {scenario.about}")
        return 0
    cache = Path(arguments.cache).absolute()
    cache.mkdir(parents=True, exist_ok=True)
    # The lock on everything that is made only once; two harnesses of one tree take turns.
    lock = open(cache / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    if arguments.prepare:
        make_parts(cache, arguments.arch)
        return 0
    if arguments.arch != "amd64" and not arguments.binary:
        sys.exit("error: --arch needs --binary; tests/cross/run makes it")
    parts = make_parts(cache, arguments.arch)
    more = {s.payload for s in chosen if s.payload}
    payload = make_payload(cache, parts, arguments.binary or build(), more, arguments)
    results = cache / "results"
    shutil.rmtree(results, ignore_errors=True)
    if arguments.shell:
        return Session(parts, payload, results, arguments).shell()
    booted = boot_once(chosen, parts, payload, results, arguments)
    return run(chosen, lambda: Session(parts, payload, results, arguments, booted), arguments)


def boot_once(chosen, parts, payload, results, arguments):
    """Boots the machine from which those without options of their own go on; returns its folder. A boot takes longer than many
    scenarios. `None`: fewer than two would go on from it, or it is of an architecture on which this was never tried."""
    if arguments.arch != "amd64" or len({s.machine for s in chosen if not s.options}) * arguments.repeat < 2:
        return None
    begin = time.monotonic()
    machine = Machine(parts, payload, results / "booted", arguments.arch, kernel_file=arguments.kernel)
    try:
        machine.start()
        machine.wait_booted()
        machine.suspend()
    finally:
        machine.power_cut()
    print(f"booted in {time.monotonic() - begin:.0f} s", flush=True)
    return machine.folder


def run(chosen, session, arguments):
    """Runs the scenarios in lanes, each with a machine at a time; those that share a machine in one lane, in order."""
    begin = time.monotonic()
    groups = {}
    for scenario in sorted(chosen, key=lambda scenario: scenario.order):
        groups.setdefault(scenario.machine, []).append(scenario)
    # The longest first, so that the lanes end together.
    limit = lambda group: sum(scenario.seconds for scenario in group)
    groups = sorted(groups.values(), key=limit, reverse=True) * arguments.repeat
    waiting = queue.SimpleQueue()
    for group in groups:
        waiting.put(group)

    def lane():
        own, failed = session(), []
        try:
            while True:
                group = waiting.get_nowait()
                # Also of the same one, repeated: it begins with a new machine.
                own.drop(keep=arguments.keep)
                for scenario in group:
                    if not own.one(scenario):
                        failed.append(scenario.full_name)
        except queue.Empty:
            return failed
        finally:
            own.close()

    lanes = min(arguments.lanes, len(groups))
    with futures.ThreadPoolExecutor(lanes) as pool:
        failed = sum((lane.result() for lane in [pool.submit(lane) for _ in range(lanes)]), [])
    total = len(chosen) * arguments.repeat
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{total - len(failed)} of {total} scenarios ok, {time.monotonic() - begin:.0f} s, "
        f"{used.ru_utime + used.ru_stime:.0f} s of processor time"
    )
    for name in failed:
        print(f"failed: {name}")
    return 1 if failed else 0


def parse():
    parser = argparse.ArgumentParser(prog="tests/vm/run", description="Scenarios on a machine of their own: systemd, cgroup v2, swap, power.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="a file's name, or file.scenario; without any, all but the longest")
    parser.add_argument("--all", action="store_true", help="the longest scenarios, too")
    parser.add_argument("--list", action="store_true", help="list the scenarios that would run")
    parser.add_argument("--prepare", action="store_true", help="make the machine's image, and run nothing")
    parser.add_argument("--arch", choices=ARCHITECTURES, default="amd64", help="the machine's architecture; for others than amd64 use tests/cross/run")
    parser.add_argument("--binary", help="the program under test; else `cargo build --release` makes it")
    parser.add_argument("--tests", metavar="FILE", help="the crate's unit tests, compiled for the architecture: adds the scenarios of `unit`")
    parser.add_argument("--compiler", default="gcc", metavar="COMMAND", help="a C compiler for the architecture, perhaps in a chroot")
    parser.add_argument("--cache", default=os.environ.get("CORACLE_VM_CACHE", str(PROJECT / "target" / "vm")), help="the folder that keeps images")
    parser.add_argument("--kernel", metavar="FILE", help="another kernel than Debian's: adds the scenarios of `bare` (bare-kernel builds it)")
    parser.add_argument("--keep", action="store_true", help="keep the disks and logs of all machines, even of those without a failure")
    parser.add_argument("--shell", action="store_true", help="boot a machine with coracle on this terminal; it ends with `poweroff`")
    parser.add_argument("--count", type=int, metavar="N", help="the number of repetitions in counting scenarios")
    parser.add_argument("--lanes", type=int, default=2, metavar="N", help="the number of machines at a time")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run the scenarios N times")
    return parser.parse_args()


def choose(arguments):
    words = arguments.scenarios
    fits = lambda s: (s.on is None or arguments.arch in s.on) and (s.needs is None or getattr(arguments, s.needs))
    known = [s for s in catalogue.SCENARIOS if fits(s)]
    for word in words:
        if not any(word in (s.file, s.full_name) for s in known):
            sys.exit(f"error: there is no scenario `{word}`; see tests/vm/run --all --list")
    if not words:
        return [s for s in known if arguments.all or not s.thorough]
    return [s for s in known if s.file in words or s.full_name in words]


def make_parts(cache, arch):
    """The parts that all machines share, made again when a recipe changes."""
    recipe = hashlib.sha256()
    script = HERE / ("image" if arch == "amd64" else "foreign-image")
    for file in [script, HERE / "more-parts", *sorted((HERE / "guest").iterdir())]:
        recipe.update(file.read_bytes())
    recipe.update(b"disks 1")
    if arch != "amd64":
        recipe.update(arch.encode())
    page = str(ARCHITECTURES[arch].page_kb << 10)
    if page != "4096":
        recipe.update(page.encode())
    parts, stamp = cache / "image", cache / "image" / "recipe"
    if stamp.exists() and stamp.read_text() == recipe.hexdigest():
        return parts
    begin = time.monotonic()
    shutil.rmtree(parts, ignore_errors=True)
    subprocess.run([script, parts, cache / "debs", *([] if arch == "amd64" else [arch])], check=True)
    for name, size, make in [
        ("data.img", "1G", ["mkfs.ext4", "-q", "-F", "-L", "coracle-data"]),
        ("swap.img", "512M", ["mkswap", "-q", "-p", page, "-L", "coracle-swap"]),
    ]:
        subprocess.run(["truncate", "-s", size, parts / name], check=True)
        subprocess.run([*make, parts / name], check=True)
    stamp.write_text(recipe.hexdigest())
    print(f"made the machine's image in {time.monotonic() - begin:.0f} s", flush=True)
    return parts


def build():
    """The release binary."""
    print("building coracle", flush=True)
    command = ["cargo", "build", "--release", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True)
    programs = [json.loads(line).get("executable") for line in built.stdout.splitlines()]
    return next(program for program in reversed(programs) if program)


def make_payload(cache, parts, binary, more, arguments):
    """Makes the disk with the program under test, and with its unit tests if there are some."""
    arch, tests = arguments.arch, arguments.tests
    folder, disk = cache / "payload", cache / "payload.img"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "images").mkdir(parents=True)
    foreign = arch != "amd64"
    if foreign:
        # Without symbols already, and this machine's `strip` knows no other architecture.
        shutil.copy(binary, folder / "coracle")
    else:
        subprocess.run(["strip", "-o", folder / "coracle", binary], check=True)
    # The images have the machine's own busybox.
    busybox = parts / "busybox" if foreign else Path("/bin/busybox")
    image_arch = {"armhf": "arm"}.get(arch, arch.split("-")[0])
    environment = {**os.environ, **({"BUSYBOX": str(busybox), "ARCH": image_arch} if foreign else {})}
    archive = folder / "images" / "busybox.tar"
    make = PROJECT / "examples" / "make-image.sh"
    subprocess.run([make, archive, "docker.io/library/busybox:test"], env=environment, check=True)
    # Another image, with many files, which is not imported automatically.
    (folder / "more").mkdir()
    over = folder / "over" / "many"
    over.mkdir(parents=True)
    for number in range(300):
        (over / str(number)).write_bytes(bytes([number % 251]) * (number * 97))
    subprocess.run([make, folder / "more" / "many.tar", "docker.io/library/many:test", over.parent], env=environment, check=True)
    shutil.rmtree(over.parent)
    narrow = parts / "busybox-32"
    if narrow.exists():
        # As in an image for the machine that has such programs, too: one for 32-bit ARM alone would have to be chosen by name.
        environment = {**os.environ, "BUSYBOX": str(narrow), "ARCH": image_arch}
        subprocess.run([make, folder / "more" / "narrow.tar", "docker.io/library/narrow:test"], env=environment, check=True)
    registry.fill(folder / "registry", cache, busybox, image_arch)
    upgrades.fill(folder / "upgrade", folder / "coracle", arguments.compiler)
    make_packages(folder)
    for add in more:
        add(folder, cache)
    if tests:
        shutil.copy(tests, folder / "unit-tests")
        for part in ("src", "tests/fixtures", "examples"):
            shutil.copytree(PROJECT / part, folder / "project" / part, symlinks=True)
    disk.unlink(missing_ok=True)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    subprocess.run(["truncate", "-s", str(size * 5 // 4 + (16 << 20)), disk], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-L", "payload", "-O", "^has_journal", "-d", folder, disk], check=True)
    shutil.rmtree(folder)
    return disk


def make_packages(folder):
    """Packages of the program, and one of a later version."""
    packages, work = folder / "packages", folder / "work"
    packages.mkdir()
    build = [PROJECT / "systemd" / "packaging" / "build", "--fast", "--binary", folder / "coracle"]
    subprocess.run([*build, work, "deb", "sysext"], check=True)
    next(work.glob("*.deb")).rename(packages / "now.deb")
    next(work.glob("*.raw")).rename(packages / "coracle.raw")
    subprocess.run([*build, "--version", "999+later", work, "deb"], check=True)
    next(work.glob("*.deb")).rename(packages / "later.deb")
    shutil.rmtree(work)


class Session:
    """Runs scenarios. Those of one file share a machine, one after the other, until one of them fails."""

    # Of all sessions together.
    machines = itertools.count(1)

    def __init__(self, parts, payload, results, arguments, booted=None):
        self.parts, self.payload, self.results, self.arguments = parts, payload, results, arguments
        self.booted = booted
        self.machine = self.file = None
        self.lines = []

    def one(self, scenario):
        """Runs a scenario; what there is to say about it is printed at its end, at once."""
        try:
            return self.attempt(scenario)
        finally:
            print("\n".join(self.lines), flush=True)
            self.lines = []

    def attempt(self, scenario, again=True):
        begin = time.monotonic()
        try:
            machine = self.machine_for(scenario)
            prepared = time.monotonic()
            scenario.run(machine, self.arguments.count)
            seconds = time.monotonic() - prepared
            if machine.qemu is not None:
                catalogue.tidy(machine)
            made = f" (and {prepared - begin:.1f} s for the machine)" if prepared - begin > 1 else ""
            self.lines.append(f"{scenario.full_name:<44} ok      {seconds:5.1f} s{made}")
            self.lines += [f"  {note}" for note in machine.notes]
            machine.notes = []
            return True
        except Exception as problem:  # Whatever the problem is, the other scenarios run.
            self.lines.append(f"{scenario.full_name:<44} failed  {time.monotonic() - begin:5.1f} s")
            self.tell(problem)
            self.lines += [f"  {note}" for note in self.machine.notes] if self.machine else []
            hung = self.hung()
            self.drop(keep=True)
            if again and hung:
                self.lines.append("  once more: the machine's processors hung in its kernel")
                return self.attempt(scenario, again=False)
            return False

    def hung(self):
        """Whether the kernel's watchdog saw a processor hang: on busy hosts emulated ones do, now and then."""
        console = self.machine and self.machine.folder / "console.log"
        return bool(console) and console.exists() and "BUG: soft lockup" in console.read_text(errors="replace")

    def machine_for(self, scenario):
        if self.file != scenario.machine or self.machine is None or self.machine.qemu is None:
            self.drop(keep=self.arguments.keep)
            self.file = scenario.machine
            number = next(self.machines)
            folder = self.results / f"{number}-{scenario.machine}"
            options = scenario.options or {"booted": self.booted}
            self.machine = Machine(self.parts, self.payload, folder, self.arguments.arch, kernel_file=self.arguments.kernel, **options)
            self.machine.start()
            self.machine.wait_booted()
            catalogue.prepare(self.machine, scenario)
        return self.machine

    def tell(self, problem):
        if isinstance(problem, Failed):
            where = traceback.extract_tb(problem.__traceback__)
            line = next((f for f in reversed(where) if "scenarios" in f.filename), where[-1])
            self.lines.append(f"  {Path(line.filename).name}:{line.lineno}: {problem}")
        else:
            self.lines += traceback.format_exception(problem)
        if self.machine is None:
            return
        for name in LOGS:
            log = self.machine.folder / name
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            if lines:
                self.lines.append(f"  last of {log}:")
                self.lines += [f"  | {line}" for line in lines[-LAST_LINES:]]

    def drop(self, keep):
        """Gives up the machine and its disks, which have many megabytes."""
        if self.machine is not None:
            self.machine.power_cut()
            if not keep:
                shutil.rmtree(self.machine.folder, ignore_errors=True)
            self.machine = None

    def close(self):
        self.drop(keep=self.arguments.keep)

    def shell(self):
        folder = self.results / "shell"
        machine = Machine(self.parts, self.payload, folder, self.arguments.arch, kernel_file=self.arguments.kernel)
        machine.start(shell=True)
        machine.wait_booted()
        catalogue.install(machine)
        try:
            machine.qemu.wait()
        finally:
            machine.power_cut()
            subprocess.run(["stty", "sane"], check=False)
        return 0


if __name__ == "__main__":
    sys.exit(main())
