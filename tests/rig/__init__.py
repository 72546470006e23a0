"""The real parts that tests and `make demo CLUSTER=real` run on: control plane, nodes, Prometheus.

Binaries come from public Go modules (go/), built once into the user cache. Everything runs in fresh temporary folders,
on free ports, and ends with the process that started it. May import anything; control_plane.py and what it needs import
nothing of our programs.
"""
