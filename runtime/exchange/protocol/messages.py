"""The messages of the learner/worker exchange and their validation (stdlib only).

A message is a dataclass of flat scalars and, for segments, of rows of them; what it means stands with it, and
`docs/exchange.md` says how it is used. Nobody changes one; only segments and their acknowledgements are not frozen:
there are thousands a second, and to make what is frozen costs four times as much.

`from_fields` is the only way from outside text to a message: every field must be there, of its declared type and
inside its bounds, and no other field may be there. Whatever else arrives is a `ProtocolError`, which the receiver
counts and survives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import chain
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeGuard

from runtime.contract import PROTOCOL_VERSION

MAX_INTEGER: Final = 2**53 - 1
"""Largest integer on the wire: what every JSON reader in any language holds exactly."""
MAX_TEXT: Final = 512
"""Longest text field, in characters."""
MAX_LAYOUT: Final = 4096
"""Longest description of a layout, in characters: dict observations have many fields."""
MAX_BUNDLE: Final = 64
"""Most segments in one message."""
BUNDLE_BYTES: Final = 1024 * 1024
"""Most bytes of a message of several segments; one segment alone may be larger."""


class ProtocolError(ValueError):
    """What arrived is not a message of this protocol; the sentence says what is wrong with it."""


class ForeignVersionError(ProtocolError):
    """The peer speaks another version of the protocol, so nothing else of its message may be read."""

    def __init__(self, version: object) -> None:
        super().__init__(
            f"the peer speaks version {version!s:.20} of the exchange and this process version {PROTOCOL_VERSION}; "
            "start learner and workers from the same release"
        )


class Refusal(StrEnum):
    """Why a learner refuses a peer for good; the peer ends with `contract.EXIT_REFUSED`."""

    PROTOCOL = "protocol"
    RUN = "run"
    TOKEN = "token"  # noqa: S105  (the name of a reason, not a secret)
    SCHEMA = "schema"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Hello:
    """Peer → learner: who I am, what my segments look like, and from where on I can send again.

    `incarnation` differs between two starts of the same pod. `oldest` is the sequence number of the oldest
    segment that the peer still holds, or of its next one. `layout` describes the fields of one transition, in the
    words of `Layout.text`. `segment_transitions` is the most transitions in one segment; 0 for a peer that sends
    none, such as an evaluator.
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
    """Learner → peer: you are a member of this epoch; send what follows `last_seq`, up to `limit`.

    `window` is the most segments that are ever on their way from one worker: `limit <= last_seq + window`.
    """

    kind: ClassVar[str] = "welcome"
    epoch: int
    last_seq: int
    durable_seq: int
    limit: int
    window: int
    policy_version: int
    max_policy_lag: int


@dataclass(slots=True)
class Ack:
    """Learner → peer, cumulative: taken up to `last_seq`, in a checkpoint up to `durable_seq`, go on to `limit`.

    The credit is `limit - last_seq` segments. All four only rise within an epoch, so a lost Ack costs nothing.
    """

    kind: ClassVar[str] = "ack"
    epoch: int
    last_seq: int
    durable_seq: int
    limit: int
    policy_version: int


