"""Priorities whose errors arrive after the next batch was drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.rl.buffers.priorities import LatePriorities


class Errors:
    """Errors of two devices that arrive when they are awaited."""

    def __init__(self, *values: float, is_ready: bool = False) -> None:
        self._halves = np.split(np.array(values, np.float32), 2)
        self.is_ready = is_ready

    def ready(self) -> bool:
        return self.is_ready

    def numpy(self) -> Mapping[str, NDArray[Any]]:
        return {"0": self._halves[0], "1": self._halves[1]}


class Rows:
    """Priorities as in a buffer."""

    def __init__(self) -> None:
        self.values: dict[int, float] = {}
        self.late = LatePriorities(self._set)

    def _set(self, rows: NDArray[np.intp], errors: NDArray[Any]) -> None:
        self.values.update(zip(rows.tolist(), errors.tolist(), strict=True))


def test_errors_on_their_way_are_set_after_the_next_update_and_in_order() -> None:
    rows = Rows()
    rows.late.add(np.array([1, 2]), Errors(10, 20), is_exact=False)
    assert not rows.values
    rows.late.add(np.array([2, 3]), Errors(21, 30), is_exact=False)
    assert rows.values == {1: 10, 2: 20}
    rows.late.settle()
    assert rows.values == {1: 10, 2: 21, 3: 30}
    rows.late.settle()
    assert rows.values == {1: 10, 2: 21, 3: 30}


def test_errors_that_are_there_and_those_of_a_run_by_turns_are_set_at_once() -> None:
    rows = Rows()
    rows.late.add(np.array([1, 2]), Errors(10, 20, is_ready=True), is_exact=False)
    assert rows.values == {1: 10, 2: 20}
    rows.late.add(np.array([1, 2]), Errors(11, 21), is_exact=True)
    assert rows.values == {1: 11, 2: 21}
