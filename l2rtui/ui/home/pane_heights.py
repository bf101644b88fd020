"""Heights of panes that stand on each other: what each needs, what it may have, what somebody gave it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """Height of one pane in lines, its frame included.

    Attributes:
        least: What it must have. natural: the height from which more lines would stay empty.
        weight: Its part of the lines that several panes could use.
        share: Part of all lines that somebody gave it, 0 to 1; None where it takes what suits.
    """

    least: int
    natural: int
    weight: int = 1
    share: float | None = None


def heights(total: int, needs: Sequence[Need]) -> list[int]:
    """Divide lines among panes; their sum is ``total``, unless that is less than a line each.

    Panes with a share get it as far as the others keep their least. The rest goes line by line to the pane that has
    least for its weight and could use more, and when none could to the last one without a share.
    """
    result = _least(total, needs)
    for number, need in enumerate(needs):
        if need.share is not None:
            spare = max(0, total - sum(result))
            result[number] += min(spare, max(0, round(need.share * total) - result[number]))
    free = [number for number, need in enumerate(needs) if need.share is None] or [len(needs) - 1]
    for _ in range(total - sum(result)):
        hungry = [number for number in free if result[number] < needs[number].natural] or free[-1:]
        result[min(hungry, key=lambda number: result[number] / needs[number].weight)] += 1
    return result


def _least(total: int, needs: Sequence[Need]) -> list[int]:
    """Return the least of each pane, shrunk in proportion where even these do not fit."""
    least = [need.least if need.share is None else min(need.least, SMALLEST) for need in needs]
    while sum(least) > total and max(least) > 1:
        least[least.index(max(least))] -= 1
    return least


SMALLEST = 4
"""Lines of a pane that somebody made small: its frame, a header and a row."""
