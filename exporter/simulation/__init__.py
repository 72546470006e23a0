"""Simulated GPUs at the NVML library seam: the real nvidia-ml-py runs over them.

Lives here: the C-function stand-ins, hardware profiles as data, the state file of a simulated node, faults,
a simulated kubelet pod-resources socket. May not live here: anything the exporter needs in production.
May import: `exporter.health`, `exporter.readings`; `pynvml` for struct layouts; `h2` for the socket.
"""
