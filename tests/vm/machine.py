"""A virtual machine: its disks, its power switch, and a channel to a shell inside."""

import base64
import dataclasses
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

# These limits are long, because the machine is emulated and its host may be busy.
BOOT_SECONDS = 300
COMMAND_SECONDS = 30
# Emulated processors rarely hang as the kernel boots, each waiting for the other. Its watchdog reports each of them every 28 s;
# one report may only mean that the host is busy.
STUCK_REPORTS = 3
STUCK_BOOTS = 2
LOGS = ("journal.log", "console.log", "qemu.log")
# The name of a suspended machine in its disks.
SUSPENDED = "suspended"


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How QEMU makes a machine of an architecture."""

    qemu: tuple
    console: str
    memory_mb: int = 768
    # The kernel's pages.
    page_kb: int = 4
    # All limits of time are longer by this factor.
    slow: int = 3


ARCHITECTURES = {
    # Emulated AVX is slower than what programs use without it.
    "amd64": Architecture(("qemu-system-x86_64", "-cpu", "Nehalem"), "ttyS0", slow=1),
    "arm64": Architecture(("qemu-system-aarch64", "-M", "virt", "-cpu", "cortex-a72"), "ttyAMA0"),
    # Not every processor has pages of 16 KB; they take more memory.
    "arm64-16k": Architecture(("qemu-system-aarch64", "-M", "virt", "-cpu", "max"), "ttyAMA0", memory_mb=1280, page_kb=16),
    "arm64-64k": Architecture(("qemu-system-aarch64", "-M", "virt", "-cpu", "cortex-a72"), "ttyAMA0", memory_mb=1024, page_kb=64),
    # Its kernel finds a PCI bus in the first 4 GB only.
    "armhf": Architecture(("qemu-system-arm", "-M", "virt,highmem=off", "-cpu", "cortex-a15"), "ttyAMA0"),
    "riscv64": Architecture(("qemu-system-riscv64", "-M", "virt"), "ttyS0"),
}


class Failed(Exception):
    """A failed check of a scenario, or a wait that was too long."""


class Result:
    """The result of a command in the machine."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err


