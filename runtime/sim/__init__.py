"""Simulators: protocol, supervision, and a reference simulator that speaks the same protocol.

``spec`` has the settings, ``wire`` the protocol (bytes, control calls, UDP, cameras), ``launchers`` a process,
container or sidecar with its ports, ``control`` one simulator's session, supervision and control socket, and
``reference`` a simulator of our own. This package does not use torch or the learner; ``docs/simulator.md``
describes it.
"""
