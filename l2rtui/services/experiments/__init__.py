"""Experiments from what their runs show: states of learning and newest returns, read once for both.

The figures themselves are computed in ``domain.experiments``; nothing here knows a screen or a command.
"""
