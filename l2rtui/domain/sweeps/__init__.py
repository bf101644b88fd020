"""Sweeps: trials, and the choice of their values from lists and ranges. Pure.

``services.spec.sweep_fields`` parses sweeps in spec files; ``domain.experiments`` has the results.
"""
