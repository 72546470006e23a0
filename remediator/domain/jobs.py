"""Our Jobs as plain manifests: a template of the policy, bound to the node, named so that no try runs twice."""

from collections.abc import Mapping
from copy import deepcopy
from hashlib import sha256
from typing import Any

from exporter.health import keys
from remediator.domain.case import Case
from remediator.domain.model import Incident, JobFacts

REPAIR = "repair"
VALIDATE = "validate"


def job_name(incident: Incident, step: str, attempt: int) -> str:
    """Same incident, step and attempt = same Job, however often it is asked for (below 63 characters)."""
    digest = sha256(incident.name.encode()).hexdigest()[:10]
    return f"gpuward-{step}-{digest}-{attempt}"


def find(case: Case, name: str) -> JobFacts | None:
    return next((job for job in case.view.jobs if job.name == name), None)


def manifest(case: Case, step: str, name: str, template: Mapping[str, Any]) -> dict[str, Any]:
    """The Job for `case`: bound to the node by nodeName (the scheduler, our taint and a cordon do not matter), not
    retried by the Job controller (attempts are ours to count), owned by the incident where its UID is known."""
    incident = case.incident
    job = _filled(deepcopy(dict(template)), _words(incident))
    labels = {keys.INCIDENT_LABEL: incident.name, keys.STEP_LABEL: step, keys.NODE_LABEL: incident.node[:63]}
    metadata: dict[str, Any] = {**(job.get("metadata") or {}), "name": name}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    if incident.uid:
        metadata["ownerReferences"] = [
            {
                "apiVersion": keys.API_VERSION,
                "kind": keys.GPU_INCIDENT_KIND,
                "name": incident.name,
                "uid": incident.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ]
    spec: dict[str, Any] = {"backoffLimit": 0, **(job.get("spec") or {})}
    # A Job that deletes itself would look like one that never ran, and would be asked for again.
    spec.pop("ttlSecondsAfterFinished", None)
    pod: dict[str, Any] = dict(spec["template"])
    pod_metadata: dict[str, Any] = {**(pod.get("metadata") or {})}
    pod["metadata"] = {**pod_metadata, "labels": {**(pod_metadata.get("labels") or {}), **labels}}
    pod["spec"] = {"restartPolicy": "Never", **pod["spec"], "nodeName": incident.node}
    spec["template"] = pod
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _words(incident: Incident) -> dict[str, str]:
    gpu = incident.gpu
    return {
        "{{node}}": incident.node,
        "{{gpu}}": gpu.uuid if gpu else "",
        "{{gpuIndex}}": str(gpu.index) if gpu else "",
        "{{fault}}": incident.fault,
        "{{incident}}": incident.name,
    }


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    """`value` with the placeholders replaced in every string."""
    match value:
        case str():
            for placeholder, word in words.items():
                value = value.replace(placeholder, word)
            return value
        case dict():
            return {key: _filled(item, words) for key, item in value.items()}
        case list():
            return [_filled(item, words) for item in value]
        case _:
            return value
