"""History of runs: one SQLite file in the state folder, written by every launch and destroy, read by all lists.

``store`` only handles the file; other modules gather the facts of launches and ends. ``journal`` records every
change for users, in lines of its own.
"""
