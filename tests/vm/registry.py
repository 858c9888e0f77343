"""The images of the registry that scenarios start in their machine: `fill` pushes them into a folder beforehand."""

import hashlib
import io
import json
import random
import shutil
import subprocess
import tarfile
from pathlib import Path

# Its files lie on the read-only disk of the program under test.
CONFIG = """version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}}}, maintenance: {{readonly: {{enabled: {readonly}}}}}}}
http: {{addr: '{address}'}}
"""
ADDRESS = "127.0.0.1:5000"
IMAGE = f"{ADDRESS}/site/app"
TAGS = ("1", "2")

# A network of its own, so that no port of the host is taken.
PUSH = """ip link set lo up
docker-registry serve "$1" >/dev/null 2>&1 &
registry=$!
trap 'kill $registry' EXIT
shift
for tag do
    skopeo --insecure-policy copy --quiet --retry-times 5 --dest-tls-verify=false docker-archive:"$tag.tar" docker://"$IMAGE:$tag"
done"""

# Each layer takes a few reads and writes; it does not compress.
LAYERS, FILES, FILE_BYTES = 4, 40, 60_000


def fill(folder, work, busybox, arch):
    """Makes a registry's files in `folder`: an image in two versions that share half of their layers."""
    folder.mkdir()
    work = Path(work, "push")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    base = tar({"bin/busybox": (Path(busybox).read_bytes(), 0o755), "bin/sh": "busybox"})
    for tag in TAGS:
        layers = [base]
        for number in range(LAYERS):
            # The last layers are the version's own.
            seed = random.Random(f"{number} {tag if number >= LAYERS // 2 else ''}")
            files = {f"data/{number}/{n}": (seed.randbytes(FILE_BYTES), 0o644) for n in range(FILES)}
            layers.append(tar({**files, "data/version": (tag.encode(), 0o644)}))
        (work / f"{tag}.tar").write_bytes(archive(layers, arch))
    config = work / "registry.yml"
    config.write_text(CONFIG.format(folder=folder.absolute(), readonly="false", address=ADDRESS))
    subprocess.run(["unshare", "--net", "sh", "-euc", PUSH, "sh", config, *TAGS], cwd=work, env={"IMAGE": IMAGE, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, check=True)
    shutil.rmtree(work)


def tar(files):
    """A tar with files (their data and mode) and symlinks."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as made:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                made.addfile(entry)
            else:
                entry.size, entry.mode = len(content[0]), content[1]
                made.addfile(entry, io.BytesIO(content[0]))
    return data.getvalue()


def archive(layers, arch):
    """A docker archive of one image without a name."""
    diff_ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    config = {"architecture": arch, "os": "linux", "config": {"Env": ["PATH=/bin"]}, "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    names = [f"{number}.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": None, "Layers": names}]
    files = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode(), **dict(zip(names, layers))}
    return tar({name: (content, 0o644) for name, content in files.items()})


def start(vm):
    """Starts the registry in the machine."""
    vm.write("/run/registry.yml", CONFIG.format(folder="/payload/registry", readonly="true", address=ADDRESS))
    vm.run("systemd-run -q --unit=registry docker-registry serve /run/registry.yml")
    vm.until("the registry to listen", "ss -tln | grep -q :5000")
