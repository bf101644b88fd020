"""Backend that shows several contexts as one. The rows of all are named with their context; it changes no context.

It knows no other backend: its caller creates the members and passes them in.
"""
