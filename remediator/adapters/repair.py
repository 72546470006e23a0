"""Repair and validation Jobs in our namespace: made once under a deterministic name, deleted when they are read."""

from collections.abc import Mapping
from typing import Any

from remediator.adapters.api import KubeApi
from remediator.adapters.errors import AlreadyExists, NotFound
from remediator.adapters.resources import JOBS, Ref


class JobRunner:
    """Creates and deletes our Jobs; seeing them is the observer's part."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    def create(self, manifest: Mapping[str, Any]) -> bool:
        """True when created now, False when it was there already."""
        body = {**manifest, "metadata": {**manifest.get("metadata", {}), "namespace": self._namespace}}
        try:
            self._api.create(JOBS, body, self._namespace)
        except AlreadyExists:
            return False
        return True

    def delete(self, name: str) -> bool:
        """True when deletion was asked for, False when it is gone already; its pods go with it."""
        try:
            self._api.delete(Ref(JOBS, name, self._namespace), propagation="Background")
        except NotFound:
            return False
        return True
