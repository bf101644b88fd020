"""Choice of the values of trials: every combination of a grid, or random draws.

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
"""Trials of one sweep: more is a typing mistake, as each of them is a run."""
_DRAWS_PER_TRIAL: Final = 20
"""Draws for each trial before a sweep counts as exhausted: small grids give the same combination again."""


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Range of a number; with whole numbers at both ends its values are whole, too.

    Attributes:
        low, high: Both ends belong to it.
        is_log: Its logarithm is spread evenly.
        count: Values of it in a grid; 0 where only random draws are taken of it.
    """

    low: float
    high: float
    is_log: bool = False
    count: int = 0

    def problem(self) -> str:
        """Return a phrase on what is wrong with it; empty where nothing is."""
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            return "low must be less than high, and both must be numbers"
        if self.is_log and self.low <= 0:
            return "a logarithmic range must begin above 0"
        return ""

    def at(self, share: float) -> float:
        """Return the value at a share of the range, from 0 at its low end to 1 at its high one."""
        if self.is_log:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + (self.high - self.low) * share
        # Six digits: what people read and type again must be the value that was used.
        return round(value) if self._is_whole else float(f"{value:.6g}")

    def points(self) -> tuple[float, ...]:
        """Return its values in a grid, each once."""
        last = max(self.count - 1, 1)
        return tuple(dict.fromkeys(self.at(number / last) for number in range(self.count)))

    @property
    def _is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


Choices = Mapping[str, tuple[Any, ...] | ValueRange]
"""By the path of a field in the spec: its values, or their range."""


def grid_size(choices: Choices) -> int:
    """Return the number of combinations."""
    return math.prod(len(_values(choice)) for choice in choices.values())


def grid(choices: Choices) -> Iterator[dict[str, Any]]:
    """Yield every combination; the values of the last path change first."""
    for combination in itertools.product(*map(_values, choices.values())):
        yield dict(zip(choices, combination, strict=True))


def drawn(choices: Choices, number: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield random combinations, each once; the same seed gives the same.

    Args:
        number: Of combinations; fewer where there are no more.
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
