"""What runs in the demo: a training Deployment, an inference Deployment with a budget, a bare pod; and the policy."""

from typing import Any

NAMESPACE = "demo"
TRAINERS, SERVERS = 6, 4
PODS = TRAINERS + SERVERS + 1
REPAIR_SECONDS = 3
VALIDATE_SECONDS = 2


def _pod_template(app: str, gpus: int) -> dict[str, Any]:
    return {
        "metadata": {"labels": {"app": app}},
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "containers": [
                {
                    "name": "worker",
                    "image": f"demo/{app}:1",
                    "resources": {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"nvidia.com/gpu": str(gpus)}},
                }
            ],
        },
    }


def _deployment(app: str, replicas: int, gpus: int) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": app, "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": app}},
            "template": _pod_template(app, gpus),
        },
    }


def workloads() -> list[dict[str, Any]]:
    """Objects in the order in which they are created."""
    bare = _pod_template("notebook", 1)
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        _deployment("training", TRAINERS, 1),
        _deployment("inference", SERVERS, 1),
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "inference", "namespace": NAMESPACE},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "inference"}}},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "notebook", "namespace": NAMESPACE, "labels": {"app": "notebook"}},
            # A bare pod is held, never evicted: on n1 it would keep the node from its reboot.
            "spec": {**bare["spec"], "nodeSelector": {"kubernetes.io/hostname": "n2"}},
        },
    ]


def policy() -> dict[str, Any]:
    """Enforce for certain faults, each with the narrowest repair that helps; five seconds of probation."""
    after = {"validate": {"job": _job("validate"), "timeoutSeconds": 60}, "probationSeconds": 5}
    return {
        "budget": {"nodes": 1},
        "rules": [
            {
                "name": "gpu-off-the-bus",
                "mode": "enforce",
                "faults": ["xid-79", "gpu-lost"],
                "playbook": {
                    # It comes back with a reboot only, and a reboot hits every pod of the node: so they are moved
                    # first, one at a time where a budget says so.
                    "drain": {"pods": "node"},
                    "repair": [{"name": "reboot", "needs": "node", "timeoutSeconds": 120, "job": _job("reboot")}],
                    **after,
                },
            },
            {
                "name": "memory-fault",
                "mode": "enforce",
                "faults": ["xid-48", "xid-95"],
                "playbook": {
                    # A reset of that GPU is enough: pods on its siblings go on.
                    "repair": [{"name": "reset", "needs": "gpu", "timeoutSeconds": 120, "job": _job("reset")}],
                    **after,
                },
            },
        ],
    }


def _job(what: str) -> dict[str, Any]:
    container = {"name": what, "image": f"demo/{what}:1", "command": [what, "{{node}}", "{{gpuIndex}}"]}
    return {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}}
