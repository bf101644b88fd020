"""The supervisor of a local run: a process of its own that starts, restarts and stops the pods.

The app reaches it through files and a socket alone; nothing here draws or asks.
"""
