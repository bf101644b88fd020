"""Letters of runs, glyphs of slots, and the legend that counts both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Final

from l2rtui.domain.ledger import SlotState
from l2rtui.domain.node import CPU
from l2rtui.domain.quantity import counted
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.ui.text import HUES, Line, Span, TextStyle, shorten, width_of

LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWYZ"
"""One letter per run, in the order of launch; ``x`` is left out, as it marks pods that l2rtui did not launch."""
FOREIGN: Final = "x"
MANY: Final = "#"
"""Letter of all runs after the twenty-fifth; the details of the slot under the cursor name the run."""
IDLE: Final = "○"
"""Glyph of a held GPU that has been idle for long."""
OWN_RESERVATION: Final = Span("=", TextStyle.OK)
"""Cell of a free slot that the user has reserved."""
MISMATCH: Final = Span("≠", TextStyle.WARN)
"""Cell of a slot whose holder does not match its place; its details give the reason."""
GLYPHS_OF_STATES: Final = {
    SlotState.FREE: Span("·", TextStyle.FAINT),
    SlotState.RESERVED: Span("=", TextStyle.WAIT),
    SlotState.FAILED: Span("!", TextStyle.FAULT),
    SlotState.UNKNOWN: Span("?", TextStyle.WARN),
    SlotState.OFF: Span("─", TextStyle.FAINT),
}
"""Cell of a slot without a running pod, in the order of the legend."""
WORDS_OF_STATES: Final = {**{state: str(state) for state in SlotState}, SlotState.FAILED: "failing"}
WORDS_OF_STATES[SlotState.OFF] = "unusable"
"""Words of the screen for the states of a slot."""

_NAME_CHARS: Final = (20, 12, 8, 6)
"""Lengths to which names of runs are cut: the first at which at least one run fits is used."""

Letters = Mapping[str, tuple[str, TextStyle]]
"""Letter and hue of each run, by its name."""


def letters_of(views: Iterable[RunView]) -> Letters:
    """Return letter and hue of each run by its name, oldest first, so that a new run changes no other letter."""
    runs = sorted(views, key=lambda run: (run.created, run.name))
    return {
        run.name: (LETTERS[number] if number < len(LETTERS) else MANY, HUES[number % len(HUES)])
        for number, run in enumerate(runs)
    }


def legend_of(snapshot: ClusterSnapshot, letters: Letters, width: int, num_idle: int = 0) -> Line:
    """Return runs first, then other pods, then the states that occur; free is always shown.

    If the line is too narrow, runs are left out and counted: a cut number would read as a smaller one.
    """
    busy: dict[str, int] = {}
    states = dict.fromkeys(GLYPHS_OF_STATES, 0)
    free = failed = cpu_free = mismatched = 0
    # Plain counters in one pass: this runs on every change of the cluster.
    for slot in snapshot.ledger.slots.values():
        state = slot.state
        if state is SlotState.FREE:
            free += 1
            cpu_free += slot.id.gpu == CPU
        elif state is SlotState.BUSY or state is SlotState.FAILED:
            failed += state is SlotState.FAILED
            mismatched += slot.is_mismatched
            busy[slot.run] = busy.get(slot.run, 0) + 1
        else:
            states[state] += 1
    states[SlotState.FREE], states[SlotState.FAILED] = free, failed
    entries: list[Line] = []
    if others := sum(slots for name, slots in busy.items() if name not in letters):
        entries.append(_entry(Span(FOREIGN, TextStyle.DIM), f"others {others}"))
    for state, glyph in GLYPHS_OF_STATES.items():
        if states[state] or state is SlotState.FREE:
            # Users look for free GPUs more often than for free cores, so GPU slots are shown separately from the
            # sum.
            count = f"{free - cpu_free} + {cpu_free} cpu" if state is SlotState.FREE and cpu_free else states[state]
            entries.append(_entry(glyph, f"{WORDS_OF_STATES[state]} {count}"))
    if mismatched:
        entries.append(_entry(MISMATCH, f"mismatch {mismatched}"))
    if num_idle:
        entries.append(_entry(Span(IDLE, TextStyle.WARN), f"idle {num_idle}"))
    num_runs = sum(name in busy for name in letters)
    entries = _squeezed(entries, width - len(f"+{counted(num_runs, 'run')}  "))
    is_tight = not entries[-1][1].text.endswith("   ")
    last = tuple(chain.from_iterable(entries))
    last = (*last[:-1], Span(last[-1].text.rstrip(), last[-1].style))  # the trailing spaces leave room for a name
    named = _named(letters, busy, width - width_of(last) + is_tight)
    if named and is_tight:
        named = (*named[:-1], Span(named[-1].text.removesuffix(" "), named[-1].style))
    return (*named, *last)


def _squeezed(entries: list[Line], width: int) -> list[Line]:
    """Return the entries that fit, with fewer spaces between them if that saves an entry."""
    # The spaces after the last entry do not belong to the line.
    if sum(map(width_of, entries)) - 3 > width:
        entries = [(glyph, Span(text.text.removesuffix(" "), text.style)) for glyph, text in entries]
    while len(entries) > 1 and sum(map(width_of, entries)) - 2 > width:
        entries.pop(0 if entries[0][0].text == FOREIGN else -1)
    return entries


def _named(letters: Letters, busy: Mapping[str, int], width: int) -> Line:
    """Return the runs that fit; names are cut more if otherwise no run would fit."""
    number = sum(name in busy for name in letters)
    own = [(name, *letters[name]) for name in list(letters)[: len(LETTERS)] if name in busy]
    line: Line = ()
    for most in _NAME_CHARS:
        entries = [
            _entry(Span(letter, style), f"{shorten(sanitize(name), most)} {busy[name]}")
            for name, letter, style in own
        ]
        line = _fitting(entries, number, width)
        if len(line) > 1:
            break
    return line


def _entry(glyph: Span, text: str) -> Line:
    return glyph, Span(f" {text}   ", TextStyle.DIM)


def _fitting(entries: Sequence[Line], total: int, width: int) -> Line:
    """Join the first entries that fit, and count the others, including those without an entry."""
    ends = [0, *accumulate(map(width_of, entries))]
    if len(entries) == total and ends[-1] <= width:
        return tuple(chain.from_iterable(entries))
    room = width - len(f"+{total} runs   ")
    number = sum(end <= room for end in ends[1:])
    return (*chain.from_iterable(entries[:number]), Span(f"+{counted(total - number, 'run')}   ", TextStyle.DIM))
