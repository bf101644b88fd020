"""Choice of trial values: every combination of a grid, or random draws.

Random search: J. Bergstra and Y. Bengio, "Random search for hyper-parameter optimization", JMLR 13 (2012).
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_TRIALS: Final = 1_000
"""Maximum number of trials of a sweep: as each trial is a run, more is probably a typing mistake."""
_DRAWS_PER_TRIAL: Final = 20
"""Draws per trial before a sweep counts as exhausted: small grids repeat combinations."""


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Range of a number; if both ends are whole numbers, all its values are whole.

    Attributes:
        low, high: Inclusive limits.
        is_log: Sample uniformly on a logarithmic scale.
        count: Number of its values in a grid; 0 if it is only for random draws.
    """

    low: float
    high: float
    is_log: bool = False
    count: int = 0

    def problem(self) -> str:
        """Return a phrase that describes why the range is invalid; empty if it is valid."""
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            return "low must be less than high, and both must be numbers"
        if self.is_log and self.low <= 0:
            return "a logarithmic range must begin above 0"
        return ""

    def at(self, share: float) -> float:
        """Return the value at a relative position, from 0 at the low end to 1 at the high end."""
        if self.is_log:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + (self.high - self.low) * share
        # Six digits: the value that people read and type again must be the value that was used.
        return round(value) if self._is_whole else float(f"{value:.6g}")

    def points(self) -> tuple[float, ...]:
        """Return its grid values, without duplicates."""
        last = max(self.count - 1, 1)
        return tuple(dict.fromkeys(self.at(number / last) for number in range(self.count)))

    @property
    def _is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


Choices = Mapping[str, tuple[Any, ...] | ValueRange]
"""Values or range of each field, by the field's path in the spec."""


def grid_size(choices: Choices) -> int:
    """Return the number of combinations."""
    return math.prod(len(_values(choice)) for choice in choices.values())


def grid(choices: Choices) -> Iterator[dict[str, Any]]:
    """Yield every combination; the last path varies fastest."""
    for combination in itertools.product(*map(_values, choices.values())):
        yield dict(zip(choices, combination, strict=True))


def drawn(choices: Choices, number: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield random combinations without duplicates; the same seed gives the same combinations.

    Args:
        number: Number of combinations; fewer are returned if there are no more.
    """
    generator = random.Random(seed)  # noqa: S311  (a search, and the same at every reading of the file)
    drawn_before: set[str] = set()
    for _ in range(number * _DRAWS_PER_TRIAL):
        combination = {path: _draw(choice, generator) for path, choice in choices.items()}
        key = json.dumps(combination)
        if key not in drawn_before:
            drawn_before.add(key)
            yield combination
        if len(drawn_before) == number:
            return


def _values(choice: tuple[Any, ...] | ValueRange) -> tuple[Any, ...]:
    return choice.points() if isinstance(choice, ValueRange) else choice


def _draw(choice: tuple[Any, ...] | ValueRange, generator: random.Random) -> Any:
    if isinstance(choice, ValueRange):
        return choice.at(generator.random())
    return generator.choice(choice)
