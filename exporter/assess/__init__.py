"""Judgement: readings to health events (`assess`), events to standing findings (`fold`).

Lives here: pure functions and their limits. May not live here: a clock, a file, a socket, a logger, a thread.
May import: the standard library, `exporter.health`, `exporter.readings`.
"""
