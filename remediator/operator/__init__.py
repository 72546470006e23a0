"""The `gpuward` command (also `kubectl gpuward`): one file per subcommand.

Lives here: what an operator types, and the demo. May not live here: anything the two programs need to run.
May import: everything; it is the only place that may import both `exporter` and `remediator`.
"""
