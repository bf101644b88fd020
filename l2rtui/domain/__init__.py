"""Frozen values and pure functions: no I/O, no clock, only the standard library."""
