"""Figures of the slot grid: rates of runs, idle GPUs, and the age of these data; and their text in a tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from l2rtui.domain.status import Level
from l2rtui.ui.text import GLYPHS, Span, TextStyle, count, shorten

UNKNOWN: Final = Span("?", TextStyle.DIM)
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_ROOMY: Final = 9
"""Width of a tile from which a space separates bar and percentage."""
_SUFFIXES: Final = ("", "k", "M", "G")


class RunFigure(Struct, frozen=True):
    """Speed of a run.

    Attributes:
        rate: Env steps a second; None if unknown.
        age: Age of its last record if the record is old; otherwise empty.
        level, word: State of its learning if it needs attention; otherwise level is OK.
        devices: Node and index of the GPUs on which it collects; empty where these are unknown.
    """

    rate: float | None = None
    age: str = ""
    level: Level = Level.OK
    word: str = ""
    devices: frozenset[tuple[str, int]] = frozenset()


class GridFigures(Struct, frozen=True):
    """Figures that change while no slot moves.

    Attributes:
        runs: By name of the run.
        idle: Time for which a held GPU has done nothing, by node and index; only where that is long.
        rates: Env steps a second of the workers on a GPU, by node and index; only where the records of all are new.
        age: Age of everything that is shown while the backend does not answer; else empty.
        silent: Age of the nodes of a context that does not answer, by its name, where several are shown.
    """

    runs: Mapping[str, RunFigure] = field(default_factory=dict)
    idle: Mapping[tuple[str, int], str] = field(default_factory=dict)
    rates: Mapping[tuple[str, int], float] = field(default_factory=dict)
    age: str = ""
    silent: Mapping[str, str] = field(default_factory=dict)


NO_FIGURES: Final = GridFigures()


def compact(number: float) -> str:
    """Write a number of at least 0 in at most four characters: ``1.9k``."""
    for suffix in _SUFFIXES:
        if number < 9.95 and suffix:
            return f"{number:.1f}{suffix}"
        if number < 999.5:
            return f"{number:.0f}{suffix}"
        number /= 1000
    return ">999G"[:4]


def gauge(share: float | None, width: int, style: TextStyle) -> tuple[Span, ...]:
    """Draw a share of 0 to 1 as a bar with its percentage in this many columns together; ``?`` if unknown."""
    if share is None:
        return (Span(" " * (width - 1), TextStyle.DIM), UNKNOWN)
    share = min(1.0, max(0.0, share))
    digits = 4 if width < _ROOMY else 5
    room = width - digits
    eighths = round(share * room * 8)
    # Any share above zero is visible.
    eighths = max(eighths, 1 if share > 0 else 0)
    full, rest = divmod(eighths, 8)
    bar = "█" * full + (_EIGHTHS[rest] if rest else "")
    text = f"{share:>{digits}.0%}"
    return (
        Span(bar, style),
        Span(" " * (room - len(bar))),
        Span(text, TextStyle.PLAIN if text.strip() != "0%" else TextStyle.FAINT),
    )


def rate_of(
    figures: Sequence[RunFigure],
    width: int,
    device: tuple[str, int] | None = None,
    own: float | None = None,
) -> tuple[Span, ...]:
    """Write the speed of the runs on a GPU; a run that needs attention comes first.

    A learner's record has the rate of the whole run, which is that of a GPU only if the run collects nowhere else.

    Args:
        device: Node and index of the GPU.
        own: Env steps a second of its workers by their own records; None if unknown.
    """
    worst = max(figures, key=lambda own: (own.level is Level.BAD, own.level is Level.WARN, bool(own.age)))
    if worst.level in (Level.BAD, Level.WARN):
        full = f"{GLYPHS[worst.level]} {worst.word}"
        text = full if len(full) <= width else shorten(f"{GLYPHS[worst.level]}{worst.word}", width)
        # No block: one stalled run holds slots on many GPUs, and its row and the header have one already.
        style = TextStyle.BAD if worst.level is Level.BAD else TextStyle.WARN
        return Span(" " * (width - len(text))), Span(text, style)
    if worst.age:
        text = f"silent {worst.age}" if len(worst.age) + 7 <= width else f"▲{worst.age}"
        return (Span(f"{text:>{width}}", TextStyle.WARN),)
    rates = [figure.rate for figure in figures]
    if own is None and any(rate is None for rate in rates):
        return Span(" " * (width - 1)), UNKNOWN
    if own is None and any(figure.devices and figure.devices != {device} for figure in figures):
        return (Span(" " * width),)
    total = own if own is not None else sum(rate for rate in rates if rate is not None)
    full = count(round(total))
    text = full if len(full) <= width else compact(total)
    return (Span(f"{text:>{width}}"),)
