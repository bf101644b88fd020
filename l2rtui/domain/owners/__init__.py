"""Owners: the slots and GPUs that each person uses in each project, and the idle ones among them. Pure.

Everything is derived from nodes, pods and the ledger. A GPU without a measurement is unknown, never idle.
"""
