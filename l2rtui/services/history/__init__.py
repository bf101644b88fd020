"""History of runs: one SQLite file in the state folder, written by every launch and destroy, read by all lists.

``store`` is the file alone; what is recorded of a launch and of an end is gathered beside it.
"""
