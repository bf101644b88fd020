"""Fuzzers of what decodes data from outside: a small budget in the quick tests, any by ``python -m tests.fuzz``."""
