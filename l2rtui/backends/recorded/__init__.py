"""Recording of all data that a backend gives to the app, and a read-only backend that replays it.

It knows no other backend: the caller passes in the one to record.
"""
