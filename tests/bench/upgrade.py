"""Measures how long an upgrade of the agent leaves clients without an answer, among running pods. Used by bench.py."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time


def supervised(agent_class, binary):
    """An agent that runs a program of its own, which an init starts again when it ends."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="coracle-bench-upgrade.", dir="/tmp"))
    program = folder / "coracle"
    shutil.copy(binary, program)

    class Supervised(agent_class):
        def launch(self, *before):
            self.stop = folder / "stop"
            loop = 'ip link set lo up && while [ ! -e "$0" ]; do "$@"; done'
            super().launch("unshare", "--net", "--", "sh", "-c", loop, self.stop)

        def close(self):
            self.stop.touch()
            init = self.process.pid
            agent = pathlib.Path(f"/proc/{init}/task/{init}/children").read_text().split()
            for pid in agent:
                os.kill(int(pid), signal.SIGTERM)
            self.process.wait()
            self.process = subprocess.Popen(["true"])
            super().close()
            shutil.rmtree(folder)

    return Supervised(program), program


def ready(path):
    """Whether the agent answers that it is ready."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect(path)
            client.sendall(b"GET /readyz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
            return b" 200 " in client.recv(64)
    except OSError:
        return False


def statuses(agent):
    pods = json.loads(agent.cli("get", "pods", "-A", "-o", "json"))["items"]
    return {pod["metadata"]["name"]: pod["status"]["containerStatuses"] for pod in pods}


def costs(agent, row, program, pods):
    for number in range(pods):
        agent.write(f"p{number}.json", agent.pod(f"p{number}", f": > /out/p{number}; exec sleep 1000"))
    while len(list((agent.dir / "out").iterdir())) < pods:
        time.sleep(0.1)
    agent.cli("wait", "pods", "--all", "--for=condition=Ready", "--timeout=60s")
    before = statuses(agent)
    newer = agent.dir / "newer"
    newer.write_bytes(program.read_bytes() + b"newer")
    newer.chmod(0o755)
    over, gap = threading.Event(), [0.0]

    def watch():
        last = time.monotonic()
        while not over.is_set():
            if ready(agent.env["CORACLE_SOCKET"]):
                now = time.monotonic()
                gap[0], last = max(gap[0], now - last), now
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        agent.cli("upgrade", "--unsigned", "--within", "10s", "--state", str(agent.dir / "upgrade"), str(newer))
    finally:
        over.set()
        watcher.join()
    after = statuses(agent)
    same = sum(after.get(name) == status for name, status in before.items())
    row(f"upgrade, {pods} pods: longest time without an answer", f"{gap[0] * 1000:.0f} ms", "1000 ms")
    row(f"upgrade, {pods} pods: containers that are the same after it", f"{same} of {pods}", f"{pods}")
