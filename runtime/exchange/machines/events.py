"""Input events and output instructions of the learner's membership machine, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.exchange.protocol.messages import EvaluationReport, Message, ProtocolError, RingOffer, SegmentRows


# --- events -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Arrived:
    """A message came from `route`, with an arena of `arena_bytes` in its second frame or in the sender's ring.

    `non_finite` holds the indices, within the message, of segments with numbers that are infinite or NaN.
    """

    now: float
    route: bytes
    message: Message
    arena_bytes: int = 0
    non_finite: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class MalformedMessage:
    """Frames from `route` could not be decoded."""

    route: bytes
    error: ProtocolError


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; the rate limiter allows a total of `ceiling` env steps."""

    now: float
    ceiling: int


@dataclass(frozen=True, slots=True)
class Published:
    """Weights of `policy_version` can be requested."""

    policy_version: int


@dataclass(frozen=True, slots=True)
class Saved:
    """A durable checkpoint contains all segments up to these sequence numbers, by account name."""

    last_seqs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Collected:
    """The learner itself has collected this many transitions."""

    transitions: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is complete and the peers should end."""

    reason: str


Event = Arrived | MalformedMessage | Ticked | Published | Saved | Collected | Finished


# --- instructions -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Send:
    """Send `message` to `route`. A missing route is not an error: its lease will expire."""

    route: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class Keep:
    """Store the segments from number `seq` on; the first of them has index `first` in its message."""

    pod: str
    seq: int
    rows: SegmentRows
    first: int


@dataclass(frozen=True, slots=True)
class Attach:
    """Map the ring that `route` has offered, and report whether that succeeded."""

    route: bytes
    ring: RingOffer


@dataclass(frozen=True, slots=True)
class Detach:
    """Unmap the ring of `route` if there is one: no more segments come through it."""

    route: bytes


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Record this evaluation."""

    pod: str
    evaluation: EvaluationReport


@dataclass(frozen=True, slots=True)
class Note:
    """Write this sentence to the learner's log."""

    text: str


Instruction = Send | Keep | Attach | Detach | Evaluated | Note
