"""Backend that shows several contexts as one: rows of all of them, each named with its context; it changes nothing.

It knows no other backend: its members are made and handed in by its caller.
"""
