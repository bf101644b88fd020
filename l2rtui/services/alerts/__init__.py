"""Alerts of runs: tests of their delivery. The runs send them by themselves.

Rules and delivery are in ``runtime.base``.
"""
