"""Cost of a learner's books with 100 to 10,000 members, in CPU time: a publish, a second of pings, joining.

Only the membership machine and the peers' session machines run, on a virtual clock. `publish` includes the
acknowledgements that it causes. `pings` are those of members of which each sends a segment a second; `idle pings`
are those of members without credit, which must ping (the mean over 40 seconds). `ticks` are the 50 of a second in
which nothing else happens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, fields

from runtime.base.contract import PROTOCOL_VERSION
from runtime.exchange.machines.events import Arrived, Instruction, Published, Send, Ticked
from runtime.exchange.machines.member_state import SessionTerms
from runtime.exchange.machines.membership import Membership
from runtime.exchange.machines.session import Outgoing, PeerSession
from runtime.exchange.protocol.messages import Hello, Ping, Segments, Trajectory
from runtime.exchange.segments import SegmentAllocator

COUNTS = (100, 1_000, 10_000)
TICK_SECONDS = 0.02
IDLE_SECONDS = 40
SEGMENT = SegmentAllocator(10).allocate()


@dataclass(frozen=True)
class Costs:
    """Milliseconds of CPU."""

    publish: float
    pings: float
    idle_pings: float
    hellos: float
    ticks: float


class Run:
    """A learner and its peers without sockets. The learner's CPU time is counted apart from the peers'."""

    def __init__(self, members: int) -> None:
        terms = SessionTerms("r", "r", "", 1, "e", "x", 1, 10, 1, 10**9, window=64, inflight_transitions=10**9)
        self.machine = Membership(terms)
        self.now, self.used, self.ceiling = 0.0, 0.0, 0
        self.peers = {b"w-%d" % at: _peer(at) for at in range(members)}
        self.machine.handle(Ticked(self.now, self.ceiling))

    def learner(self, work: Callable[[], list[Instruction]]) -> None:
        began = time.process_time()
        instructions = work()
        self.used += time.process_time() - began
        for instruction in instructions:
            if isinstance(instruction, Send):
                self.peers[instruction.route].receive(self.now, instruction.message)

    def tick(self) -> None:
        self.learner(lambda: self.machine.handle(Ticked(self.now, self.ceiling)))

    def cost(self, work: Callable[[], None]) -> float:
        before = self.used
        work()
        return 1e3 * (self.used - before)

    def arrive(self, sent: list[tuple[bytes, Outgoing]], *kinds: type) -> None:
        """Let the learner handle the messages of these kinds, then a tick."""
        for route, outgoing in sent:
            if isinstance(outgoing.message, kinds):
                size = sum(arena.nbytes for arena in outgoing.arenas)
                event = Arrived(self.now, route, outgoing.message, size)
                self.learner(lambda event=event: self.machine.handle(event))
        self.tick()

    def idle_second(self) -> float:
        """Return the learner's cost of a second in which nobody may collect, over a period in which each pings."""
        before = self.used
        for _ in range(2 * IDLE_SECONDS):
            self.now += 0.5
            self.arrive(self.sent(), Ping)
        return 1e3 * (self.used - before) / IDLE_SECONDS

    def second_of_pings(self) -> float:
        """Return the learner's cost of the pings of members that send segments, and of their answers."""
        pinged = 0.0
        for _ in range(10):
            self.now += 0.1
            for number, peer in enumerate(self.peers.values()):
                if number % 10 == round(self.now * 10) % 10 and peer.has_credit:
                    peer.queue_segment(Trajectory(1, 0, 0, 0, 0.0, 0.0), SEGMENT)
            sent = self.sent()
            self.arrive(sent, Segments)
            before = self.used
            self.arrive(sent, Ping)
            pinged += self.used - before
        return 1e3 * pinged

    def sent(self) -> list[tuple[bytes, Outgoing]]:
        """Return what the peers send now."""
        return [
            (route, outgoing)
            for route, peer in self.peers.items()
            for outgoing in peer.outgoing(self.now, peer.offered, 0.0, 0)
        ]


def _peer(number: int) -> PeerSession:
    hello = Hello(PROTOCOL_VERSION, "r", "r", "", "worker", f"w-{number}", 1, 1, "e", "x", 1, 1)
    return PeerSession(hello)


def costs(members: int) -> Costs:
    """Return the costs of one run with this many members."""
    run = Run(members)
    hellos = run.cost(lambda: run.arrive(run.sent(), Hello))
    run.arrive(run.sent(), Ping)  # each says at once that it is there, and is told how often it is to ping
    idle = run.idle_second()
    run.ceiling = 10**12
    run.tick()
    run.second_of_pings()
    pings = run.second_of_pings()

    def ticks() -> None:
        for _ in range(50):
            run.now += TICK_SECONDS
            run.tick()

    def publish() -> None:
        run.learner(lambda: run.machine.handle(Published(run.machine.policy_version + 1)))
        run.tick()

    quiet = run.cost(ticks)
    published = statistics.median(run.cost(publish) for _ in range(5))
    assert len(run.machine.members) == members
    return Costs(published, pings, idle, hellos, quiet)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--members", type=int, nargs="+", default=list(COUNTS))
    options = parser.parse_args(arguments)
    found = {count: [costs(count) for _ in range(options.rounds)] for count in options.members}
    print(f"milliseconds of the learner's CPU, median of {options.rounds} rounds")
    print(f"{'members':>9} " + " ".join(f"{field.name.replace('_', ' '):>11}" for field in fields(Costs)))
    for count, rounds in found.items():
        medians = [statistics.median(getattr(each, field.name) for each in rounds) for field in fields(Costs)]
        print(f"{count:9,} " + " ".join(f"{value:11.2f}" for value in medians))
