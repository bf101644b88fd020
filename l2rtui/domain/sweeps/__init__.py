"""Sweeps: trials, and how their values are chosen from lists and ranges. Pure.

Neither how a spec file writes a sweep (``services.spec.sweep_fields``) nor results (``domain.experiments``).
"""
