"""The published language of gpuward: fault codes, severities, findings, reports, and the keys both programs write.

Lives here: words (`vocabulary`), names of labels, annotations and API groups (`keys`), the Xid and SXid catalogue as
data (`catalogue`, `data/`), and the wire form of a report in a GPUNode object (`wire`).
May not live here: reading a device, judging a reading, any I/O beyond the package's own data files, a clock.
May import: the standard library only. `remediator` may import this package and nothing else of `exporter`.
"""
