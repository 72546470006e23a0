"""Adapters: the thin code that touches the world for the remediator.

Lives here: Kubernetes transport, reflector, work queue, lease elector, event recorder, quarantine methods, repair,
notifications; each translates foreign errors into `errors.py`. May not live here: decisions.
May import: `remediator.domain`, `exporter.health`, and each the one third-party package it is the home of.
"""
