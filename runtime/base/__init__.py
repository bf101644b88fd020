"""Ground floor of both packages: contract, metric records, atomic files, object store, processes.

Standard library and msgspec alone; knows neither the app nor learning.
"""
