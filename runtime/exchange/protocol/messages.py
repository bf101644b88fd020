"""Messages between a learner and its peers, with the bounds of their fields.

A message is a struct of scalars and, for segments, of rows of scalars. Its tag is its kind on the wire, and the
names of its fields are the keys of the JSON header. Neither may change within a protocol version, unlike the names
of the classes. `docs/exchange.md` describes how the messages are used.

`framing` decodes them: every field must be present, of its declared type and within its bounds, and no other may be
present. Everything else is a `ProtocolError`, which the receiver counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Final, NamedTuple, get_args

from msgspec import Meta, Struct
from msgspec.structs import asdict

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
            f"the peer speaks version {version!r:.20} of the exchange and this process version {PROTOCOL_VERSION}; "
            "start learner and workers from the same release"
        )


class RefusalCode(StrEnum):
    """Reason for which a learner permanently refuses a peer; the peer ends with `contract.EXIT_REFUSED`."""

    PROTOCOL = "protocol"
    RUN = "run"
    TOKEN = "token"  # noqa: S105  (the name of a reason, not a secret)
    SCHEMA = "schema"
    SUPERSEDED = "superseded"


Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
"""Text that may reach a log or a terminal: `framing` accepts printable characters only."""


# gc=False: no message can be part of a reference cycle, and Python's cyclic collector would visit each of them.
class _Message(Struct, frozen=True, gc=False, tag_field="kind", forbid_unknown_fields=True):
    @property
    def kind(self) -> str:
        """Its tag on the wire."""
        return str(self.__struct_config__.tag)

    def __repr__(self) -> str:
        values = (f"{name}={value!r}" for name, value in asdict(self).items() if name != "token")
        return f"{type(self).__name__}({', '.join(values)})"


class Hello(_Message, tag="hello", frozen=True):
    """Peer → learner: identity of the peer, format of its segments, and the first one that it can send again.

    `incarnation` rises with each start of the same pod. `oldest` is the sequence number of the oldest segment that
    the peer has retained, or of its next one. `layout` describes the fields of one transition, see `Layout.text`.
    `segment_transitions` is the maximum number of transitions in one segment; 0 for a peer without segments, such
    as an evaluator.
    """

    protocol: Count
    run: Text
    run_id: Text
    token: Text
    role: Text
    pod: Text
    incarnation: Count
    oldest: Count
    environment: Text
    layout: Annotated[str, Meta(max_length=MAX_LAYOUT)]
    actor_floats: Count
    segment_transitions: Count


class Welcome(_Message, tag="welcome", frozen=True):
    """Learner → peer: member of this epoch from now on; send the segments after `last_seq`, up to `limit`.

    `window` is the maximum number of segments of one worker in flight: `limit <= last_seq + window`.
    """

    epoch: Count
    last_seq: Count
    durable_seq: Count
    limit: Count
    window: Count
    policy_version: Count
    max_policy_lag: Count


class Ack(_Message, tag="ack", frozen=True):
    """Learner → peer, cumulative: settled up to `last_seq`, in a checkpoint up to `durable_seq`, credit to `limit`.

    The credit is `limit - last_seq` segments. All numbers only increase within an epoch, so a lost Ack is harmless.
    """

    epoch: Count
    last_seq: Count
    durable_seq: Count
    limit: Count
    policy_version: Count


class Pace(_Message, tag="pace", frozen=True):
    """Learner → worker: ping every `ping_seconds` from now on, because there are many workers.

    Earlier versions do not know this message and ping every second.
    """

    epoch: Count
    ping_seconds: float


class RejoinRequest(_Message, tag="who", frozen=True):
    """Learner → peer: unknown in this epoch, or segments are missing; send Hello again."""

    epoch: Count


class Refused(_Message, tag="refused", frozen=True):
    """Learner → peer: permanently refused. The fields are the same in every protocol version."""

    protocol: Count
    code: Text
    reason: Text


class Done(_Message, tag="done", frozen=True):
    """Learner → peer: the run is finished and the peer should end."""

    epoch: Count
    reason: Text


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


Row = tuple[Count, Count, Count, Count, float, float, Count]
"""A `Trajectory` as a plain tuple, as which msgspec reads it faster."""


@dataclass(slots=True)
class SegmentRows:
    """Rows of a message, at least one."""

    rows: tuple[Row, ...]
    _columns: RowColumns | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def columns(self) -> RowColumns:
        """The rows by column; computed on first use."""
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


class Segments(_Message, tag="traj", frozen=True, dict=True, gc=True):  # msgspec wants gc for the dict of `table`
    """Worker → learner: segments with the sequence numbers `seq`, `seq + 1`, and so on.

    Their arenas are concatenated in the second frame, or, if `ring`, in the ring that the learner has accepted: the
    segment of number n in slot `n % slots`.
    """

    epoch: Count
    seq: Count
    ring: bool
    rows: Annotated[tuple[Row, ...], Meta(min_length=1, max_length=MAX_BUNDLE)]

    @cached_property
    def table(self) -> SegmentRows:
        """The rows with their columns."""
        return SegmentRows(self.rows)


class RingOffer(_Message, tag="ring", frozen=True):
    """Worker → learner: offer to exchange segments through this shared memory instead of the socket.

    `place` identifies kernel and PID namespace (`shared_memory.host_identity`). `pid` and `descriptor` identify the
    sealed memory file, which has `slots` slots of `slot_bytes` after a page that starts with `nonce`.
    """

    epoch: Count
    place: Text
    pid: Count
    descriptor: Count
    slots: Count
    slot_bytes: Count
    nonce: Text


class RingAccepted(_Message, tag="ringed", frozen=True):
    """Learner → worker: the ring with this nonce is mapped, or, if `is_taken` is false, the socket is used."""

    epoch: Count
    nonce: Text
    is_taken: bool


class Ping(_Message, tag="ping", frozen=True):
    """Peer → learner, every second or as `Pace` says: alive, and not hung if `env_steps` changes.

    `sent` is the last used number.
    """

    epoch: Count
    sent: Count
    env_steps: Count
    policy_version: Count
    env_steps_per_second: float


class Bye(_Message, tag="bye", frozen=True):
    """Peer → learner: the peer ends in order. `sent` is its last sequence number."""

    epoch: Count
    sent: Count
    reason: Text


class EvaluationReport(_Message, tag="eval", frozen=True):
    """Evaluator → learner: results of the policy of one version, and of the random policy for comparison.

    `laps` is the sum over the episodes; `clean_lap` means that each drove one and none left the track.
    """

    epoch: Count
    policy_version: Count
    episodes: Count
    eval_return: float
    eval_progress: float
    random_return: float
    random_progress: float
    progress_ratio: float | None
    laps: Count
    clean_lap: bool
    lap_seconds: float | None

    def record_fields(self) -> dict[str, Any]:
        """Return the fields of its metric record: the message's fields without the epoch."""
        return {name: value for name, value in asdict(self).items() if name != "epoch"}


