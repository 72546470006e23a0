"""Grafana dashboards as code: readable Python in, import-ready JSON out (`make dashboards`).

Lives here: one file per dashboard, `panels.py` for what they share, the generated JSON beside them.
May not live here: anything the two programs import. May import: grafana_foundation_sdk.
"""
