"""What happens to the learner's membership machine, and what it answers: events and instructions as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.messages import Evaluation, Message, ProtocolError, Trajectory


# --- events -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Arrived:
    """A message came from `route` with an arena of `arena_bytes`; `is_finite` says that its numbers are."""

    now: float
    route: bytes
    message: Message
    arena_bytes: int = 0
    is_finite: bool = True


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
class Store:
    """Put the transitions of the arena that came with this segment into the replay."""

    pod: str
    segment: Trajectory


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Keep this evaluation."""

    pod: str
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Note:
    """Tell people this sentence."""

    text: str


Instruction = Send | Store | Evaluated | Note
