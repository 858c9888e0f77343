"""Measures pulls of a large image beside podman's, the workers' memory and writes, and the agent after many pulls. Used
by bench.py."""

import hashlib
import io
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tarfile
import tempfile
import threading
import time

REGISTRY = "127.0.0.1:5000"
LAYERS = 5
LAYER_BYTES = 100_000_000
SMALL_PULLS = 100


def packaged_files():
    """Files of this machine's packages, each once."""
    for top in ("/usr/lib", "/usr/share", "/usr/bin"):
        for folder, below, names in os.walk(top):
            below.sort()
            for name in sorted(names):
                path = pathlib.Path(folder, name)
                if path.is_file() and not path.is_symlink():
                    yield path


def add(archive, name, data):
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def layer(path, files, size):
    """Writes a layer of about `size` bytes; returns its digest."""
    with tarfile.open(path, "w") as archive:
        while archive.offset < size:
            file = next(files)
            # A file may be changed or gone by now.
            try:
                archive.add(file, str(file).lstrip("/"), recursive=False)
            except OSError:
                continue
    with open(path, "rb") as written:
        return hashlib.file_digest(written, "sha256").hexdigest()


def make_image(folder, layers, size):
    """A docker archive that skopeo compresses when it pushes it."""
    files = packaged_files()
    names = [f"{index}.tar" for index in range(layers)]
    digests = [layer(folder / name, files, size) for name in names]
    config = {"architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
              "os": "linux", "config": {},
              "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]}}
    path = folder / "image.tar"
    with tarfile.open(path, "w") as archive:
        add(archive, "config.json", json.dumps(config).encode())
        add(archive, "manifest.json", json.dumps([{"Config": "config.json", "RepoTags": None, "Layers": names}]).encode())
        for name in names:
            archive.add(folder / name, name)
            (folder / name).unlink()
    return path


class Watch(threading.Thread):
    """The peak memory of each image worker, and what all of them wrote, while it runs."""

    def __init__(self, agent):
        super().__init__(daemon=True)
        self.parent, self.peaks, self.written, self.ended = agent.process.pid, {}, {}, threading.Event()

    def run(self):
        while not self.ended.wait(0.01):
            children = pathlib.Path(f"/proc/{self.parent}/task/{self.parent}/children")
            tasks = pathlib.Path(f"/proc/{self.parent}/task").glob("*/children")
            for pid in {pid for task in {children, *tasks} for pid in read(task).split()}:
                if b"image-worker" not in read(pathlib.Path(f"/proc/{pid}/cmdline")).encode():
                    continue
                lines = dict(line.split(":", 1) for line in read(pathlib.Path(f"/proc/{pid}/status")).splitlines())
                if "VmHWM" in lines:
                    self.peaks[pid] = int(lines["VmHWM"].split()[0])
                lines = dict(line.split(":", 1) for line in read(pathlib.Path(f"/proc/{pid}/io")).splitlines())
                if "write_bytes" in lines:
                    self.written[pid] = int(lines["write_bytes"])

    def finish(self):
        self.ended.set()
        self.join()
        return max(self.peaks.values(), default=0), sum(self.written.values())


def read(path):
    """The text of a file of a process, which may have ended."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def timed(command, **options):
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr}")
    return time.monotonic() - began


def costs(agent, row, rounds, pss):
    for program in ("docker-registry", "skopeo", "podman"):
        if not shutil.which(program):
            row("pulls", f"{program} is not installed", "")
            return
    folder = pathlib.Path(tempfile.mkdtemp(prefix="coracle-bench-pull.", dir="/tmp"))
    inside = ["nsenter", f"--net=/proc/{agent.process.pid}/ns/net", "--"]
    config = folder / "registry.yml"
    config.write_text(f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/blobs}}}}\n"
                      f"http: {{addr: '{REGISTRY}'}}\n")
    server = subprocess.Popen([*inside, "docker-registry", "serve", config], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    podman = [*inside, "podman", "--root", folder / "podman", "--runroot", folder / "podman-run", "--storage-driver",
              "overlay"]
    try:
        for name, layers, size in (("big", LAYERS, LAYER_BYTES), ("small", 1, 1_000_000)):
            archive = make_image(folder, layers, size)
            # skopeo tries again until the registry listens.
            timed([*inside, "skopeo", "--insecure-policy", "copy", "--quiet", "--retry-times", "5", "--dest-tls-verify=false",
                   f"docker-archive:{archive}", f"docker://{REGISTRY}/{name}:1"])
            archive.unlink()
        blobs = sum(path.stat().st_size for path in (folder / "blobs").rglob("data"))
        ours, theirs, peaks, written = [], [], [], []
        for _ in range(rounds):
            watch = Watch(agent)
            watch.start()
            ours.append(timed([agent.binary, "image", "pull", "--quiet", f"{REGISTRY}/big:1"], env=agent.env))
            peak, bytes_written = watch.finish()
            peaks.append(peak)
            written.append(bytes_written)
            # Blocks: most files fill their last one only in part.
            used = subprocess.run(["du", "-s", "--block-size=1", agent.dir / "root/images"], capture_output=True, text=True)
            unpacked = int(used.stdout.split()[0])
            agent.cli("image", "rm", f"{REGISTRY}/big:1")
            theirs.append(timed([*podman, "pull", "--quiet", "--tls-verify=false", f"{REGISTRY}/big:1"]))
            timed([*podman, "rmi", f"{REGISTRY}/big:1"])
        size = LAYERS * LAYER_BYTES
        ours, theirs = statistics.median(ours), statistics.median(theirs)
        row(f"pull of {size / 1e6:.0f} MB, beside podman's {theirs:.1f} s", f"{ours:.1f} s = {ours / theirs:.2f} x", "0.6 x")
        row("peak memory of its largest worker", f"{max(peaks) / 1024:.0f} MB", "64 MB")
        row("written, beside compressed + unpacked", f"{statistics.median(written) / (blobs + unpacked):.2f} x", "1.05 x")
        before = pss([agent.process.pid])
        for _ in range(SMALL_PULLS):
            agent.cli("image", "pull", "--quiet", f"{REGISTRY}/small:1")
            agent.cli("image", "rm", f"{REGISTRY}/small:1")
        row(f"agent's memory grown by {SMALL_PULLS} pulls", f"{pss([agent.process.pid]) - before} KB", "0 KB")
    finally:
        server.terminate()
        server.wait()
        subprocess.run([*podman, "system", "reset", "--force"], capture_output=True)
        subprocess.run(["umount", folder / "podman/overlay"], stderr=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)