@dataclass(frozen=True, slots=True)
class Who:
    """Learner → peer: I do not know you in this epoch, or segments between us are missing; say Hello again."""

    kind: ClassVar[str] = "who"
    epoch: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Learner → peer: go away and do not come back as you are. Same layout in every protocol version."""

    kind: ClassVar[str] = "refused"
    protocol: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """Learner → peer: the run is finished; end."""

    kind: ClassVar[str] = "done"
    epoch: int
    reason: str


class Trajectory(NamedTuple):
    """One segment, as a row of `Segments`: what is said of the transitions in its part of the arena.

    `return_sum` and `progress_sum` (metres) are over the `episodes` that ended inside the segment.
    """

    transitions: int
    policy_version_min: int
    policy_version_max: int
    episodes: int
    return_sum: float
    progress_sum: float


class Columns(NamedTuple):
    """The rows of a message by column: a learner looks at a column of a whole message at once."""

    transitions: tuple[int, ...]
    policy_version_min: tuple[int, ...]
    policy_version_max: tuple[int, ...]
    episodes: tuple[int, ...]
    return_sum: tuple[float, ...]
    progress_sum: tuple[float, ...]


@dataclass(slots=True)
class Rows:
    """The rows of a message, at least one, as they are on the wire."""

    rows: tuple[tuple[int, int, int, int, float, float], ...]
    _columns: Columns | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, *rows: Trajectory) -> Self:
        """Return some rows, at least one."""
        return cls(rows)

    @property
    def columns(self) -> Columns:
        """The same by column; made when it is first asked for, since who sends rows has no use for it."""
        if self._columns is None:
            self._columns = Columns._make(zip(*self.rows, strict=True))
        return self._columns

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Trajectory:
        return Trajectory(*self.rows[place])

    def part(self, first: int, end: int) -> Rows:
        """Return the rows from place `first` to before `end`."""
        return Rows(self.rows[first:end])


@dataclass(slots=True)
class Segments:
    """Worker → learner: segments with the sequence numbers `seq`, `seq + 1`, and so on.

    Their arenas follow one another in the frame behind the header, or if `ring` in the ring that the learner took:
    the segment of number n in slot `n % slots`.
    """

    kind: ClassVar[str] = "traj"
    epoch: int
    seq: int
    ring: bool
    rows: Rows


@dataclass(frozen=True, slots=True)
class Ring:
    """Worker → learner: if you run on my host, take my segments from this memory instead of from the socket.

    `place` names the kernel and the process namespace, `pid` and `descriptor` the sealed memory file of `slots`
    slots of `slot_bytes` behind a page that begins with `nonce`.
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
class Ringed:
    """Learner → worker: your ring with this nonce is taken, or it is not and the socket it is."""

    kind: ClassVar[str] = "ringed"
    epoch: int
    nonce: str
    is_taken: bool


@dataclass(frozen=True, slots=True)
class Ping:
    """Peer → learner, every second: alive, and moving if `env_steps` changes; `sent` is my last sequence number."""

    kind: ClassVar[str] = "ping"
    epoch: int
    sent: int
    env_steps: int
    policy_version: int
    env_steps_per_second: float


@dataclass(frozen=True, slots=True)
class Bye:
    """Peer → learner: I end in order; forget me. `sent` is my last sequence number."""

    kind: ClassVar[str] = "bye"
    epoch: int
    sent: int
    reason: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Evaluator → learner: how the policy of one version drives, beside how the random policy drove.

    `laps` is the sum over the episodes; `clean_lap` says that each drove one and none left the track.
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


