"""Recorded experience: episodes in files in Minari's format, written while driving and read by a learner.

Does not step environments and does not train.
"""
