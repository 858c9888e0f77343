"""Swap: which pods use it, and how much, by the node's settings."""

import json

from catalogue import install, scenario
from machine import Failed

from scenarios.node import equal, pod, whole_pages

# Fills so many elements of memory, then prints `full` and stays. An element takes 1093 bytes (busybox 1.35 on x86-64) to 1145 (1.37
# on aarch64).
HOG = "awk 'BEGIN { for (i = 0; i < %d; i++) list[i] = sprintf(\"%%01000d\", i); print \"full\"; while (1) system(\"sleep 1000\") }'"


def PREPARE(vm):
    """Switches swap on before coracle starts."""
    vm.run("swapon LABEL=coracle-swap")
    vm.run("mkdir -p /etc/coracle && printf 'kind: KubeletConfiguration\nmemorySwap: {swapBehavior: LimitedSwap}\n' >/etc/coracle/config.yaml")
    install(vm)


def total(vm, name):
    return int(vm.out(f"awk '/^{name}:/ {{print $2}}' /proc/meminfo")) * 1024


def ask(vm, path):
    """The agent's answer to a request, by perl, because the machine has no curl."""
    request = f"GET {path} HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n"
    talk = f'$s = IO::Socket::UNIX->new("/run/coracle/coracle.sock") or die; print $s "{request}"; $s->flush; undef $/; $_ = <$s>; s/.*?\\r\\n\\r\\n//s; print'
    return vm.out(f"perl -MIO::Socket::UNIX -e '{talk}'")


def figures_say_so(vm, share):
    """Checks that summary and metrics show the pod's swap and its waits for memory."""
    summary = json.loads(ask(vm, "/stats/summary"))
    found = next(p for p in summary["pods"] if p["podRef"]["name"] == "burstable")
    container = found["containers"][0]
    swap = container["swap"]
    if not 0 < swap["swapUsageBytes"] <= share:
        raise Failed(f"the summary shows swap {swap}, the share is {share}")
    equal("the swap limit", swap["swapUsageBytes"] + swap["swapAvailableBytes"], whole_pages(vm, share))
    for name, of in [("node", summary["node"]), ("pod", found), ("container", container)]:
        for resource in ["cpu", "memory", "io"]:
            if of[resource]["psi"]["some"]["avg10"] < 0:
                raise Failed(f"the {name} waits for {resource}: {of[resource]}")
    if container["memory"]["psi"]["some"]["total"] == 0:
        raise Failed("a container that swaps has never waited for memory")
    metrics = ask(vm, "/metrics/resource").splitlines()
    limit = next(line for line in metrics if line.startswith("container_swap_limit_bytes") and "burstable" in line)
    equal("the limit among the metrics", int(limit.split()[-1]), whole_pages(vm, share))
    top = vm.out("coracle top pods --no-headers --sort-by memory")
    if not any(line.split()[0] == "burstable" and line.split()[2] != "0Mi" for line in top.splitlines()):
        raise Failed(f"`top pods` says {top}")