@dataclass(frozen=True, slots=True)
class Get:
    """Peer → learner on the model socket: weights newer than `have` of `epoch`, please.

    `codec` is the form in which I would like them: ``f4`` for float32, ``bf2`` for bfloat16 (half as long). `place`
    names the kernel and the process namespace, or is empty: if the learner has the same, its memory will do too.
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

    `checksum` is the sum of the arena's little-endian 64-bit words, the last one filled up with zeros, modulo
    2**64, as 16 hexadecimal digits: it finds a mix-up at the speed of memory; tampering is CURVE's to prevent.
    """

    kind: ClassVar[str] = "weights"
    epoch: int
    policy_version: int
    codec: str
    floats: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Shared:
    """Learner → peer on its host: the newest weights, `floats` float32, lie on this shelf; see `runtime.shelf`.

    `pid` and `descriptor` name the sealed memory file behind a page that begins with `nonce`.
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
    """Learner → peer: there is nothing newer than what you have; the newest is `policy_version`."""

    kind: ClassVar[str] = "current"
    epoch: int
    policy_version: int


Message = (
    Hello
    | Welcome
    | Ack
    | Who
    | Refused
    | Done
    | Segments
    | Ring
    | Ringed
    | Ping
    | Bye
    | Evaluation
    | Get
    | Weights
    | Shared
    | Current
)
KINDS: Final[Mapping[str, type[Message]]] = {
    each.kind: each
    for each in (
        Hello,
        Welcome,
        Ack,
        Who,
        Refused,
        Done,
        Segments,
        Ring,
        Ringed,
        Ping,
        Bye,
        Evaluation,
        Get,
        Weights,
        Shared,
        Current,
    )
}
_NAMES: Final = {kind: {one.name: str(one.type) for one in fields(cls)} for kind, cls in KINDS.items()}
_ROW: Final = {name: "float" if name.endswith("_sum") else "int" for name in Trajectory._fields}


def has_arena(message: Message) -> bool:
    """Say whether one raw arena follows the header; every other message travels alone."""
    return isinstance(message, Weights) or (isinstance(message, Segments) and not message.ring)


def to_fields(message: Message) -> dict[str, Any]:
    """Return the message as a flat mapping with its kind first; the rows of segments as lists.

    Raises ProtocolError for a number that is not finite: JSON has none.
    """
    given = {"kind": message.kind, **{name: getattr(message, name) for name in _NAMES[message.kind]}}
    values: Iterable[Any] = given.values()
    if isinstance(message, Segments):
        given["rows"] = message.rows.rows
        values = chain.from_iterable(message.rows.rows)
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise ProtocolError(f"{message.kind}: {value} is no number that can be sent")
    return given


def from_fields(given: object) -> Message:
    """Return the message that a decoded header states.

    Raises ProtocolError for anything that is not exactly a message, ForeignVersionError for a Hello of another
    protocol version, whose other fields are not looked at.
    """
    if not isinstance(given, dict):
        raise ProtocolError(f"a header must be an object, not {type(given).__name__}")
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ProtocolError(f"there is no message of kind {kind!r:.40}")
    if kind == Hello.kind and given.get("protocol") != PROTOCOL_VERSION:
        raise ForeignVersionError(given.get("protocol"))
    types = _NAMES[kind]
    if given.keys() != types.keys() | {"kind"}:
        wrong = sorted((given.keys() - {"kind"}) ^ types.keys())
        raise ProtocolError(f"{kind}: fields missing or unknown: {', '.join(map(str, wrong))[:200]}")
    checked: dict[str, Any] = {name: _checked(kind, name, types[name], given[name]) for name in types}
    if kind == Segments.kind:
        checked["rows"] = _rows(checked["rows"])
    return KINDS[kind](**checked)


def _rows(given: list[object]) -> Rows:
    """Return the segments that the rows of a header state."""
    rows: list[list[Any]] = [row for row in given if isinstance(row, list) and len(row) == len(_ROW)]
    if len(rows) != len(given):
        raise ProtocolError(f"{Segments.kind}.rows: a row is a list of {len(_ROW)} numbers")
    columns: list[tuple[Any, ...]] = list(zip(*rows, strict=True))
    for place, (column, (name, declared)) in enumerate(zip(columns, _ROW.items(), strict=True)):
        # Nearly every column is plainly sound; the others are looked at one by one, for their sentence.
        if not (_are_integers(column) if declared == "int" else _are_floats(column)):
            columns[place] = tuple(_checked("row", name, declared, value) for value in column)
    return Rows(tuple(zip(*columns, strict=True)))


def _are_integers(column: tuple[Any, ...]) -> bool:
    return set(map(type, column)) == {int} and min(column) >= 0 and max(column) <= MAX_INTEGER


def _are_floats(column: tuple[Any, ...]) -> bool:
    return set(map(type, column)) == {float} and math.isfinite(sum(column))


def _checked(kind: str, name: str, declared: str, value: object) -> object:
    """Return `value` as `declared` (the annotation's text) wants it; whole numbers are valid floats."""
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
    "Rows": lambda value: isinstance(value, list) and 0 < len(value) <= MAX_BUNDLE,
}
_LONG: Final = frozenset({"layout"})
"""Text fields that may be as long as MAX_LAYOUT."""
