"""Experiments: the runs of one name over their seeds, counted and averaged. Pure.

Neither where the figures of a run come from (``services.experiments``) nor its curves (``domain.curves``).
"""
