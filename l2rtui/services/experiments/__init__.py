"""Experiments from the logs of their runs: states of learning and newest returns, read once for both.

The figures themselves are computed in ``domain.experiments``; this package does not depend on screens or commands.
"""
