"""Readers: one file per source of facts (NVML, kernel log, kubelet pod-resources, host).

Lives here: the only code that talks to a driver, a device file or a kubelet; it turns foreign errors into ours.
May not live here: judgement, metrics, Kubernetes objects.
May import: `exporter.health`, `exporter.readings`, and each the one third-party package it is the home of.
"""
