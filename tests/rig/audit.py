"""What our programs really wrote, by the API server's own audit log: the only witness that cannot overlook a write."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

WRITES = ("create", "update", "patch", "delete", "deletecollection")
ACCOUNT = "system:serviceaccount:gpuward:"


class Write(NamedTuple):
    """One accepted or refused write; `resource` includes the subresource (pods/eviction)."""

    verb: str
    resource: str
    namespace: str
    name: str
    status: int


class Audit:
    """Log and policy live in `folder`; give flags() to kube-apiserver."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "audit.log"
        self._policy = folder / "audit.yaml"
        rule = {"level": "Metadata", "userGroups": [f"{ACCOUNT.removesuffix(':').replace('account', 'accounts')}"]}
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
        self._policy.write_text(
            yaml.safe_dump({**policy, "rules": [{**rule, "verbs": list(WRITES)}, {"level": "None"}]})
        )

    def flags(self) -> Sequence[str]:
        return [f"--audit-log-path={self._log}", f"--audit-policy-file={self._policy}", "--audit-log-mode=blocking"]

    def mark(self) -> int:
        """Return a place in the log for `since`."""
        return self._log.stat().st_size if self._log.exists() else 0

    def writes(self, account: str, since: int = 0) -> list[Write]:
        """Return what the service account gpuward/`account` wrote after the place `since`, in order."""
        with self._log.open("rb") as log:
            log.seek(since)
            entries = [json.loads(line) for line in log.read().splitlines() if line.endswith(b"}")]
        found = []
        for entry in entries:
            if entry["user"]["username"] == ACCOUNT + account and entry["stage"] == "ResponseComplete":
                thing = entry["objectRef"]
                resource = "/".join(filter(None, (thing["resource"], thing.get("subresource"))))
                place = (thing.get("namespace", ""), thing.get("name", ""))
                found.append(Write(entry["verb"], resource, *place, entry["responseStatus"]["code"]))
        return found
