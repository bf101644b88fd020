"""Both ends of the exchange as in the product, with a store of slots and without an environment."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.base.addresses import parse
from runtime.base.contract import PROTOCOL_VERSION
from runtime.exchange.learner_server import LearnerServer
from runtime.exchange.machines.member_state import SessionTerms, window_of
from runtime.exchange.machines.session import PeerSession
from runtime.exchange.protocol.framing import decode, encode
from runtime.exchange.protocol.messages import BUNDLE_BYTES, Hello, RingAccepted, Segments, Trajectory, Welcome
from runtime.exchange.protocol.segment_schema import Columns, Layout, SegmentField
from runtime.exchange.segments import SegmentAllocator, SegmentBundle, gather
from runtime.exchange.transport import curve_keys as keys
from runtime.exchange.transport.shared_memory import RingWriter
from runtime.exchange.transport.sockets import PeerChannel, Port
from runtime.rl.buffers.replay_state import ConstantCut
from runtime.rl.roles.rate_limiter import RateLimiter

F32, U8 = np.dtype(np.float32), np.dtype(np.uint8)
SMALL = Layout(
    (
        SegmentField("obs", F32, (33,)),
        SegmentField("action", F32, (2,)),
        SegmentField("log_prob", F32),
        SegmentField("reward", F32),
        SegmentField("next_obs", F32, (33,)),
        SegmentField("terminated", U8),
    )
)
IMAGE = Layout(
    (
        SegmentField("obs", U8, (96, 128, 3)),
        SegmentField("action", F32, (2,)),
        SegmentField("reward", F32),
        SegmentField("done", U8),
    )
)
SHAPES = {"small": (SMALL, 128), "image": (IMAGE, 64)}
"""Layout and transitions of a segment: 36 KB and 2.4 MB."""
MEMORY_BYTES = 4 * 2**20
"""Memory of the slots at the end of the path: few, so that the path is measured and not the memory. ``--memory`` of
a measurement increases it.
"""
SOURCE_BYTES = BUNDLE_BYTES
"""Memory of the segments that a worker, or a raw sender, sends repeatedly: a full message, or one segment."""


class Slots:
    """A store of complete segments, like a replay for sequences: storing one is one copy."""

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

    def put_bundle(self, bundle: SegmentBundle) -> None:
        """Store segments that are adjacent in memory."""
        arena, segments = bundle.arena, len(bundle)
        while segments:
            at = self.taken % self.count
            some = min(segments, self.count - at)
            size = some * self.segment_bytes
            self.view[at * self.segment_bytes : at * self.segment_bytes + size] = arena[:size]
            arena = arena[size:]
            self.taken += some
            segments -= some

    def cut(self, most_bytes: int | None = None) -> ConstantCut:
        return ConstantCut(dict)


@dataclass
class Case:
    """Data known to both ends."""

    endpoint: str
    shape: str = "small"
    curve: bool = False
    ring: bool = True
    memory_bytes: int = MEMORY_BYTES
    workers: int = 1
    floats: int = 16
    inflight_bytes: int = 128 * 2**20
    """Maximum in flight, of all workers together."""

    @property
    def layout(self) -> Layout:
        return SHAPES[self.shape][0]

    @property
    def transitions(self) -> int:
        return SHAPES[self.shape][1]

    @property
    def keys(self) -> tuple[Any, Any]:
        return keys.from_token("bench") if self.curve else (None, None)


def terms_of(case: Case, epoch: int = 1) -> SessionTerms:
    """Terms of the learner of a case."""
    return SessionTerms(
        run="bench",
        run_id="bench",
        token="bench",
        epoch=epoch,
        environment="bench",
        layout=case.layout.text,
        actor_floats=case.floats,
        transition_bytes=case.layout.item_bytes,
        segment_transitions=case.transitions,
        max_policy_lag=10**9,
        window=window_of(case.layout.item_bytes * case.transitions),
        inflight_transitions=case.inflight_bytes // case.layout.item_bytes,
    )


class Learner:
    """The real exchange over a store of slots."""

    def __init__(self, case: Case) -> None:
        self.store = Slots(case.layout, case.transitions, case.memory_bytes)
        limiter = RateLimiter(0, 1.0, 10**15)
        self.exchange = LearnerServer(parse(case.endpoint), case.keys[0], terms_of(case), self.store, limiter, str)
        self.machine = self.exchange.membership
        self.exchange.start()


def hello_of(case: Case, pod: str, born: int) -> Hello:
    """Hello message of a worker of a case."""
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
    """Send as fast as the learner gives credit; return how many segments it has accepted."""
    layout, transitions = case.layout, case.transitions
    arenas = SegmentAllocator(layout.item_bytes * transitions)
    born = time.time_ns() // 1000
    session = PeerSession(hello_of(case, pod, born))
    ring: RingWriter | None = None
    row = Trajectory(transitions, 0, 0, 0, 0.0, 0.0)
    source = [arenas.allocate() for _ in range(SOURCE_BYTES // min(SOURCE_BYTES, layout.item_bytes * transitions))]
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
                session.queue_segment(row, source[count % len(source)])
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
                    session.offer_ring(ring.message())
                if isinstance(message, RingAccepted) and not message.is_taken:
                    raise RuntimeError("the ring was not taken")
        for out in session.farewell("done"):
            channel.send(Port.DATA, encode(out.message))
    return count - session.unsettled
