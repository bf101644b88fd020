"""Policies outside a run: drives a checkpoint's policy without a learner, films it, and exports it.

Training code is in `roles` and `algos` and does not import this package.
"""
