"""Recorded experience: episodes in files of Minari's form, written while driving and read by a learner.

Nothing here steps an environment or trains.
"""
