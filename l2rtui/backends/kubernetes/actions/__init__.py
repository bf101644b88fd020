"""Writes and checks on a cluster: launch, scale, kill, destroy, slot leases, preflight, leftovers.

`state` reads the state of a cluster.
"""
