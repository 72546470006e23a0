"""Quarantine: take the bad GPU (or node) out of scheduling, verify it, undo only what we did; one file per method.

May import: `remediator.domain`, `remediator.adapters`, `exporter.health`.
"""
