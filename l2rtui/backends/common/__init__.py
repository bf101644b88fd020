"""Parts that several backends share: refusals, slot checks, node and GPU reading, log merging, port listeners.

No client library except NVML; backends import this package and never each other.
"""
