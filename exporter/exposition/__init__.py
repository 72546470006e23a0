"""Exposition: readings to Prometheus text; families by subject, one file each, and the renderer.

Lives here: metric names, help texts, labels, rendering to bytes. May not live here: reading a device, judging.
May import: `exporter.health`, `exporter.readings`; `prometheus_client` only in `own.py`.
"""
