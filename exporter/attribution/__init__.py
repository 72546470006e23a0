"""Attribution: which pod holds which (part of a) GPU; one file per allocation or sharing system.

Lives here: pure functions over facts that the readers collected. May not live here: I/O of any kind.
May import: the standard library, `exporter.health`, `exporter.readings`.
"""
