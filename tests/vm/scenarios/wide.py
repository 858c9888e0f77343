"""Programs of 32 bits, files of more than 2 GB, and times after 2038."""

from catalogue import scenario
from machine import Failed

from scenarios.node import IMAGE, equal, main_pid, pod

BIG = 3 << 30
LATE = "2100-01-01 00:00:00"


@scenario(seconds=200, on=("arm64",))
def programs_of_32_bits_run_confined(vm):
    """A container of a 64-bit node with an image for 32-bit ARM: it runs, and has the default seccomp profile for its own calls."""
    vm.run("coracle image import /payload/more/narrow.tar", seconds=60)
    vm.manifest("narrow", pod("narrow").replace(IMAGE, "docker.io/library/narrow:test"))
    vm.wait_running("narrow")
    inside = lambda script: vm.run(f"coracle exec narrow -- sh -c '{script}'", check=False)
    # The ELF header of the program that runs: 1 is 32 bits, 40 is ARM.
    header = vm.out(f"head -c 19 /proc/{main_pid(vm, 'narrow')}/exe | od -A n -t u1").split()
    equal("its bits and machine", (header[4], header[18]), ("1", "40"))
    equal("its filter", inside("grep ^Seccomp: /proc/self/status").out.split(), ["Seccomp:", "2"])
    equal("what it can do", inside("echo x >/tmp/x && cat /tmp/x && sleep 0.1 && date +%Y >/dev/null && echo done").out.split(), ["x", "done"])
    for refused in ("mount -t tmpfs none /tmp", "unshare -n true", "chroot / true"):
        wanted = refused.startswith("chroot")
        result = inside(refused)
        if (result.status == 0) != wanted:
            raise Failed(f"`{refused}` ended with {result.status}: {result.err}")
    vm.pods_gone()
    vm.run("coracle image rm narrow:test")


@scenario(seconds=300, thorough=True)
def large_files_and_late_times_are_right(vm):
    """Volumes with a file of 3 GB from the year 2100: owners, counted bytes, a restart; then the whole machine lives in 2040."""
    volumes = "  securityContext: {fsGroup: 4711}\n  volumes:\n  - {name: scratch, emptyDir: {sizeLimit: 100Mi}}\n  - {name: srv, hostPath: {path: /srv/wide, type: DirectoryOrCreate}}"
    mounts = "    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: srv, mountPath: /srv}]"
    vm.manifest("wide", pod("wide", spec=volumes, container=mounts))
    first = vm.wait_running("wide")
    # Sparse: it has 3 GB, and takes no room.
    # In words: a busybox of 32 bits prints seconds as a number of 32 bits.
    seen = 'stat -c "%s %y" $d/big | cut -d. -f1'
    make = f'for d in /scratch /srv; do truncate -s {BIG} $d/big && touch -d "{LATE}" $d/big && {seen}; done'
    shown = vm.out(f"coracle exec wide -- sh -c '{make}'")
    equal("size and time", shown.split("\n"), [f"{BIG} {LATE}"] * 2)
    vm.run("systemctl restart coracle", seconds=60)
    vm.run("coracle exec wide -- kill 1", check=False)
    again = lambda found: found["status"]["containerStatuses"][0]["restartCount"] == 1 and found["status"]["containerStatuses"][0]["ready"]
    vm.wait_pod("wide", "restarted", again)
    equal("after a restart", vm.out(f"coracle exec wide -- sh -c 'd=/scratch; {seen}'"), f"{BIG} {LATE}")
    events = vm.out("coracle get events")
    if "Evicted" in events:
        raise Failed(f"holes are counted: {events}")
    # Nothing of 32 bits may be left in what is written and read again.
    vm.command_and_go("systemctl poweroff")
    vm.wait_off(120)
    vm.start(clock="2040-02-03T04:05:06")
    vm.wait_booted()
    # A kernel of 32 bits does not take such a time from the board's clock.
    if vm.out("date +%Y") != "2040":
        vm.run("systemctl stop coracle && date -s '2040-02-03 04:05:06' && systemctl start coracle", seconds=60)
    equal("its uid", vm.wait_running("wide", seconds=90)["metadata"]["uid"], first["metadata"]["uid"])
    vm.manifest("speaks", pod("speaks", command="date +%Y; trap 'exit 0' TERM; while :; do sleep 1 & wait; done"))
    shown = vm.wait_running("speaks")
    if not shown["status"]["startTime"].startswith("2040-02-03T"):
        raise Failed(f"it started {shown['status']['startTime']}")
    logged = vm.out("coracle logs --timestamps speaks").split()
    equal("its log", (logged[0][:8], logged[1]), ("2040-02-", "2040"))
    vm.run("coracle image import /payload/more/many.tar", seconds=60)
    vm.run("coracle image rm many:test && coracle fsck", seconds=60)
    vm.run("systemctl restart coracle", seconds=60)
    vm.wait_running("wide")
    vm.run("coracle get events && coracle black-box && coracle doctor", check=False)
