"""The steps of a plan and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from l2rtui.domain.plan import Step
from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.text import Span, Tone
from l2rtui.ui.widgets.rows import Column, Row
from l2rtui.ui.widgets.virtual_table import VirtualTable

COLUMNS: Final = (
    Column("outcome", "step", most=9),
    Column("kind", "kind", most=10, rank=3),
    Column("name", "name", most=40),
    Column("detail", "what", most=400),
)


class PlanView(VirtualTable):
    """One row a step, in the order in which they are carried out."""

    def __init__(self, steps: Sequence[Step], *, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(COLUMNS, empty="The plan is empty.", id=id)
        self._steps = {self._key(step): (number, step) for number, step in enumerate(steps)}
        self.model.update([_row(key, number, step, None) for key, (number, step) in self._steps.items()])

    def report(self, step: Step, error: str) -> None:
        """Say how a step ended; an empty error means well."""
        key = self._key(step)
        if key in self._steps:
            self.update_rows([_row(key, *self._steps[key], error)])
            self.move_to(key)

    @staticmethod
    def _key(step: Step) -> str:
        return f"{step.verb} {step.kind} {step.name}"


def _row(key: str, number: int, step: Step, error: str | None) -> Row:
    if error is None:
        outcome, detail = Span(f"· {step.verb}", Tone.DIM), Span(sanitize(step.detail), Tone.DIM)
    elif error:
        outcome, detail = Span("✖ failed", Tone.BAD), Span(sanitize(error), Tone.BAD)
    else:
        outcome, detail = Span("✔ done", Tone.OK), Span(sanitize(step.detail), Tone.DIM)
    cells = (outcome, Span(step.kind, Tone.DIM), Span(sanitize(step.name)), detail)
    return Row(key, cells, (number, step.kind, step.name, detail.text), is_fault=bool(error))
