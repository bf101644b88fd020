"""Backends: the only code that talks to processes, daemons, clusters and clouds."""
