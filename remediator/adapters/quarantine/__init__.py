"""Quarantine: take the bad GPU (or node) out of scheduling, verify it, undo only what we did; one file per method.

May import: `remediator.domain`, `remediator.adapters`, `exporter.health`.
"""

from remediator.adapters.quarantine.node_taint import NodeTaint

METHODS = (NodeTaint,)
"""Every method there is, narrowest last; a test finds a forgotten file."""
