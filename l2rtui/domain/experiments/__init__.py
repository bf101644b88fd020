"""Experiments: the runs of one name over their seeds, counted and averaged. Pure.

The figures of runs come from ``services.experiments``, their curves from ``domain.curves``.
"""
