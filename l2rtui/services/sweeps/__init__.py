"""Sweeps that run, or have run: the results of their trials.

Trials and their choice are in ``domain.sweeps``, how a spec file writes them in ``services.spec.sweep_fields``.
"""
