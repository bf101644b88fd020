"""Speed of the exchange compared with a raw socket and other systems: ``python -m tests.bench.exchange --help``.

Every figure is a ratio to a raw TCP connection over loopback in the same round, because machines are noisy: rounds
are interleaved, and the median of five counts.
"""
