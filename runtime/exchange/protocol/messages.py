"""Messages between a learner and its peers, and their validation (standard library only).

A message is a dataclass of scalars and, for segments, of rows of scalars. `kind` is its tag on the wire, and the
names of its fields are the keys of the JSON header. Neither may change within a protocol version, unlike the names
of the classes. `docs/exchange.md` describes how the messages are used.

Received text is converted to a message only by `from_fields`: every field must be present, of its declared type and
within its bounds, and no other may be present. Everything else is a `ProtocolError`, which the receiver counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import chain
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeGuard, get_args

from runtime.base.contract import MAX_TEXT, PROTOCOL_VERSION

MAX_INTEGER: Final = 2**53 - 1
"""Largest integer on the wire: beyond it doubles, and so many JSON readers, are not exact (RFC 8259, section 6)."""
MAX_LAYOUT: Final = 4096
"""Longest description of a layout, in characters: observations may have many fields."""
# 64 rows of the longest numbers have 8.8 kB, which fits into framing.HEADER_LIMIT.
MAX_BUNDLE: Final = 64
"""Maximum number of segments in one message."""
TAIL_LIMIT: Final = 2
"""Maximum number of a segment's tail rows for each of its transitions: limits the longest segment."""
BUNDLE_BYTES: Final = 1024 * 1024
"""Maximum size of a message with several segments; a single segment may be larger."""


class ProtocolError(ValueError):
    """Received or given data is not a message of this protocol; the text names the fault."""


class ForeignVersionError(ProtocolError):
    """The peer speaks another version of the protocol; nothing else of its message was read."""

    def __init__(self, version: object) -> None:
        super().__init__(
            f"the peer speaks version {version!s:.20} of the exchange and this process version {PROTOCOL_VERSION}; "
            "start learner and workers from the same release"
        )


class RefusalCode(StrEnum):
    """Reason for which a learner permanently refuses a peer; the peer ends with `contract.EXIT_REFUSED`."""

    PROTOCOL = "protocol"
    RUN = "run"
    TOKEN = "token"  # noqa: S105  (the name of a reason, not a secret)
    SCHEMA = "schema"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Hello:
    """Peer → learner: identity of the peer, format of its segments, and the first one that it can send again.

    `incarnation` rises with each start of the same pod. `oldest` is the sequence number of the oldest segment that
    the peer has retained, or of its next one. `layout` describes the fields of one transition, see `Layout.text`.
    `segment_transitions` is the maximum number of transitions in one segment; 0 for a peer without segments, such
    as an evaluator.
    """

    kind: ClassVar[str] = "hello"
    protocol: int
    run: str
    run_id: str
    token: str = field(repr=False)
    role: str
    pod: str
    incarnation: int
    oldest: int
    environment: str
    layout: str
    actor_floats: int
    segment_transitions: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """Learner → peer: member of this epoch from now on; send the segments after `last_seq`, up to `limit`.

    `window` is the maximum number of segments of one worker in flight: `limit <= last_seq + window`.
    """

    kind: ClassVar[str] = "welcome"
    epoch: int
    last_seq: int
    durable_seq: int
    limit: int
    window: int
    policy_version: int
    max_policy_lag: int


# Ack and Segments are not frozen: thousands are made per second, and `object.__setattr__` in the constructor of a
# frozen dataclass makes it four times as slow. Treat them as frozen nevertheless.
@dataclass(slots=True)
class Ack:
    """Learner → peer, cumulative: settled up to `last_seq`, in a checkpoint up to `durable_seq`, credit to `limit`.

    The credit is `limit - last_seq` segments. All numbers only increase within an epoch, so a lost Ack is harmless.
    """

    kind: ClassVar[str] = "ack"
    epoch: int
    last_seq: int
    durable_seq: int
    limit: int
    policy_version: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Learner → worker: ping every `ping_seconds` from now on, because there are many workers.

    Earlier versions do not know this message and ping every second.
    """

    kind: ClassVar[str] = "pace"
    epoch: int
    ping_seconds: float


@dataclass(frozen=True, slots=True)
class RejoinRequest:
    """Learner → peer: unknown in this epoch, or segments are missing; send Hello again."""

    kind: ClassVar[str] = "who"
    epoch: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Learner → peer: permanently refused. The fields are the same in every protocol version."""

    kind: ClassVar[str] = "refused"
    protocol: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """Learner → peer: the run is finished and the peer should end."""

    kind: ClassVar[str] = "done"
    epoch: int
    reason: str


class Trajectory(NamedTuple):
    """Row of `Segments`: description of one segment, whose transitions are in the arena.

    `policy_version_min` and `_max` are the oldest and newest policy that acted in it. `return_sum` and
    `progress_sum` (metres) cover the `episodes` that ended inside the segment. `tail` is the number of rows after
    the transitions, see `segment_schema`.
    """

    transitions: int
    policy_version_min: int
    policy_version_max: int
    episodes: int
    return_sum: float
    progress_sum: float
    tail: int = 0


