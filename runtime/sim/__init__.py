"""Simulators: what starts, watches and talks to one, and a reference simulator that speaks the same protocol.

From the wire up: ``protocol`` (bytes and names, no I/O), ``websocket`` and ``controller`` (control), ``interfaces``
and ``camera`` (action, pose, images), ``ports`` (which of them a simulator gets), ``shim`` and ``process`` (a
simulator as a subprocess), ``container`` (the same on a Docker Engine), ``health`` (what the signs of life mean).
Nothing here knows torch or the learner. ``docs/simulator.md`` describes the protocol.
"""
