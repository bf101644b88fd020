"""Cost of a segment in the learner's accounting with 1 to 256 workers, in CPU time, which other programs do not
affect.
"""

from __future__ import annotations

import argparse
import statistics
import time

from runtime.base.contract import PROTOCOL_VERSION
from runtime.exchange.machines.events import Arrived, Ticked
from runtime.exchange.machines.member_state import SessionTerms
from runtime.exchange.machines.membership import Membership
from runtime.exchange.protocol.framing import decode, encode
from runtime.exchange.protocol.messages import Hello, Segments, Trajectory

SIZE = 128 * 281
PER_POLL = 64
"""Maximum number of messages that the network thread handles between two ticks."""


def cost(workers: int, bundle: int, segments: int = 20_000) -> float:
    """Microseconds of CPU per segment, decoding included."""
    terms = SessionTerms("r", "r", "", 1, "e", "x", 1, 281, 128, 10**9, window=64, inflight_transitions=10**9)
    machine = Membership(terms)
    machine.handle(Ticked(0.0, 10**15))
    routes = [b"w-%d" % index for index in range(workers)]
    for route in routes:
        hello = Hello(PROTOCOL_VERSION, "r", "r", "", "worker", route.decode(), 1, 1, "e", "x", 1, 128)
        machine.handle(Arrived(0.0, route, hello))
    machine.handle(Ticked(0.0, 10**15))
    arena = bytes(SIZE * bundle)
    seqs = [1] * workers
    used, done, turn = 0.0, 0, 0
    while done < segments:
        inbound = []
        for _ in range(min(PER_POLL, workers)):
            at = turn % workers
            rows = (Trajectory(128, 0, 0, 1, 1.5, 0.5),) * bundle
            inbound.append((routes[at], encode(Segments(1, seqs[at], False, rows), arena)))
            seqs[at] += bundle
            turn += 1
        began = time.process_time()
        for route, frames in inbound:
            message, view = decode(frames)
            machine.handle(Arrived(0.001 * turn, route, message, view.nbytes if view else 0))
        machine.handle(Ticked(0.001 * turn, 10**15))
        used += time.process_time() - began
        done += bundle * len(inbound)
    assert machine.accounts.totals.accepted == done
    return 1e6 * used / done


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=4_000, help="of each figure")
    segments = parser.parse_args(arguments).segments
    for bundle in (1, 14):
        print(f"{bundle} segments in a message, microseconds of CPU for a segment (median of 5):")
        for workers in (1, 8, 64, 256):
            print(
                f"  {workers:4} workers {statistics.median(cost(workers, bundle, segments) for _ in range(5)):6.2f}"
            )
