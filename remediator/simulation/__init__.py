"""The embedded cluster: an in-process Kubernetes API server, scheduler, controllers and kubelets with devices.

A verified fake: tests/contract runs the same cases against it and against the real kube-apiserver; what it does not
do it refuses with 501, it never guesses. Used by `gpuward demo`, `replay` and tests; start it with
`cluster.EmbeddedCluster`.

How a request walks: `http` -> `api` (path, verb) -> `reads` or `writes` -> `strategy`/`schema` (what is true of one
kind) -> `store`; watches are fed from the store's history by `watching`.
May import: `remediator.domain`, `exporter.health`; `starlette` and `uvicorn` for HTTP. Never imported by production
code.
"""