@scenario(seconds=200)
def limited_swap_is_a_share_of_the_nodes(vm):
    """A Burstable container swaps up to its share, by its memory request; a Guaranteed one is killed at its limit."""
    request, limit = 32 << 20, 48 << 20
    share = int(request / total(vm, "MemTotal") * total(vm, "SwapTotal"))
    figures = f"    resources: {{requests: {{memory: {request}}}, limits: {{memory: {limit}}}}}"
    # The hog needs more than its limit, and less than its limit and its share together. A page that is being written to swap, or
    # came back from there, is in both: on a slow machine a third of the share.
    vm.manifest("burstable", pod("burstable", command=HOG % ((limit + share // 3) // 1145), container=figures))
    equal_figures = f"    resources: {{limits: {{memory: {limit}, cpu: 500m}}}}"
    more = HOG % (limit * 2 // 1000)
    vm.manifest("guaranteed", pod("guaranteed", spec="  restartPolicy: Never", command=more, container=equal_figures))
    burstable = vm.wait_running("burstable")
    group = vm.cgroup(burstable, "main")
    equal("the share", vm.out(f"cat {group}/memory.swap.max"), str(whole_pages(vm, share)))
    vm.until("it to have written it all", "coracle logs burstable", lambda out: out == "full", seconds=120)
    used = int(vm.out(f"cat {group}/memory.swap.current"))
    if not 0 < used <= share:
        raise Failed(f"it has swapped {used} bytes, its share is {share}")
    vm.notes.append(f"share {share >> 20} MiB, swapped {used >> 20} MiB")
    equal("restarts", vm.pod("burstable")["status"]["containerStatuses"][0]["restartCount"], 0)
    figures_say_so(vm, share)
    failed = vm.wait_pod("guaranteed", "failed", lambda p: p["status"]["phase"] == "Failed")
    ended = failed["status"]["containerStatuses"][0]["state"]["terminated"]
    equal("the end of the guaranteed pod", ended["reason"], "OOMKilled")
    node = json.loads(vm.out("coracle get node -o json"))
    node = node["items"][0] if "items" in node else node
    equal("the node's swap", node["status"]["nodeInfo"]["swap"]["capacity"], total(vm, "SwapTotal"))


@scenario(seconds=100)
def a_pod_has_a_figure_of_its_own(vm):
    """The annotation limits the pod as a whole, in place of shares for its containers."""
    text = pod("own", container="    resources: {requests: {memory: 16Mi}}").replace("labels:", "annotations: {coracle.dev/memory-swap-max: 5Mi}, labels:")
    vm.manifest("own", text)
    group = vm.cgroup(vm.wait_running("own"))
    equal("the pod's", vm.out(f"cat {group}/memory.swap.max"), str(5 << 20))
    equal("the container's", vm.out(f"cat {group}/c-main/memory.swap.max"), "max")


@scenario(seconds=200)
def a_container_that_may_swap_is_not_resized_as_it_runs(vm):
    """A changed memory request is refused as Infeasible; a changed cpu limit takes effect."""
    figures = lambda memory, cpu: f"    resources: {{requests: {{memory: {memory}Mi, cpu: 50m}}, limits: {{memory: 40Mi, cpu: {cpu}m}}}}"
    vm.manifest("swapper", pod("swapper", container=figures(16, 100)))
    group = vm.cgroup(vm.wait_running("swapper", seconds=120), "main")
    vm.manifest("swapper", pod("swapper", container=figures(20, 100)))
    refused = lambda p: [c for c in p["status"]["conditions"] if c["type"] == "PodResizePending" and c["reason"] == "Infeasible"]
    waits = vm.wait_pod("swapper", "refused", refused)
    equal("why", refused(waits)[0]["message"], "In-place resize of containers with swap is not supported.")
    vm.manifest("swapper", pod("swapper", container=figures(16, 200)))
    vm.until("the cpu limit", f"cat {group}/cpu.max", lambda out: out == "20000 100000")
    equal("restarts", vm.pod("swapper")["status"]["containerStatuses"][0]["restartCount"], 0)


@scenario(seconds=200)
def without_swap_memory_is_all_there_is(vm):
    """NoSwap, the default: no container swaps, and the node warns where memory volumes may be swapped."""
    vm.run("rm /etc/coracle/config.yaml && systemctl restart coracle", seconds=60)
    vm.manifest("plain", pod("plain", container="    resources: {requests: {memory: 16Mi}}"))
    group = vm.cgroup(vm.wait_running("plain"), "main")
    equal("memory.swap.max", vm.out(f"cat {group}/memory.swap.max"), "0")
    # From Linux 6.4 on, an option keeps a tmpfs out of swap.
    version = tuple(int(part) for part in vm.out("uname -r").split("-")[0].split(".")[:2])
    warned = "PossibleMemoryBackedVolumesOnDisk" in vm.out("coracle get events")
    equal("a warning that memory volumes may be swapped", warned, version < (6, 4))
