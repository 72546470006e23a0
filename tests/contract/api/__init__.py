"""One contract, two servers: every case runs against the embedded API server and against a real kube-apiserver.

A difference is a bug of the embedded one. What it does not do it refuses; that is tested in tests/unit.
"""
