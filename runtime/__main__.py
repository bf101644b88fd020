"""`python -m runtime`, the same as `l2r-runtime`."""

from runtime.cli import entry

entry()