class RowColumns(NamedTuple):
    """Rows of a message, transposed, so that the learner checks one column of all segments together."""

    transitions: tuple[int, ...]
    policy_version_min: tuple[int, ...]
    policy_version_max: tuple[int, ...]
    episodes: tuple[int, ...]
    return_sum: tuple[float, ...]
    progress_sum: tuple[float, ...]
    tail: tuple[int, ...]


@dataclass(slots=True)
class SegmentRows:
    """Rows of a message, at least one, as plain tuples like on the wire."""

    rows: tuple[tuple[int, int, int, int, float, float, int], ...]
    _columns: RowColumns | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, *rows: Trajectory) -> Self:
        """Return the given rows, at least one."""
        return cls(rows)

    @property
    def columns(self) -> RowColumns:
        """The rows by column; computed on first use, since a sender never needs them."""
        if self._columns is None:
            self._columns = RowColumns._make(zip(*self.rows, strict=True))
        return self._columns

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Trajectory:
        return Trajectory(*self.rows[index])

    def part(self, first: int, end: int) -> SegmentRows:
        """Return the rows with indices `first` to `end - 1`."""
        return SegmentRows(self.rows[first:end])


@dataclass(slots=True)
class Segments:
    """Worker → learner: segments with the sequence numbers `seq`, `seq + 1`, and so on.

    Their arenas are concatenated in the second frame, or, if `ring`, in the ring that the learner has accepted: the
    segment of number n in slot `n % slots`.
    """

    kind: ClassVar[str] = "traj"
    epoch: int
    seq: int
    ring: bool
    rows: SegmentRows


@dataclass(frozen=True, slots=True)
class RingOffer:
    """Worker → learner: offer to exchange segments through this shared memory instead of the socket.

    `place` identifies kernel and PID namespace (`shared_memory.host_identity`). `pid` and `descriptor` identify the
    sealed memory file, which has `slots` slots of `slot_bytes` after a page that starts with `nonce`.
    """

    kind: ClassVar[str] = "ring"
    epoch: int
    place: str
    pid: int
    descriptor: int
    slots: int
    slot_bytes: int
    nonce: str


@dataclass(frozen=True, slots=True)
class RingAccepted:
    """Learner → worker: the ring with this nonce is mapped, or, if `is_taken` is false, the socket is used."""

    kind: ClassVar[str] = "ringed"
    epoch: int
    nonce: str
    is_taken: bool


@dataclass(frozen=True, slots=True)
class Ping:
    """Peer → learner, every second or as `Pace` says: alive, and not hung if `env_steps` changes.

    `sent` is the last used number.
    """

    kind: ClassVar[str] = "ping"
    epoch: int
    sent: int
    env_steps: int
    policy_version: int
    env_steps_per_second: float


@dataclass(frozen=True, slots=True)
class Bye:
    """Peer → learner: the peer ends in order. `sent` is its last sequence number."""

    kind: ClassVar[str] = "bye"
    epoch: int
    sent: int
    reason: str


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """Evaluator → learner: results of the policy of one version, and of the random policy for comparison.

    `laps` is the sum over the episodes; `clean_lap` means that each drove one and none left the track.
    """

    kind: ClassVar[str] = "eval"
    epoch: int
    policy_version: int
    episodes: int
    eval_return: float
    eval_progress: float
    random_return: float
    random_progress: float
    progress_ratio: float | None
    laps: int
    clean_lap: bool
    lap_seconds: float | None

    def record_fields(self) -> dict[str, Any]:
        """Return the fields of its metric record: the message's fields without kind and epoch."""
        return {name: value for name, value in to_fields(self).items() if name not in {"kind", "epoch"}}


@dataclass(frozen=True, slots=True)
class Get:
    """Peer → learner on the model socket: request for weights newer than version `have` of `epoch`.

    `codec` is the preferred encoding: ``f4`` for float32, ``bf2`` for bfloat16 (half as long). `place` identifies
    kernel and PID namespace: if the learner has the same, it may answer with `SharedWeights`. Empty: it may not.
    """

    kind: ClassVar[str] = "get"
    token: str = field(repr=False)
    epoch: int
    have: int
    codec: str
    place: str


