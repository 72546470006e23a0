"""What runs in the demo: a training Deployment, an inference Deployment with a budget, a bare pod; and the policy."""

from typing import Any

NAMESPACE = "demo"
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
        _deployment("training", 6, 1),
        _deployment("inference", 4, 1),
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
            "spec": bare["spec"],
        },
    ]
