"""Division of lines among panes above each other, from needs, weights and sizes set by the user. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """Required height of one pane in lines, including its frame.

    Attributes:
        least: Minimum. natural: height above which lines would stay empty.
        weight: Relative part of the lines that several panes could use.
        share: Part of all lines set by the user, 0 to 1; None for automatic height.
    """

    least: int
    natural: int
    weight: int = 1
    share: float | None = None


def heights(total: int, needs: Sequence[Need]) -> list[int]:
    """Divide lines among panes; their sum is ``total``, unless ``total`` is less than one line each.

    Panes with a share get it, as long as the others keep their minimum. The rest is given line by line to the pane
    with the fewest lines for its weight that could use more; if none could, to the last pane without a share.
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
    """Return the minimum of each pane, shrunk in proportion if even these do not fit."""
    least = [need.least if need.share is None else min(need.least, SMALLEST) for need in needs]
    while sum(least) > total and max(least) > 1:
        least[least.index(max(least))] -= 1
    return least


SMALLEST = 4
"""Height of a pane that the user has shrunk: its frame, a header and a row."""
