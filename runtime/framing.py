"""Messages to frames and back: one JSON header, and for weights and segments one raw arena behind it.

No pickle, no sockets, no torch. A frame's length is looked at before its content, and the arena is never copied:
the receiver gets a view and checks its size against what the sender declared in its Hello. The JSON is msgspec's:
with tens of segments in a message the standard library's reader costs more than everything else in it. Headers of
segments and of their acknowledgements, of which there are thousands a second, are read and checked by msgspec in
one go; what it does not like is read again like all the others, for a sentence about what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from runtime.messages import (
    MAX_BUNDLE,
    MAX_INTEGER,
    Ack,
    Message,
    ProtocolError,
    Rows,
    Segments,
    from_fields,
    has_arena,
    to_fields,
)

HEADER_LIMIT: Final = 16_384
"""Longest header in bytes; the longest valid one is a Hello with a layout and all its texts at their longest."""

Buffer = bytes | bytearray | memoryview


class Arena:
    """The memory of one segment, and where it lies in the slab that it is a part of. Nobody writes it any more."""

    __slots__ = ("nbytes", "slab", "start")

    def __init__(self, slab: memoryview, start: int, nbytes: int) -> None:
        self.slab, self.start, self.nbytes = slab, start, nbytes

    @classmethod
    def of(cls, buffer: Buffer) -> Arena:
        """Return an arena that lies alone."""
        view = memoryview(buffer).cast("B")
        return cls(view, 0, view.nbytes)

    @property
    def view(self) -> memoryview:
        """Its bytes."""
        return self.slab[self.start : self.start + self.nbytes]


_Int = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
_Row = tuple[_Int, _Int, _Int, _Int, float, float]


class _Segments(msgspec.Struct, tag=Segments.kind, tag_field="kind", forbid_unknown_fields=True, gc=False):
    """The header of segments as it is on the wire, see `Segments`."""

    epoch: _Int
    seq: _Int
    ring: bool
    rows: Annotated[tuple[_Row, ...], msgspec.Meta(min_length=1, max_length=MAX_BUNDLE)]


class _Ack(msgspec.Struct, tag=Ack.kind, tag_field="kind", forbid_unknown_fields=True, gc=False):
    """The header of an acknowledgement as it is on the wire, see `Ack`."""

    epoch: _Int
    last_seq: _Int
    durable_seq: _Int
    limit: _Int
    policy_version: _Int


_encode: Final = msgspec.json.Encoder().encode
_decode: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()
_decode_quickly: Final[msgspec.json.Decoder[_Segments | _Ack]] = msgspec.json.Decoder(_Segments | _Ack)


def encode(message: Message, arena: Buffer | None = None) -> list[Buffer]:
    """Return the frames of `message`: the header, and `arena` as it is if the kind carries one.

    Raises ProtocolError if the arena is missing or too many, or if the header is too long.
    """
    if (arena is not None) != has_arena(message):
        raise ProtocolError(f"a message of kind {message.kind} {'needs' if arena is None else 'carries no'} arena")
    try:
        header = _encode(_wire(message))
        if isinstance(message, Segments) and b"null" in header:  # what msgspec makes of numbers that are not finite
            to_fields(message)  # says which
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"{message.kind}: {error}") from error
    if len(header) > HEADER_LIMIT:
        raise ProtocolError(f"{message.kind}: a header of {len(header)} bytes; the limit is {HEADER_LIMIT}")
    return [header] if arena is None else [header, arena]


def decode(frames: Sequence[Buffer]) -> tuple[Message, memoryview | None]:
    """Return the message in `frames` and a view of its arena, which is None for kinds without one.

    Raises ProtocolError for whatever is not exactly one message; nothing is allocated for the arena.
    """
    if not 1 <= len(frames) <= 2:
        raise ProtocolError(f"a message has one or two frames, not {len(frames)}")
    header = memoryview(frames[0])
    if header.nbytes > HEADER_LIMIT:
        raise ProtocolError(f"a header of {header.nbytes} bytes; the limit is {HEADER_LIMIT}")
    message = _message(header)
    if (len(frames) == 2) != has_arena(message):
        raise ProtocolError(f"a message of kind {message.kind} came with {len(frames)} frames")
    return message, memoryview(frames[1]).cast("B") if len(frames) == 2 else None


def _wire(message: Message) -> _Segments | _Ack | dict[str, Any]:
    match message:
        case Ack(epoch, last_seq, durable_seq, limit, policy_version):
            return _Ack(epoch, last_seq, durable_seq, limit, policy_version)
        case Segments(epoch, seq, ring, rows):
            return _Segments(epoch, seq, ring, rows.rows)
        case _:
            return to_fields(message)


def _message(header: memoryview) -> Message:
    try:
        plain = _decode_quickly.decode(header)
    except (ValueError, RecursionError):
        pass
    else:
        if isinstance(plain, _Ack):
            return Ack(plain.epoch, plain.last_seq, plain.durable_seq, plain.limit, plain.policy_version)
        return Segments(plain.epoch, plain.seq, plain.ring, Rows(plain.rows))
    try:
        given = _decode.decode(header)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the header is not JSON: {error!s:.100}") from None
    return from_fields(given)
