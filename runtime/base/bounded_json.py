"""Bounded decoding of JSON from outside: every text from a file, a peer or a cluster is decoded here.

`json` and msgspec raise RecursionError for deeply nested text, which callers do not expect. A value that they still
decode can break a later function that walks it. So excessive depth is an error like any other error of the text.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, overload

if TYPE_CHECKING:
    from msgspec import Raw

MAX_DEPTH: Final = 100
"""Maximum depth of nested lists and objects, for JSON and YAML."""
_TOO_DEEP: Final = f"its values are nested more than {MAX_DEPTH} deep"

_PREPARING: Final = threading.Lock()
"""Held while msgspec prepares a type: two threads that do so for the same type can end the process by SIGSEGV."""
_CONVERTED: Final[set[Any]] = set()
"""Types that ``convert`` has prepared."""

T = TypeVar("T")


class UndecodableError(ValueError):
    """The text is not JSON, is nested too deeply, or is not of the type."""


Text: TypeAlias = "bytes | bytearray | str | Raw"


def loads(text: bytes | bytearray | str) -> Any:
    """Decode a text as Python does, including NaN and Infinity. Raises UndecodableError."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise UndecodableError(_TOO_DEEP) from None
    except ValueError as error:
        raise UndecodableError(str(error)) from error
    _check_depth(text, value)
    return value


@overload
def decode(text: Text) -> Any: ...


@overload
def decode(text: Text, kind: type[T]) -> T: ...


def decode(text: Text, kind: Any = Any) -> Any:
    """Decode a text as a type that msgspec supports, such as a Struct. Raises UndecodableError."""
    return decoder(kind)(text)


@cache  # msgspec takes longer to prepare a decoder than to decode a pod
def decoder(kind: Any) -> Callable[[Text], Any]:
    """Return `decode` for a type."""
    import msgspec  # commands that only read their settings do not need it

    with _PREPARING:
        decode_text = msgspec.json.Decoder(kind).decode

    def decode_bounded(text: Text) -> Any:
        try:
            value = decode_text(text)
        except RecursionError:
            raise UndecodableError(_TOO_DEEP) from None
        except ValueError as error:  # includes UnicodeEncodeError, for a lone surrogate in a str
            raise UndecodableError(str(error)) from error
        _check_depth(text, value)
        return value

    return decode_bounded


@overload
def convert(value: Any, kind: type[T], *, from_attributes: bool = ...) -> T: ...


@overload
def convert(value: Any, kind: Any, *, from_attributes: bool = ...) -> Any: ...


def convert(value: Any, kind: Any, *, from_attributes: bool = False) -> Any:
    """Convert a value as ``msgspec.convert`` does, from any thread. Raises msgspec.ValidationError."""
    import msgspec

    if kind in _CONVERTED:
        return msgspec.convert(value, kind, from_attributes=from_attributes)
    with _PREPARING:
        try:
            return msgspec.convert(value, kind, from_attributes=from_attributes)
        finally:
            _CONVERTED.add(kind)  # also after an invalid value: the type is prepared first


def _check_depth(text: Text, value: object) -> None:
    """Raise UndecodableError for deeply nested lists and objects; in a Struct, depth counts from each field."""
    if isinstance(text, str):
        most = text.count("[") + text.count("{")
    else:
        data = text if isinstance(text, bytes) else bytes(text)
        most = data.count(b"[") + data.count(b"{")
    if most <= MAX_DEPTH:
        return
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [item for parent in level for item in _items(parent) if not isinstance(item, str | int | float)]
        if not level:
            return
    raise UndecodableError(_TOO_DEEP)


def _items(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    return [getattr(value, name) for name in getattr(value, "__struct_fields__", ())]
