"""Alerts of runs: tests of their delivery. The runs themselves send the alerts.

Rules and delivery are in ``runtime.base``.
"""
