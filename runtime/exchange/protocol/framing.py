"""Framing: encode a message as one JSON header, followed by one raw arena for weights and segments, and decode it.

No pickle: a received pickle is refused as "not JSON", and nothing that was received is ever unpickled or evaluated.
Arenas are raw numbers and are never copied here: the receiver gets a view and compares its size with the sender's
declaration in its Hello. The length of a frame is checked before its content.

JSON is read by msgspec: with tens of segments in a message the standard library's reader would cost more than
everything else. Headers of segments and acknowledgements, thousands per second, are parsed and validated in one
step; a header that fails there is parsed again by the general path, which produces the exact error message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from runtime.exchange.protocol import messages

HEADER_LIMIT: Final = 16_384
"""Longest header in bytes. The longest valid one is a Hello whose texts all have their maximum length."""

Buffer = bytes | bytearray | memoryview


class SegmentArena:
    """Memory of one segment, as a range of a larger slab. It is immutable once the segment is queued."""

    # Slots and a plain constructor instead of a dataclass: one of these is made for every segment.
    __slots__ = ("nbytes", "slab", "start")

    def __init__(self, slab: memoryview, start: int, nbytes: int) -> None:
        self.slab, self.start, self.nbytes = slab, start, nbytes

    @classmethod
    def of(cls, buffer: Buffer) -> SegmentArena:
        """Return an arena that is its own slab."""
        view = memoryview(buffer).cast("B")
        return cls(view, 0, view.nbytes)

    @property
    def view(self) -> memoryview:
        """The segment's bytes."""
        return self.slab[self.start : self.start + self.nbytes]


_Int = Annotated[int, msgspec.Meta(ge=0, le=messages.MAX_INTEGER)]
_Row = tuple[_Int, _Int, _Int, _Int, float, float, _Int]


# gc=False: neither struct can be part of a reference cycle, and Python's cyclic collector would visit each of them.
class _Segments(msgspec.Struct, tag=messages.Segments.kind, tag_field="kind", forbid_unknown_fields=True, gc=False):
    """Header of `Segments` on the wire."""

    epoch: _Int
    seq: _Int
    ring: bool
    rows: Annotated[tuple[_Row, ...], msgspec.Meta(min_length=1, max_length=messages.MAX_BUNDLE)]


class _Ack(msgspec.Struct, tag=messages.Ack.kind, tag_field="kind", forbid_unknown_fields=True, gc=False):
    """Header of `Ack` on the wire."""

    epoch: _Int
    last_seq: _Int
    durable_seq: _Int
    limit: _Int
    policy_version: _Int


_encode: Final = msgspec.json.Encoder().encode
_decode: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()
_decode_quickly: Final[msgspec.json.Decoder[_Segments | _Ack]] = msgspec.json.Decoder(_Segments | _Ack)


def encode(message: messages.Message, arena: Buffer | None = None) -> list[Buffer]:
    """Return the frames of `message`: its header, and `arena` without a copy if the kind carries one.

    Raises ProtocolError if an arena is missing or superfluous, a number is not finite, or the header is too long.
    """
    if (arena is not None) != messages.has_arena(message):
        fault = "needs" if arena is None else "carries no"
        raise messages.ProtocolError(f"a message of kind {message.kind} {fault} arena")
    try:
        header = _encode(_wire(message))
        # msgspec writes null for NaN and infinity. Searching the bytes is cheaper than checking every number first.
        if isinstance(message, messages.Segments) and b"null" in header:
            messages.to_fields(message)  # raises, and names the number
    except (ValueError, OverflowError) as error:
        raise messages.ProtocolError(f"{message.kind}: {error}") from error
    if len(header) > HEADER_LIMIT:
        raise messages.ProtocolError(
            f"{message.kind}: a header of {len(header)} bytes; the limit is {HEADER_LIMIT}"
        )
    return [header] if arena is None else [header, arena]


def decode(frames: Sequence[Buffer]) -> tuple[messages.Message, memoryview | None]:
    """Return the message in `frames` and a view of its arena, or None for kinds without one.

    Raises ProtocolError for anything that is not exactly one message. Allocates nothing for the arena.
    """
    if not 1 <= len(frames) <= 2:
        raise messages.ProtocolError(f"a message has one or two frames, not {len(frames)}")
    header = memoryview(frames[0])
    if header.nbytes > HEADER_LIMIT:
        raise messages.ProtocolError(f"a header of {header.nbytes} bytes; the limit is {HEADER_LIMIT}")
    message = _message(header)
    if (len(frames) == 2) != messages.has_arena(message):
        raise messages.ProtocolError(f"a message of kind {message.kind} came with {len(frames)} frames")
    return message, memoryview(frames[1]).cast("B") if len(frames) == 2 else None


def _wire(message: messages.Message) -> _Segments | _Ack | dict[str, Any]:
    match message:
        case messages.Ack(epoch, last_seq, durable_seq, limit, policy_version):
            return _Ack(epoch, last_seq, durable_seq, limit, policy_version)
        case messages.Segments(epoch, seq, ring, rows):
            return _Segments(epoch, seq, ring, rows.rows)
        case _:
            return messages.to_fields(message)


def _message(header: memoryview) -> messages.Message:
    try:
        plain = _decode_quickly.decode(header)
    except (ValueError, RecursionError):  # RecursionError: deeply nested arrays, before their length is known
        pass
    else:
        if isinstance(plain, _Ack):
            return messages.Ack(plain.epoch, plain.last_seq, plain.durable_seq, plain.limit, plain.policy_version)
        return messages.Segments(plain.epoch, plain.seq, plain.ring, messages.SegmentRows(plain.rows))
    try:
        fields = _decode.decode(header)
    except (ValueError, RecursionError) as error:
        raise messages.ProtocolError(f"the header is not JSON: {error!s:.100}") from None
    return messages.from_fields(fields)
