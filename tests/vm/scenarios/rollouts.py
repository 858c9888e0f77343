"""A rollout that is taken back, over a power cut."""

import json

from catalogue import scenario

from scenarios.node import IMAGE, equal

MACHINE = "security"
ORDER = 1

SLEEP = "trap 'exit 0' TERM; while :; do sleep 1 & wait; done"


def deployment(image):
    """A Deployment that is taken back if its pods are not ready in time."""
    container = {"name": "main", "image": image, "command": ["sh", "-c", SLEEP]}
    return json.dumps(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "annotations": {"coracle.dev/rollback": "true"}},
            "spec": {
                "replicas": 2,
                "progressDeadlineSeconds": 8,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}},
            },
        }
    )


@scenario(seconds=120)
def a_power_cut_in_a_failing_rollout_ends_with_the_former_template(vm):
    """The power fails while pods of a broken image are rolled out; the former ones run again by themselves, and stay."""
    pods = "coracle get pods -l app=web -o name"
    ready = "coracle get deployment web -o jsonpath={.status.availableReplicas}"
    vm.manifest("web", deployment(IMAGE))
    vm.until("the pods to be good", "cat /var/lib/coracle/revisions.json || true", lambda out: '"good":"' in out)
    good = vm.out(pods)
    vm.manifest("web", deployment("docker.io/library/busybox:none"))
    vm.until("a pod of the broken image", pods, lambda out: len(out.split()) == 3)
    vm.run("sync /etc/coracle/manifests/web.yaml /etc/coracle/manifests")
    vm.power_cut()
    vm.start()
    vm.wait_booted()
    vm.until("the rollback", "coracle get files", lambda out: "RolledBack" in out)
    vm.until("the former pods", ready, lambda out: out == "2")
    vm.until("none of the others", pods, lambda out: out == good)
    # Another agent does not try the broken image again.
    vm.run("systemctl restart coracle")
    vm.until("the agent", "coracle get files", lambda out: "RolledBack" in out)
    equal("the pods", vm.out(pods), good)
    equal("rollbacks", vm.out("journalctl -b -o cat -u coracle | grep -c 'is brought back'"), "1")