@dataclass(frozen=True, slots=True)
class Weights:
    """Learner → peer: the actor of `policy_version`, `floats` values of `codec` in the arena that follows.

    `checksum` is the sum of the arena's little-endian 64-bit words, the last one padded with zeros, modulo 2**64,
    as 16 hexadecimal digits. It detects accidental damage at memory speed; CURVE protects against tampering.
    """

    kind: ClassVar[str] = "weights"
    epoch: int
    policy_version: int
    codec: str
    floats: int
    checksum: str


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Learner → peer on the same host: the newest weights, `floats` float32, are in this shared memory.

    `pid` and `descriptor` identify the sealed memory file, whose first page starts with `nonce`. Its structure is
    described in `runtime.exchange.transport.shared_memory`.
    """

    kind: ClassVar[str] = "shared"
    epoch: int
    policy_version: int
    floats: int
    pid: int
    descriptor: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Current:
    """Learner → peer: there are no newer weights; the newest version is `policy_version`."""

    kind: ClassVar[str] = "current"
    epoch: int
    policy_version: int


FromPeer = Hello | Segments | RingOffer | Ping | Bye | EvaluationReport | Get
FromLearner = (
    Welcome | Ack | Pace | RejoinRequest | Refused | Done | RingAccepted | Weights | SharedWeights | Current
)
Message = FromPeer | FromLearner
KINDS: Final[Mapping[str, type[Message]]] = {message.kind: message for message in get_args(Message)}
_NAMES: Final = {kind: {item.name: str(item.type) for item in fields(cls)} for kind, cls in KINDS.items()}
"""Declared type, as the text of the annotation, of each field of each kind."""
# Only the sums over episodes are floats; everything else in a row is a count or a version.
_ROW: Final = {name: "float" if name.endswith("_sum") else "int" for name in Trajectory._fields}


def has_arena(message: Message) -> bool:
    """Return true for messages whose header is followed by one raw arena."""
    return isinstance(message, Weights) or (isinstance(message, Segments) and not message.ring)


def to_fields(message: Message) -> dict[str, Any]:
    """Return the header of a message as a mapping, its kind first.

    Raises ProtocolError for a number that is not finite, which JSON cannot express.
    """
    header = {"kind": message.kind, **{name: getattr(message, name) for name in _NAMES[message.kind]}}
    values: Iterable[Any] = header.values()
    if isinstance(message, Segments):
        header["rows"] = message.rows.rows
        values = chain.from_iterable(message.rows.rows)
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise ProtocolError(f"{message.kind}: {value} cannot be sent as a number")
    return header


def from_fields(header: object) -> Message:
    """Return the message that a decoded JSON header describes.

    Raises ProtocolError for anything that is not exactly a message, ForeignVersionError for a Hello of another
    protocol version whatever its other fields are.
    """
    if not isinstance(header, dict):
        raise ProtocolError(f"a header must be an object, not {type(header).__name__}")
    kind = header.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ProtocolError(f"unknown message kind {kind!r:.40}")
    # Before the other fields are checked: a Hello of another version may have other fields.
    if kind == Hello.kind and header.get("protocol") != PROTOCOL_VERSION:
        raise ForeignVersionError(header.get("protocol"))
    types = _NAMES[kind]
    if header.keys() != types.keys() | {"kind"}:
        wrong = sorted((header.keys() - {"kind"}) ^ types.keys())
        raise ProtocolError(f"{kind}: fields missing or unknown: {', '.join(map(str, wrong))[:200]}")
    checked: dict[str, Any] = {name: _checked(kind, name, types[name], header[name]) for name in types}
    if kind == Segments.kind:
        checked["rows"] = _rows(checked["rows"])
    return KINDS[kind](**checked)


def _rows(values: list[object]) -> SegmentRows:
    rows: list[list[Any]] = [row for row in values if isinstance(row, list) and len(row) == len(_ROW)]
    if len(rows) != len(values):
        raise ProtocolError(f"{Segments.kind}.rows: a row is a list of {len(_ROW)} numbers")
    columns: list[tuple[Any, ...]] = list(zip(*rows, strict=True))
    for index, (column, (name, declared)) in enumerate(zip(columns, _ROW.items(), strict=True)):
        # Nearly every column is valid as it is. The others are checked value by value, for an exact error message.
        if not (_are_integers(column) if declared == "int" else _are_floats(column)):
            columns[index] = tuple(_checked("row", name, declared, value) for value in column)
    return SegmentRows(tuple(zip(*columns, strict=True)))


def _are_integers(column: tuple[Any, ...]) -> bool:
    # By exact type: bool is a subclass of int and must not pass.
    return set(map(type, column)) == {int} and min(column) >= 0 and max(column) <= MAX_INTEGER


def _are_floats(column: tuple[Any, ...]) -> bool:
    return set(map(type, column)) == {float} and math.isfinite(sum(column))


def _checked(kind: str, name: str, declared: str, value: object) -> object:
    """Return `value` if it is a valid `declared` (an annotation's text); an integer is a valid float."""
    if declared.startswith("float") and _is_integer(value, least=-MAX_INTEGER):
        return float(value)
    if name in _LONG and isinstance(value, str) and len(value) <= MAX_LAYOUT and value.isprintable():
        return value
    if not _VALID[declared](value):
        raise ProtocolError(f"{kind}.{name}: {value!r:.60} is not a valid {declared}")
    return value


def _is_integer(value: object, least: int = 0) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_INTEGER


def _is_float(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


_VALID: Final[Mapping[str, Callable[[object], bool]]] = {
    "bool": lambda value: isinstance(value, bool),
    "int": _is_integer,
    "float": _is_float,
    "float | None": lambda value: value is None or _is_float(value),
    # Texts may reach a log or a terminal: no control characters, no lone surrogates.
    "str": lambda value: isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable(),
    "SegmentRows": lambda value: isinstance(value, list) and 0 < len(value) <= MAX_BUNDLE,
}
_LONG: Final = frozenset({"layout"})
"""Text fields whose limit is MAX_LAYOUT."""