class Machine:
    """One machine with disks of its own. It survives `power_cut` and `start` like a real one: data that was not written
    to a disk is lost."""

    def __init__(self, parts, payload, folder, arch="amd64", memory_mb=None, cpus=2, root="disk", kernel="", kernel_file=None, throttle="", booted=None):
        """`root`: `disk`; `squash`, which cannot be written to; or `ram` (the initramfs), which has no disks. `kernel`: words for the kernel's command line;
        `kernel_file`: another kernel than Debian's. `throttle`: QEMU's options that make the disk of coracle's state slow. `booted`: the folder
        of a machine that `suspend` left, with the same other arguments: this one goes on from there."""
        self.parts, self.payload, self.folder = Path(parts), Path(payload), Path(folder)
        self.arch = ARCHITECTURES[arch]
        self.memory_mb, self.cpus = memory_mb or self.arch.memory_mb, cpus
        self.root, self.kernel, self.throttle = root, kernel, throttle
        self.kernel_file = kernel_file or self.parts / "vmlinuz"
        self.qemu = self.channel = None
        self.pending = b""
        # How it was last switched on, and the size of the console's log then.
        self.started, self.console_before = {}, 0
        self.number = 0
        self.deadline = None
        # The measurements of the current scenario.
        self.notes = []
        self.folder.mkdir(parents=True, exist_ok=True)
        for log in LOGS:
            (self.folder / log).unlink(missing_ok=True)
        # Layers over the shared parts. A power cut loses what such a disk has allocated since it was last flushed,
        # like a real disk's cache.
        self.disks = {"disk": ("root", "data", "swap"), "squash": ("data", "swap"), "ram": ()}[root]
        self.resumes = booted is not None
        if self.resumes:
            for file in [*(f"{name}.qcow2" for name in self.disks), *LOGS]:
                shutil.copyfile(Path(booted) / file, self.folder / file)
            return
        for name in self.disks:
            self._make(f"{name}.qcow2", "-b", self.parts / f"{name}.img", "-F", "raw")

    def _make(self, name, *arguments):
        disk = self.folder / name
        disk.unlink(missing_ok=True)
        subprocess.run(
            ["qemu-img", "create", "-q", "-f", "qcow2", *map(str, arguments), str(disk)], check=True
        )

    # The power switch.

    def start(self, clock=None, shell=False):
        """Switches the machine on. `clock`: the time of the battery-backed clock, as `2030-01-01T00:00:00`."""
        assert self.qemu is None, "the machine is on"
        self.started, self.console_before = {"clock": clock, "shell": shell}, self._console_size()
        ours, theirs = socket.socketpair()
        own = [(self.folder / f"{name}.qcow2", "qcow2") for name in ("root", "data", "swap")]
        disks = {"disk": own, "squash": [(self.parts / "squash.img", "raw"), *own[1:]], "ram": []}[self.root]
        drives = []
        for index, (name, kind) in enumerate([*disks, (self.payload, "raw")]):
            options = ",readonly=on" if kind == "raw" else ""
            if name.stem == "data":
                options += "".join(f",throttling.{option}" for option in self.throttle.split())
            drives += ["-drive", f"file={name},if=virtio,format={kind},index={index},cache=writeback{options}"]
        console = "stdio,id=console,signal=off" if shell else f"file,id=console,path={self.folder}/console.log,append=on"
        login = "" if shell else f" systemd.mask=serial-getty@{self.arch.console}.service"
        words = f" {self.kernel}"
        command = [
            # The machine ends with the harness, however that ends.
            "setpriv", "--pdeathsig", "KILL", "nice", "-n", "10",
            *self.arch.qemu, "-accel", "tcg,thread=multi", "-smp", str(self.cpus), "-m", str(self.memory_mb),
            "-kernel", str(self.kernel_file), "-initrd", str(self.parts / ("ram.initrd" if self.root == "ram" else "initrd")),
            # On a busy host the emulated timer may be too late for the kernel's check that it works.
            "-append", f"console={self.arch.console} quiet panic=-1 no_timer_check mitigations=off systemd.show_status=no"
            # A kernel without modules would have a link of its own.
            " dummy.numdummies=0"
            # Nor may systemd give up what only takes long.
            " systemd.default_device_timeout_sec=900 systemd.default_timeout_start_sec=900" + login + words,
            *drives,
            # A reset ends the process, and `reboot` starts it again: QEMU's own reset sometimes hangs.
            "-no-reboot",
            "-nodefaults", "-display", "none", "-monitor", "none" if shell else "stdio",
            "-chardev", console, "-serial", "chardev:console",
            "-device", "virtio-serial-pci",
            "-chardev", f"socket,id=agent,fd={theirs.fileno()}", "-device", "virtserialport,chardev=agent,name=vm.agent",
            "-chardev", f"file,id=journal,path={self.folder}/journal.log,append=on",
            "-device", "virtserialport,chardev=journal,name=vm.journal",
        ]  # fmt: skip
        if clock:
            command += ["-rtc", f"base={clock}"]
        if self.resumes:
            command += ["-loadvm", SUSPENDED]
        with open(self.folder / "qemu.log", "ab") as log:
            self.qemu = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=None if shell else subprocess.PIPE,
                stdout=None if shell else log,
                stderr=log,
            )
        theirs.close()
        ours.setblocking(False)
        self.channel, self.pending = ours, b""

    def suspend(self, seconds=120):
        """Ends the machine's process and leaves its memory in its disks, for others that go on from there."""
        self.qemu.communicate(f"savevm {SUSPENDED}\nquit\n".encode(), seconds)
        self._switched_off()
        kept = subprocess.run(["qemu-img", "snapshot", "-l", str(self.folder / f"{self.disks[0]}.qcow2")], capture_output=True, text=True, check=True)
        if SUSPENDED not in kept.stdout:
            raise Failed(f"the machine was not suspended: see {self.folder}/qemu.log")

    def wait_booted(self, seconds=BOOT_SECONDS):
        """Waits until the machine answers. One whose processors are stuck is switched off and on again; the scenario gets that time back."""
        if self.resumes:
            # Its clock stood still. After a power cut it boots.
            self.resumes = False
            self.run(f"date --set @{time.time():.3f}", seconds)
            return
        for boot in range(STUCK_BOOTS + 1):
            begin = time.monotonic()
            end = self._end(seconds)
            give_up = self._stuck if boot < STUCK_BOOTS else None
            line = ""
            while line is not None and not line.startswith("ready "):
                line = self._line(end, "the machine to boot", give_up)
            if line is not None:
                return
            lost = time.monotonic() - begin
            self.notes.append(f"its processors were stuck as it booted; switched off and on again after {lost:.0f} s")
            self.power_cut()
            if self.deadline is not None:
                self.deadline += lost
            self.start(**self.started)

    def _console_size(self):
        log = self.folder / "console.log"
        return log.stat().st_size if log.exists() else 0

    def _stuck(self):
        """Whether the kernel has said since the machine was switched on that its processors are stuck."""
        log = self.folder / "console.log"
        if self._console_size() <= self.console_before:
            return False
        with open(log, "rb") as file:
            file.seek(self.console_before)
            return file.read().count(b"soft lockup") >= STUCK_REPORTS

    def wait_off(self, seconds):
        """Waits until the machine has switched itself off."""
        end = self._end(seconds)
        try:
            self.qemu.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed(f"the machine did not switch off within {seconds} s") from None
        self._switched_off()

    def reboot(self, seconds):
        """Reboots the machine in an orderly way, with a limit for the shutdown, and waits until it is up again."""
        self.command_and_go("systemctl reboot")
        self.wait_off(seconds)
        self.start()
        self.wait_booted()

    def power_cut(self):
        """Cuts the power at once."""
        if self.qemu is not None:
            self.qemu.send_signal(signal.SIGKILL)
            self.qemu.wait()
            self._switched_off()

    def _switched_off(self):
        self.channel.close()
        if self.qemu.stdin is not None:
            self.qemu.stdin.close()
        self.qemu = self.channel = None

    # The channel.

    def run(self, script, seconds=COMMAND_SECONDS, check=True):
        """Runs a shell script inside; with `check` it must succeed."""
        self.number += 1
        text = base64.b64encode(script.encode()).decode()
        end = self._end(seconds + 10)
        self._send(f"{self.number} {seconds * self.arch.slow} -{text}\n".encode(), end)
        while True:
            words = self._line(end, f"`{script}`").split()
            if words[0] == str(self.number):
                break
        decode = lambda word: base64.b64decode(word[1:]).decode(errors="replace")
        result = Result(int(words[1]), decode(words[2]), decode(words[3]))
        if check and result.status != 0:
            said = (result.err.strip() or result.out.strip())[-2000:]
            why = f"took longer than {seconds} s" if result.status in (124, 137) else f"ended with {result.status}"
            raise Failed(f"`{script}` {why}: {said}")
        return result

    def out(self, script, seconds=COMMAND_SECONDS):
        """Runs a script; returns its output."""
        return self.run(script, seconds).out.strip()

    def command_and_go(self, script):
        """Sends a script that may not be answered, because the machine goes down."""
        self.number += 1
        text = base64.b64encode(script.encode()).decode()
        self._send(f"{self.number} 600 -{text}\n".encode(), self._end(COMMAND_SECONDS))

    def until(self, what, script, wanted=lambda out: True, seconds=60):
        """Repeats a script until it succeeds with the wanted output; returns the output."""
        end = self._end(seconds)
        last = None
        while time.monotonic() < end:
            begin = time.monotonic()
            last = self.run(script, check=False)
            if last.status == 0 and wanted(last.out.strip()):
                return last.out.strip()
            # No event reports the state inside the machine, and each look takes processors from what is waited for.
            time.sleep(max(0.25, time.monotonic() - begin))
        said = f"{last.out.strip()} {last.err.strip()}".strip()[-2000:] if last else "nothing"
        raise Failed(f"waited {seconds} s for {what}; last: {said}")

    def write(self, path, text, mode="644"):
        """Writes a file atomically."""
        quoted, data = shlex.quote(path), base64.b64encode(text.encode()).decode()
        self.run(
            f"t=$(mktemp {shlex.quote(os.path.dirname(path))}/.new.XXXXXX) && echo {data} | base64 -d >$t && "
            f"chmod {mode} $t && mv $t {quoted}"
        )

    # coracle.

    def manifest(self, name, text):
        """Writes a manifest."""
        self.write(f"/etc/coracle/manifests/{name}.yaml", text)

    def pod(self, name):
        """A pod as the API shows it; `None` if there is none."""
        result = self.run(f"coracle get pod {name} -o json", check=False)
        return json.loads(result.out) if result.status == 0 else None

    def wait_pod(self, name, what, wanted, seconds=60):
        """Waits until a pod is as wanted, and returns it."""
        found = {}

        def look(out):
            found["pod"] = json.loads(out)
            return wanted(found["pod"])

        self.until(f"pod {name} to be {what}", f"coracle get pod {name} -o json", look, seconds)
        return found["pod"]

    def wait_running(self, name, seconds=60):
        """Waits until a pod is ready."""
        ready = lambda pod: any(
            c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", [])
        )
        return self.wait_pod(name, "ready", ready, seconds)

    def pods_gone(self, seconds=60):
        """Removes all manifests and waits until no pod is left."""
        self.run("rm -f /etc/coracle/manifests/*")
        self.until("all pods to go", "coracle get pods -A -o name", lambda out: out == "", seconds)

    def cgroup(self, pod, container=None):
        """The path of a pod's or container's cgroup."""
        found = self.out(f"find /sys/fs/cgroup -type d -name 'pod{pod['metadata']['uid']}'")
        if not found or "\n" in found:
            raise Failed(f"not one cgroup of pod {pod['metadata']['name']}: `{found}`")
        return f"{found}/c-{container}" if container else found

    # Time.

    def _end(self, seconds):
        end = time.monotonic() + seconds * self.arch.slow
        return end if self.deadline is None else min(end, self.deadline)

    def _send(self, data, end):
        while data:
            left = end - time.monotonic()
            if left <= 0 or not select.select([], [self.channel], [], left)[1]:
                raise Failed("the machine does not accept commands")
            try:
                data = data[self.channel.send(data) :]
            except (BrokenPipeError, ConnectionResetError):
                raise Failed("the machine is off") from None

    def _line(self, end, what, give_up=None):
        """The next line, or `None` when `give_up`, which is asked every few seconds, says so."""
        while b"\n" not in self.pending:
            left = end - time.monotonic()
            wait = left if give_up is None else min(left, 5)
            if left <= 0:
                raise Failed(f"no answer in time; waited for {what}")
            if not select.select([self.channel], [], [], wait)[0]:
                if give_up is not None and give_up():
                    return None
                continue
            try:
                data = self.channel.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                raise Failed(f"the machine is off; waited for {what}")
            self.pending += data
        line, self.pending = self.pending.split(b"\n", 1)
        return line.decode(errors="replace") or "-"
