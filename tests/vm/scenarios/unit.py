"""The unit tests of the crate on a machine of their own: what depends on the architecture is tested there. `tests/cross/run
--tests` compiles them."""

import re

from catalogue import scenario
from machine import Failed

OPTIONS = {"memory_mb": 1280}


def PREPARE(vm):
    # Some tests read the sources, at the place where they were compiled, and one writes there.
    vm.run("mkdir -p /project /run/project/upper /run/project/work")
    layers = "lowerdir=/payload/project,upperdir=/run/project/upper,workdir=/run/project/work"
    vm.run(f"mount -t overlay overlay -o {layers} /project")


@scenario(seconds=900, needs="tests")
def the_unit_tests_pass(vm):
    """All of `cargo test --lib`, with fewer inputs for properties than elsewhere."""
    # Not in /tmp, where no device can be opened. Also to the console, whose log is kept if a test never ends.
    tests = "cd /project && { TMPDIR=/var/tmp PROPTEST_CASES=16 /payload/unit-tests --test-threads=2; echo $? >/run/status; } 2>&1 | tee /dev/console; exit $(cat /run/status)"
    done = vm.run(tests, seconds=800, check=False)
    if done.status != 0:
        raise Failed(f"ended with {done.status}: {done.out[done.out.find('failures:') :] if 'failures:' in done.out else done.out[-4000:]} {done.err[-2000:]}")
    counts = re.findall(r"^test result: (.*)$", done.out, re.MULTILINE)
    vm.notes.append(f"unit tests: {'; '.join(counts)}")
