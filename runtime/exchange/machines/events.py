"""What happens to the learner's membership machine, and what it answers: events and instructions as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.messages import Evaluation, Message, ProtocolError, Ring, Rows


# --- events -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Arrived:
    """A message came from `route`, with an arena of `arena_bytes` behind it or in the sender's ring.

    `spoiled` names by their place in the message the segments that hold numbers that are not finite.
    """

    now: float
    route: bytes
    message: Message
    arena_bytes: int = 0
    spoiled: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Garbled:
    """Something that is no message came from `route`."""

    route: bytes
    error: ProtocolError


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed; the learner's pace allows `ceiling` env steps in all."""

    now: float
    ceiling: int


@dataclass(frozen=True, slots=True)
class Published:
    """Weights of `policy_version` can be pulled."""

    policy_version: int


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint with these sequence numbers, by account name, will survive a crash."""

    last_seqs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is complete: peers are to end."""

    reason: str


Event = Arrived | Garbled | Ticked | Published | Saved | Finished


# --- instructions -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Send:
    """Send `message` to `route`; a route that is gone is no error, its lease runs out."""

    route: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class Keep:
    """Put segments into the learner's store: those from number `seq` on, from byte `start` of the arena on."""

    pod: str
    seq: int
    rows: Rows
    start: int


@dataclass(frozen=True, slots=True)
class Attach:
    """Map the ring that came from `route`, and tell the peer whether that worked."""

    route: bytes
    ring: Ring


@dataclass(frozen=True, slots=True)
class Detach:
    """Let go of the ring of `route`, if there is one: nothing more comes through it."""

    route: bytes


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Keep this evaluation."""

    pod: str
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Note:
    """Tell people this sentence."""

    text: str


Instruction = Send | Keep | Attach | Detach | Evaluated | Note
