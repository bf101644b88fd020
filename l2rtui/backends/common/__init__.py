"""Parts that several backends share: refusals, slot checks, node and GPU reading, log merging, port listeners.

No client library but NVML; backends import this and never each other.
"""
