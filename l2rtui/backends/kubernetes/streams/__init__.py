"""Byte streams of one pod: logs across restarts, rotation and connection losses; exec; port-forward.

Lists and watches of objects are in ``api`` and ``state``.
"""
