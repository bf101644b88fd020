"""Framing: encode a message as one JSON header, followed by one raw arena for weights and segments, and decode it.

No pickle: a received pickle is refused as "not JSON", and nothing that was received is ever unpickled or evaluated.
Arenas are raw numbers and are never copied here: the receiver gets a view and compares its size with the sender's
declaration in its Hello. The length of a frame is checked before its content.

JSON is read by msgspec, which parses and validates a header in one step: with tens of segments in a message the
standard library's reader would cost more than everything else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, fields

from runtime.base.contract import PROTOCOL_VERSION
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


_encode: Final = msgspec.json.Encoder().encode
_decode: Final[msgspec.json.Decoder[messages.Message]] = msgspec.json.Decoder(messages.Message)
_TEXTS: Final = {
    cls: texts
    for cls in messages.KINDS.values()
    if (texts := [item.name for item in fields(cls) if getattr(item.type, "__origin__", None) is str])
}
"""Names of the fields with a text, by class."""


def encode(message: messages.Message, arena: Buffer | None = None) -> list[Buffer]:
    """Return the frames of `message`: its header, and `arena` without a copy if the kind carries one.

    Raises ProtocolError if an arena is missing or superfluous, a number is not finite, or the header is too long.
    """
    if (arena is not None) != messages.has_arena(message):
        fault = "needs" if arena is None else "carries no"
        raise messages.ProtocolError(f"a message of kind {message.kind} {fault} arena")
    try:
        header = _encode(message)
        # msgspec writes null for NaN and infinity. Searching the bytes is cheaper than checking every number first.
        if b"null" in header:
            _check_finite(message)
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


def _check_finite(message: messages.Message) -> None:
    values: list[object] = list(asdict(message).values())
    if isinstance(message, messages.Segments):
        values = list(chain.from_iterable(message.rows))
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} cannot be sent as a number")


def _message(header: memoryview) -> messages.Message:
    try:
        message = _decode.decode(header)
    except (ValueError, RecursionError) as error:  # RecursionError: deeply nested arrays
        raise _fault(header, error) from None
    # Thousands of messages without texts come per second.
    if texts := _TEXTS.get(type(message)):
        if isinstance(message, messages.Hello) and message.protocol != PROTOCOL_VERSION:
            raise messages.ForeignVersionError(message.protocol)
        _check_texts(message, texts)
    return message


def _check_texts(message: messages.Message, names: Sequence[str]) -> None:
    """Raise ProtocolError for a text with control characters: it may reach a log or a terminal."""
    for name in names:
        if not (text := getattr(message, name)).isprintable():
            raise messages.ProtocolError(f"{message.kind}.{name}: {text!r:.60} is not printable")


def _fault(header: memoryview, error: Exception) -> messages.ProtocolError:
    """Return the reason why a header is not a message: a Hello of another version may have any other fields."""
    try:
        plain: Any = msgspec.json.decode(header)
    except (ValueError, RecursionError) as fault:
        return messages.ProtocolError(f"the header is not JSON: {fault!s:.100}")
    if not isinstance(plain, dict):
        return messages.ProtocolError(f"a header must be an object, not {type(plain).__name__}")
    kind, version = plain.get("kind"), plain.get("protocol")
    if messages.KINDS.get(str(kind)) is messages.Hello and version != PROTOCOL_VERSION:
        return messages.ForeignVersionError(version)
    # The library's sentence has the names of unknown fields as they came.
    reason = "".join(char if char.isprintable() else "?" for char in str(error)[:200])
    return messages.ProtocolError(f"{kind!r:.40}: {reason}")
