"""Owners: data that commands need in addition to a snapshot: earlier looks at idle GPUs, and GPU-hours of the
history.

The slots and GPUs of each owner are computed in ``domain.owners``.
"""
