"""Table of the steps of a plan and their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from l2rtui.domain.plan import PlanStep
from l2rtui.domain.sanitize import sanitize
from l2rtui.tables.column import TableColumn
from l2rtui.ui.text import Span, TextStyle
from l2rtui.ui.widgets.table_model import Row
from l2rtui.ui.widgets.virtual_table import VirtualTable

COLUMNS: Final = (
    TableColumn("outcome", "step", most=9),
    TableColumn("kind", "kind", most=10, rank=3),
    TableColumn("name", "name", most=40),
    TableColumn("detail", "what", most=400),
)


class PlanView(VirtualTable):
    """One row per step, in order of execution."""

    def __init__(self, steps: Sequence[PlanStep], *, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(COLUMNS, empty="The plan is empty.", id=id)
        self._steps = {self._key(step): (number, step) for number, step in enumerate(steps)}
        self.model.update([_row(key, number, step, None) for key, (number, step) in self._steps.items()])

    def report(self, step: PlanStep, error: str) -> None:
        """Show the result of a step; an empty error means success."""
        key = self._key(step)
        # A backend may report steps that the plan does not list.
        if key in self._steps:
            self.update_rows([_row(key, *self._steps[key], error)])
            self.move_to(key)

    @staticmethod
    def _key(step: PlanStep) -> str:
        return f"{step.verb} {step.kind} {step.name}"


def _row(key: str, number: int, step: PlanStep, error: str | None) -> Row:
    if error is None:
        outcome, detail = Span(f"· {step.verb}", TextStyle.DIM), Span(sanitize(step.detail), TextStyle.DIM)
    elif error:
        outcome, detail = Span("✖ failed", TextStyle.BAD), Span(sanitize(error), TextStyle.BAD)
    else:
        outcome, detail = Span("✔ done", TextStyle.OK), Span(sanitize(step.detail), TextStyle.DIM)
    cells = (outcome, Span(step.kind, TextStyle.DIM), Span(sanitize(step.name)), detail)
    return Row(key, cells, (number, step.kind, step.name, detail.text), is_fault=bool(error))
