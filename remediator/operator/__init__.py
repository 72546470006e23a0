"""The `gpuward` command (also `kubectl gpuward`): one file per subcommand.

The only place that may import both `exporter` and `remediator`.
"""
