"""The pure core of the remediator: model, states, policy, budgets, guards, planner.

Lives here: `plan(view, policy, now) -> Plan` and everything it needs, the GPUIncident and GPUNode CRDs as data.
May not live here: a clock, a socket, a file, a logger, a thread, Kubernetes client code.
May import: the standard library, `exporter.health`; `pydantic` only in `policy.py`.
"""
