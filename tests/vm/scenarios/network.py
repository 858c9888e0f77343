"""Pods on the bridge, with the machine's own kernel and nft."""

from catalogue import scenario
from machine import Failed

from scenarios.node import agent_pid, equal, pod

MACHINE = "node"

SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}\n"
# Debian's static busybox crashes on `wget -T`, so `timeout` limits the wait.
BY_NAME = "timeout 5 wget -q -O - http://web.default.svc.cluster.local/health"
# The node's address on a network of its own.
HOST = "192.0.2.1"


@scenario(seconds=200)
def pods_reach_each_other_and_are_reached_at_host_ports(vm):
    """A service by its name, a host port at an address of the node, all three kinds of probes; also after a flush of all rules and a killed agent."""
    vm.run(f"ip link show up0 >/dev/null 2>&1 || ip link add up0 type dummy && ip address replace {HOST}/24 dev up0 && ip link set up0 up")
    vm.manifest("service", SERVICE)
    vm.manifest(
        "web",
        pod(
            "web",
            command="mkdir /www; echo fine >/www/health; exec httpd -f -p 8080 -h /www",
            container="""    ports: [{containerPort: 8080, hostPort: 8088}]
    startupProbe: {exec: {command: [test, -e, /www/health]}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 30}
    readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1, timeoutSeconds: 5}
    livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 5}""",
        ),
    )
    vm.manifest("client", pod("client"))
    web = vm.wait_running("web")
    vm.wait_running("client")
    address = web["status"]["podIP"]

    def reached(when):
        for what, script in [
            ("the service", f"coracle exec client -- {BY_NAME}"),
            ("the pod's address", f"coracle exec client -- timeout 5 wget -q -O - http://{address}:8080/health"),
            ("the host port", f"timeout 5 busybox wget -q -O - http://{HOST}:8088/health"),
            ("the host port, from a pod", f"coracle exec client -- timeout 5 wget -q -O - http://{HOST}:8088/health"),
        ]:
            vm.until(f"{what} to answer {when}", script, lambda out: out == "fine")

    reached("at first")
    vm.run("nft flush ruleset")
    reached("after a flush")
    agent = agent_pid(vm)
    vm.run(f"kill -9 {agent}")
    vm.until("another agent", "systemctl show -p MainPID --value coracle", lambda out: out not in ("0", agent))
    reached("after a kill")
    equal("restarts", vm.wait_running("web")["status"]["containerStatuses"][0]["restartCount"], 0)
    vm.run("rm /etc/coracle/manifests/web.yaml")
    vm.until("the pod to go", "coracle get pods -o name", lambda out: "web" not in out)
    if vm.run(f"timeout 2 busybox wget -q -O - http://{HOST}:8088/health", check=False).status == 0:
        raise Failed("the host port answers without its pod")
    vm.run("ip link delete up0")
