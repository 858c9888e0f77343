"""In-place resize of cpu and memory of a running pod on cgroup v2."""

from catalogue import scenario

from scenarios.node import equal, main_pid, pod

MACHINE = "node"


def figures(cpu, memory):
    """The resources of a Burstable container, whose requests are half of its limits."""
    return (
        f"    resources: {{requests: {{cpu: {cpu // 2}m, memory: {memory // 2}Mi}}, "
        f"limits: {{cpu: {cpu}m, memory: {memory}Mi}}}}"
    )


def values(vm, group):
    files = ["cpu.weight", "cpu.max", "memory.max"]
    return vm.out(f"cd {group} && cat {' '.join(files)}").splitlines()


@scenario(seconds=200)
def cpu_and_memory_change_while_a_pod_runs(vm):
    """More and then less, in the cgroups of pod and container; the process stays the same."""
    vm.manifest("sized", pod("sized", container=figures(200, 32)))
    found = vm.wait_running("sized", seconds=120)
    group, before = vm.cgroup(found), main_pid(vm, "sized")
    # Half of the cpu as shares (102): weight 4 for the pod, 17 for the container.
    for cpu, memory, weights in [(200, 32, (4, 17)), (1000, 64, (20, 59)), (200, 24, (4, 17))]:
        vm.manifest("sized", pod("sized", container=figures(cpu, memory)))
        vm.until("the limit", f"cat {group}/memory.max", lambda out: out == str(memory << 20))
        done = "coracle get pod sized -o jsonpath='{.status.conditions[*].type}'"
        vm.until("the resize to end", done, lambda out: "PodResizeInProgress" not in out)
        for folder, weight in [(group, weights[0]), (f"{group}/c-main", weights[1])]:
            wanted = [str(weight), f"{cpu * 100} 100000", str(memory << 20)]
            equal(f"the values of {folder}", values(vm, folder), wanted)
    equal("the process", main_pid(vm, "sized"), before)
    # The values read back equal those that were written.
    page = vm.out("coracle describe pod sized")
    equal("values that are not in effect", page.count("(is to be "), 0)
    equal("memory.max on the page", page.count(f"memory.max:                   {24 << 20}"), 2)
