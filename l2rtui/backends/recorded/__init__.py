"""Recording of all that a backend says to the app, and a backend that shows it again and changes nothing.

It knows no other backend: the one that is recorded is handed in by the caller.
"""
