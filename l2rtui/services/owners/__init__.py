"""Owners: what commands need beside one snapshot: earlier looks at idle GPUs, and GPU-hours of the history.

What each owner holds is computed in ``domain.owners``.
"""
