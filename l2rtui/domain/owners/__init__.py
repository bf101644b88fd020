"""Owners: the slots and GPUs that each person uses in each project, and those that do nothing. Pure.

All of it is derived from nodes, pods and the ledger; what a source does not measure is unknown and never idle.
"""
