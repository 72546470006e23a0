"""Every API group, annotation, label and taint key of gpuward, once.

Keys are a promise to users: they appear in their manifests, alerts and scripts. Both programs import them from here.
"""

from typing import Final

GROUP: Final = "gpuward.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

GPU_NODE_KIND: Final = "GPUNode"
GPU_NODES: Final = "gpunodes"
GPU_INCIDENT_KIND: Final = "GPUIncident"
GPU_INCIDENTS: Final = "gpuincidents"

NAMESPACE: Final = "gpuward"
"""Default namespace of our pods, Leases, repair and validation Jobs."""

OPT_OUT: Final = f"{GROUP}/opt-out"
"""Annotation on a Node, Namespace or Pod: any value but "false" keeps remediation away; monitoring goes on."""
OPT_OUT_UNTIL: Final = f"{GROUP}/opt-out-until"
"""Optional end of the opt-out, RFC 3339; unparsable = opted out for good."""

APPROVE: Final = f"{GROUP}/approve"
HOLD: Final = f"{GROUP}/hold"
CANCEL: Final = f"{GROUP}/cancel"
RELEASE: Final = f"{GROUP}/release"
"""Annotations on a GPUIncident; the value is the operator's reason."""

UNHEALTHY_TAINT: Final = f"{GROUP}/unhealthy"
"""Node taint; value = fault code of the incident, effect NoSchedule."""
NO_SCHEDULE: Final = "NoSchedule"

GPU_HEALTHY_CONDITION: Final = "GPUHealthy"
"""Node condition mirrored by the remediator, for other controllers."""

INCIDENT_LABEL: Final = f"{GROUP}/incident"
"""Label on every Job or pod that we create: the name of the GPUIncident it serves."""
STEP_LABEL: Final = f"{GROUP}/step"
"""Label on a Job: `repair` or `validate`."""
NODE_LABEL: Final = f"{GROUP}/node"

CONTROLLER: Final = "gpuward-remediator"
"""Event source, field manager and leader Lease name of the remediator."""
EXPORTER: Final = "gpuward-exporter"
"""Event source and field manager of the exporter."""

GPU_RESOURCE_PREFIX: Final = "nvidia.com/"
"""Extended resources whose name begins so are GPUs, MIG slices or shares of the stock device plugin."""
