"""The supervisor of a local run: a separate process that starts, restarts and stops the pods.

The app communicates with it only through files and a socket; this package has no user interface.
"""
