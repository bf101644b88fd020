"""Foundation of both packages: contract, metric records, atomic files, object store, processes.

Uses only the standard library and msgspec; independent of the app and of learning.
"""
