"""Volumes, the files on them, and secrets of a namespace."""
