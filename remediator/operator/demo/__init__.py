"""`gpuward demo`: a fault that heals itself, told while it happens, checked in the API and in `/metrics`.

Lives here: the stage (`stage.py`: cluster, nodes, exporters, remediator), what runs on it (`workloads.py`), the eyes
that look at it (`eyes.py`) and the story (`story.py`). May not live here: anything the product needs.
May import: everything (operator floor).
"""
