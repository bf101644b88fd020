"""Writes and checks on a cluster: launch, scale, kill, destroy, slot leases, preflight, leftovers.

Reading the state of a cluster is in `state`.
"""
