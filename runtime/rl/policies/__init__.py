"""Policies that leave a run: a checkpoint's policy is driven without a learner, filmed, and exported.

What trains stands in `roles` and `algos`; nothing there imports this.
"""
