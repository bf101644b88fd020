"""Fuzzers of decoders for outside data: a small budget in the quick tests, any by ``python -m tests.fuzz``."""
