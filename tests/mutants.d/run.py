"""Runs the tests once for each mutant, until one fails, and lists the mutants that none has noticed."""

import argparse
import collections
import concurrent.futures
import os
import re
import resource
import subprocess
import tempfile
import time

import build

MISSED = os.path.join(build.TOP, "target", "mutants", "missed.txt")
# Test programs and their arguments. Tests that measure time are skipped: the switches of other mutants take some.
PROGRAMS = {
    "coracle": [],
    "golden_spec": [],
    "behaviour": ["--skip", "is_quick"],
    "spec_properties": ["--skip", "within_seconds"],
    "simulation": [],
}
# The quickest programs that are likely to notice a mutant come first.
ORDER = {
    "plan": ["behaviour", "simulation", "coracle", "golden_spec", "spec_properties"],
    "spec": ["golden_spec", "coracle", "spec_properties", "behaviour", "simulation"],
}
MEMORY = 4 << 30


class Tests:
    """The test programs, the time that each takes, and the mutants whose places it reaches."""

    def __init__(self, programs):
        self.programs = programs
        self.seconds, self.reached = {}, {}
        for name in PROGRAMS:
            with tempfile.NamedTemporaryFile(mode="r") as trace:
                started = time.monotonic()
                if self.run(name, 600, MUTANTS_REACHED=trace.name) != "passed":
                    raise SystemExit(f"{name} fails without any mutant")
                self.seconds[name] = time.monotonic() - started
                self.reached[name] = {int(line) for line in trace}

    def run(self, name, seconds, **variables):
        """Runs a test program; returns `passed`, `failed` or `timeout`."""
        command = [self.programs[name], "--quiet", *PROGRAMS[name]]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
        try:
            done = subprocess.run(
                command, cwd=build.TREE, env=os.environ | variables, timeout=seconds, preexec_fn=limit, **quiet
            )
        except subprocess.TimeoutExpired:
            return "timeout"
        return "passed" if done.returncode == 0 else "failed"

    def notice(self, mutant):
        """Returns how the first program that notices a mutant ends, and its name; or None."""
        for name in ORDER["plan" if mutant["file"].startswith("src/plan/") else "spec"]:
            if mutant["n"] in self.reached[name]:
                result = self.run(name, 20 * max(self.seconds[name], 1), MUTANT=str(mutant["n"]))
                if result != "passed":
                    return f"{result} {name}"
        return None


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def unplaced(name):
    """A mutant's name without its line number, which other changes of the file shift."""
    return re.sub(r":\d+:\d+: ", ": ", name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--missed", action="store_true", help="only those that were missed last time")
    parser.add_argument("--only", default="", help="only those whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="the number of tests at a time")
    chosen = parser.parse_args()
    listed = [m for m in build.listed() if chosen.only in m["name"]]
    if chosen.missed:
        names = {unplaced(line.strip()) for line in open(MISSED)}
        listed = [m for m in listed if unplaced(m["name"]) in names]
    mutants, programs = build.build(listed)
    tests = Tests(programs)
    print(f"{len(listed)} mutants, {len(mutants)} of them compile")
    results = collections.Counter()
    # The order is mixed, so that the first figures represent all files.
    mutants.sort(key=lambda m: hash_of(m["n"]))
    with open(MISSED, "w") as missed, concurrent.futures.ThreadPoolExecutor(chosen.jobs) as jobs:
        for done, (mutant, noticed) in enumerate(zip(mutants, jobs.map(tests.notice, mutants)), 1):
            results[noticed or "missed"] += 1
            if not noticed:
                places = [name for name in PROGRAMS if mutant["n"] in tests.reached[name]]
                print(mutant["name"] + ("" if places else "  (no test comes there)"), flush=True)
                print(mutant["name"], file=missed, flush=True)
            if done % 100 == 0:
                print(f"-- {done}: {results['missed']} missed", flush=True)
    for result, count in results.most_common():
        print(f"{count:5} {result}")


def hash_of(n):
    return n * 2654435761 % 2**32


if __name__ == "__main__":
    main()