class Get(_Message, tag="get", frozen=True):
    """Peer → learner on the model socket: request for weights newer than version `have` of `epoch`.

    `codec` is the preferred encoding: ``f4`` for float32, ``bf2`` for bfloat16 (half as long). `place` identifies
    kernel and PID namespace: if the learner has the same, it may answer with `SharedWeights`. Empty: it may not.
    """

    token: Text
    epoch: Count
    have: Count
    codec: Text
    place: Text


class Weights(_Message, tag="weights", frozen=True):
    """Learner → peer: the actor of `policy_version`, `floats` values of `codec` in the arena that follows.

    `checksum` is the sum of the arena's little-endian 64-bit words, the last one padded with zeros, modulo 2**64,
    as 16 hexadecimal digits. It detects accidental damage at memory speed; CURVE protects against tampering.
    """

    epoch: Count
    policy_version: Count
    codec: Text
    floats: Count
    checksum: Text


class SharedWeights(_Message, tag="shared", frozen=True):
    """Learner → peer on the same host: the newest weights, `floats` float32, are in this shared memory.

    `pid` and `descriptor` identify the sealed memory file, whose first page starts with `nonce`. Its structure is
    described in `runtime.exchange.transport.shared_memory`.
    """

    epoch: Count
    policy_version: Count
    floats: Count
    pid: Count
    descriptor: Count
    nonce: Text


class Current(_Message, tag="current", frozen=True):
    """Learner → peer: there are no newer weights; the newest version is `policy_version`."""

    epoch: Count
    policy_version: Count


FromPeer = Hello | Segments | RingOffer | Ping | Bye | EvaluationReport | Get
FromLearner = (
    Welcome | Ack | Pace | RejoinRequest | Refused | Done | RingAccepted | Weights | SharedWeights | Current
)
Message = FromPeer | FromLearner
KINDS: Final[Mapping[str, type[Message]]] = {str(cls.__struct_config__.tag): cls for cls in get_args(Message)}


def has_arena(message: Message) -> bool:
    """Return true for messages whose header is followed by one raw arena."""
    return isinstance(message, Weights) or (isinstance(message, Segments) and not message.ring)
