"""A real API server for tests/fakes/world.py: the two calls that its world needs."""

from collections.abc import Iterable
from typing import Any

from remediator.simulation.calls import Reply
from tests.rig.api import MERGE, Api, ApiError, Object

COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{}/pods",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "GPUNode": "/apis/gpuward.io/v1alpha1/gpunodes",
}


class RealServer:
    """What `EmbeddedCluster` offers to a world, asked of a real server as the identity of `api`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def request(self, method: str, path: str, body: Any = None) -> Reply:
        """One request; the answer may be a refusal."""
        answer = self._api.ask(method, path, body, MERGE if method == "PATCH" else "application/json")
        return Reply(code=answer.status, body=answer.body)

    def apply(self, objects: Iterable[Object]) -> list[Object]:
        """Create each object, or merge-patch it where it exists; ApiError when refused."""
        return [self._apply(each) for each in objects]

    def _apply(self, wanted: Object) -> Object:
        metadata = wanted["metadata"]
        collection = COLLECTIONS[wanted["kind"]].format(metadata.get("namespace", "default"))
        address = f"{collection}/{metadata['name']}"
        try:
            stored = self._api.create(collection, wanted)
        except ApiError as error:
            if error.status != 409:
                raise
            stored = self._api.merge(address, {key: value for key, value in wanted.items() if key != "status"})
        if "status" in wanted:
            stored = self._api.merge(f"{address}/status", {"status": wanted["status"]})
        return stored
