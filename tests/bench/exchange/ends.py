"""Both ends of the exchange as the product has them, with a store of slots and without an environment."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime import keys
from runtime.arenas import Arenas, gather
from runtime.channels import LearnerChannel, PeerChannel, Port
from runtime.contract import PROTOCOL_VERSION
from runtime.endpoint import parse
from runtime.exchange import Exchange
from runtime.framing import decode, encode
from runtime.layout import Columns, Field, Layout
from runtime.members import Terms, window_of
from runtime.membership import Membership
from runtime.messages import BUNDLE_BYTES, Hello, Ringed, Segments, Trajectory, Welcome
from runtime.pacing import Pace
from runtime.policy_store import PolicyStore
from runtime.ring import RingWriter
from runtime.session import Session

F32, U8 = np.dtype(np.float32), np.dtype(np.uint8)
SMALL = Layout(
    (
        Field("obs", F32, (33,)),
        Field("action", F32, (2,)),
        Field("log_prob", F32),
        Field("reward", F32),
        Field("next_obs", F32, (33,)),
        Field("terminated", U8),
    )
)
IMAGE = Layout(
    (Field("obs", U8, (96, 128, 3)), Field("action", F32, (2,)), Field("reward", F32), Field("done", U8))
)
SHAPES = {"small": (SMALL, 128), "image": (IMAGE, 64)}
"""Layout and transitions of a segment: 36 KB and 2.4 MB."""
MEMORY_BYTES = 4 * 2**20
"""Of the slots in which everything ends: few, so that it is the way that counts and not the memory at its end.
``--memory`` of a measurement makes them more."""
SOURCE_BYTES = BUNDLE_BYTES
"""Of the segments that a worker, or a raw sender, has and sends again and again: a full message, or one segment."""


class Slots:
    """A store of whole segments, as a replay for sequences is: taking one in is one copy."""

    def __init__(self, layout: Layout, transitions: int, memory_bytes: int = MEMORY_BYTES) -> None:
        self.layout = layout
        self.segment_bytes = layout.item_bytes * transitions
        self.count = max(2, memory_bytes // self.segment_bytes)
        self.slots = np.ones(self.count * self.segment_bytes, dtype=np.uint8)
        self.view = memoryview(self.slots)
        self.taken = 0

    def __len__(self) -> int:
        return min(self.taken, self.count)

    def put(self, columns: Columns) -> None:
        raise NotImplementedError(columns)

    def put_arena(self, arena: memoryview, segments: int) -> None:
        """Take segments that lie one behind the other."""
        while segments:
            at = self.taken % self.count
            some = min(segments, self.count - at)
            size = some * self.segment_bytes
            self.view[at * self.segment_bytes : at * self.segment_bytes + size] = arena[:size]
            arena = arena[size:]
            self.taken += some
            segments -= some

    def state(self, most_bytes: int | None = None) -> dict[str, Any]:
        return {}


@dataclass
class Case:
    """What both ends have to know."""

    endpoint: str
    shape: str = "small"
    curve: bool = False
    ring: bool = True
    memory_bytes: int = MEMORY_BYTES
    workers: int = 1
    floats: int = 16
    inflight_bytes: int = 128 * 2**20
    """On their way at most, of all workers together."""

    @property
    def layout(self) -> Layout:
        return SHAPES[self.shape][0]

    @property
    def transitions(self) -> int:
        return SHAPES[self.shape][1]

    @property
    def keys(self) -> tuple[Any, Any]:
        return keys.from_token("bench") if self.curve else (None, None)


class Learner:
    """The real exchange over a store of slots."""

    def __init__(self, case: Case) -> None:
        terms = Terms(
            run="bench",
            run_id="bench",
            token="bench",
            epoch=1,
            environment="bench",
            layout=case.layout.text,
            actor_floats=case.floats,
            transition_bytes=case.layout.item_bytes,
            segment_transitions=case.transitions,
            max_policy_lag=10**9,
            window=window_of(case.layout.item_bytes * case.transitions),
            inflight_transitions=case.inflight_bytes // case.layout.item_bytes,
        )
        self.store = Slots(case.layout, case.transitions, case.memory_bytes)
        self.machine = Membership(terms)
        self.policies = PolicyStore(1, "bench")
        channel = LearnerChannel(parse(case.endpoint), terms.largest_message, case.keys[0])
        pace = Pace(0, 1.0, 10**15)
        self.exchange = Exchange(channel, self.machine, self.store, self.policies, pace, str, deque())
        self.exchange.start()


def hello_of(case: Case, pod: str, born: int) -> Hello:
    """What a worker of a case says of itself."""
    return Hello(
        protocol=PROTOCOL_VERSION,
        run="bench",
        run_id="bench",
        token="bench",
        role="worker",
        pod=pod,
        incarnation=born,
        oldest=1,
        environment="bench",
        layout=case.layout.text,
        actor_floats=case.floats,
        segment_transitions=case.transitions,
    )


def worker(case: Case, pod: str, segments: int | None = None, seconds: float | None = None) -> int:
    """Send as fast as the learner gives credit; return how many segments it has taken."""
    layout, transitions = case.layout, case.transitions
    arenas = Arenas(layout.item_bytes * transitions)
    born = time.time_ns() // 1000
    session = Session(hello_of(case, pod, born))
    ring: RingWriter | None = None
    row = Trajectory(transitions, 0, 0, 0, 0.0, 0.0)
    source = [arenas.take() for _ in range(SOURCE_BYTES // min(SOURCE_BYTES, layout.item_bytes * transitions))]
    for each in source:
        each.view[:] = bytes(each.nbytes)
    end = time.monotonic() + seconds if seconds else float("inf")
    count = 0
    with PeerChannel(parse(case.endpoint), f"{pod}.{born}".encode(), 1 << 20, case.keys[1]) as channel:
        while (
            session.done is None
            and time.monotonic() < end
            and (segments is None or session.unsettled or count < segments)
        ):
            while session.has_credit and (segments is None or count < segments):
                session.offer(row, source[count % len(source)])
                count += 1
            now = time.monotonic()
            for out in session.outgoing(now, count * transitions, 0.0, 0):
                if isinstance(out.message, Segments) and out.message.ring and ring:
                    ring.put(out.message.seq, out.arenas)
                    frames = encode(out.message)
                else:
                    frames = encode(out.message, gather(out.arenas) if out.arenas else None)
                if not channel.send(Port.DATA, frames):
                    session.unsent(out.message)
                    break
            for inbound in channel.poll(0.0 if session.has_credit else min(0.02, session.patience)):
                message, _ = decode(inbound.frames)
                session.receive(time.monotonic(), message)
                if isinstance(message, Welcome) and case.ring and ring is None:
                    ring = RingWriter(session.window, layout.item_bytes * transitions)
                    session.bring_ring(ring.message())
                if isinstance(message, Ringed) and not message.is_taken:
                    raise RuntimeError("the ring was not taken")
        for out in session.farewell("done"):
            channel.send(Port.DATA, encode(out.message))
    return count - session.unsettled
