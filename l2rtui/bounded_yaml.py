"""YAML from outside as plain values, within limits: every file that l2rtui reads is parsed here.

A few hundred bytes of YAML can expand to gigabytes ("billion laughs": aliases of aliases), and deep nesting crashes
the process, since the C loader of PyYAML recurses without a limit. So the events are counted first, which needs
memory for neither, and values are made only within the limits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import yaml

from runtime.base.bounded_json import MAX_DEPTH

# The events of libyaml, which PyYAML's wheels contain, come one at a time: only its loader recurses.
_FAST: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_BYTES: Final = 16 * 1_048_576
MAX_VALUES: Final = 200_000
"""Values of one document with every alias expanded."""


class TooMuchError(yaml.YAMLError):
    """The text is larger or deeper, or has more values, than any file of its kind."""


def load(text: str | bytes, loader: Any = yaml.SafeLoader, *, max_values: int = MAX_VALUES) -> Any:
    """Return the value of a single document, None for an empty text. Raises yaml.YAMLError and UnicodeDecodeError.

    Args:
        loader: Class of a safe loader.
    """
    check(text, loader, max_values=max_values)
    with constructing():
        return yaml.load(text, loader)  # noqa: S506  (only safe loaders are passed)


def load_all(text: str | bytes, loader: Any = yaml.SafeLoader, *, max_values: int = MAX_VALUES) -> list[Any]:
    """Return the value of each document. Raises yaml.YAMLError and UnicodeDecodeError."""
    check(text, loader, max_values=max_values)
    with constructing():
        return list(yaml.load_all(text, loader))


@contextlib.contextmanager
def constructing() -> Iterator[None]:
    """Turn errors of PyYAML's constructors for a wrong value under an explicit tag into yaml.YAMLError."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        # Such as KeyError for "!!bool x", AttributeError for "!!timestamp x", ValueError for a 13th month.
        if isinstance(error, UnicodeError):
            raise
        raise yaml.YAMLError(f"a value is not what its tag says ({error})") from error


def check(text: str | bytes, loader: Any, *, max_values: int = MAX_VALUES) -> None:
    """Raise TooMuchError for a text beyond the limits, and yaml.YAMLError for one that is not YAML."""
    if len(text) > MAX_BYTES:
        raise TooMuchError(f"it is larger than {MAX_BYTES // 1_048_576} MiB")
    try:
        # Every text is read twice, so the count takes the parser that needs a tenth of the time.
        _count(text, _FAST, max_values)
    except TooMuchError:
        raise
    except yaml.YAMLError:
        _count(text, loader, max_values)  # the error is to have the words and the line of the caller's loader


def _count(text: str | bytes, loader: Any, max_values: int) -> None:
    counter = _Counter(max_values)
    for event in _events(text, loader):
        counter.add(event)


def _events(text: str | bytes, loader: Any) -> Iterator[yaml.Event]:
    try:
        yield from yaml.parse(text, loader)
    except RecursionError:
        raise TooMuchError("its values are nested too deeply") from None


class _Counter:
    """Number of values so far, with aliases expanded, and the nesting depth."""

    def __init__(self, max_values: int) -> None:
        self._max_values = max_values
        self._open: list[tuple[str | None, int]] = []
        """Anchor of each collection that is not complete, and the number of values before it."""
        # Values below each anchor of the document, which an alias stands for.
        self._sizes: dict[str, int] = {}
        self._total = 0

    def add(self, event: yaml.Event) -> None:
        """Count one event. Raises TooMuchError."""
        if isinstance(event, yaml.DocumentStartEvent):
            self._sizes.clear()
            self._total = 0
        elif isinstance(event, yaml.AliasEvent):
            self._add(self._size_of(str(event.anchor)))
        elif isinstance(event, yaml.ScalarEvent):
            # Names of fields are counted as values, too.
            self._add(1)
            _check_text(event.value)
            if event.anchor is not None:
                self._sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, self._total))
            self._add(1)
            if len(self._open) > MAX_DEPTH:
                raise TooMuchError(f"its values are nested more than {MAX_DEPTH} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = self._open.pop()
            if anchor is not None:
                self._sizes[anchor] = self._total - before

    def _size_of(self, anchor: str) -> int:
        if any(name == anchor for name, _ in self._open) and anchor not in self._sizes:
            raise TooMuchError(f"its value {anchor!r} holds itself")
        # An alias without an anchor is an error that the loader reports.
        return self._sizes.get(anchor, 1)

    def _add(self, number: int) -> None:
        self._total += number
        if self._total > self._max_values:
            raise TooMuchError(f"it stands for more than {self._max_values} values")


def _check_text(value: str) -> None:
    """Refuse half a character, which a YAML escape can produce: no file and no request can contain it."""
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise yaml.YAMLError(f"a text holds {half}, which is half a character") from error
