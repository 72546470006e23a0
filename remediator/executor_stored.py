"""Whether the API server has kept what was sent: a CustomResourceDefinition of another version drops fields silently.

Law: an intent that was not stored whole is not acted on, whatever the status code said (write-ahead).
"""

from collections.abc import Mapping
from typing import Any

from exporter.health import keys
from remediator.adapters import wire
from remediator.adapters.recorder import Told

ADVICE = "apply the CustomResourceDefinitions of this version"


def lacking(sent: Any, stored: Any, path: str = "status") -> str | None:
    """Path of the first thing in `sent` that `stored` has not, or has otherwise; None = all is there."""
    match sent:
        case Mapping():
            if not isinstance(stored, Mapping):
                return path
            parts = ((f"{path}.{key}", value, stored.get(key)) for key, value in sent.items())
        case list():
            if not isinstance(stored, list) or len(stored) != len(sent):
                return path
            parts = ((f"{path}[{at}]", *pair) for at, pair in enumerate(zip(sent, stored, strict=True)))
        case _:
            return None if sent == stored else path
    return next((found for where, ours, theirs in parts if (found := lacking(ours, theirs, where))), None)


def complaint(stored: wire.StatusCarrier, missing: str) -> Told:
    """The Event that says so, on the incident."""
    return Told(
        kind=keys.GPU_INCIDENT_KIND,
        name=stored.metadata.name,
        uid=stored.metadata.uid,
        reason="IncidentNotStored",
        message=f"the API server dropped {missing}, nothing is done for this incident: {ADVICE}",
        warning=True,
        dedupe=f"{stored.metadata.uid}/not-stored/{missing}",
        api_version=keys.API_VERSION,
    )
