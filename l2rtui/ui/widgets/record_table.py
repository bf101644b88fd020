"""Metric records of a log as a table: its columns, their order and widths, and the row of a record. Pure.

A column whose value has never changed is left out; ``constants`` are for the title. Figures that a reader expects
always have a column.

Columns are learnt from the records as they arrive. A row is a text with fixed columns, so that it can be searched,
panned and saved like any line. Records come from inside a run: names and texts are sanitised, and their number is
limited.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, NamedTuple

from l2rtui.domain.quantity import format_bytes
from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.text import NOTHING, count, decimal, fit, per_second, shorten

MAX_COLUMNS: Final = 48
"""Maximum number of columns of a log; further fields are written at the end of a row with their names."""
_WIDEST_TEXT: Final = 24
_LONGEST_TEXT: Final = 200
"""Maximum length of a text in the last column, which has no column after it."""
_LEAST_CUT: Final = 8
"""Minimum length at which part of that text is still useful."""
_WIDEST_NUMBER: Final = 15
COLUMN_GAP: Final = "  "
_LEFT_OUT: Final = frozenset(("l2r", "time"))
"""The kind has a column if a pod writes several kinds, and `t` shows the time of every line."""
_FIRST: Final = (
    "mean_return",
    "eval_return",
    "env_steps",
    "env_steps_per_second",
    "updates",
    "updates_per_second",
    "policy_lag",
    "idle_share",
    "eval_progress",
    "simulator_state",
    "state",
    "name",
    "epoch",
    "step",
    "global_step",
    "loss",
    "rank",
    "world_size",
    "policy_version",
)
"""Fields that users look for, in display order; other fields follow in order of arrival."""
_ALWAYS: Final = frozenset((*_FIRST[:6], "epoch", "step", "global_step", "loss", "name", "state"))
_RETURNS: Final = frozenset(("mean_return", "eval_return"))
_SETTLED_RECORDS: Final = 4
"""Number of records with one value after which it counts as constant."""
_HEADINGS: Final = {
    "eval_progress": "eval progress",
    "env_steps_per_second": "steps/s",
    "updates_per_second": "updates/s",
    "policy_lag": "lag",
    "policy_version": "version",
    "idle_share": "idle",
    "simulator_state": "simulator",
    "simulator_restarts": "sim restarts",
    "simulator_fps": "fps",
    "world_size": "world",
    "gpu_percent": "GPU %",
    "gpu_memory_bytes": "GPU mem",
    "gpu_reserved_bytes": "PyTorch mem",
}
_WHOLE: Final = ("env_steps_per_second", "_fps")
"""Ends of the names of rates without a fraction."""
_BYTES: Final = "_bytes"
_KIND: Final = "l2r"
_KIND_HEADING: Final = "record"


@dataclass(slots=True)
class _Column:
    """Column of one field; numbers are right-aligned.

    Attributes:
        is_null: No record has had a value yet; treated as a number until a text arrives.
        value: Text of its first value.
        num_records: Records with that value, as long as there was no other.
        is_varied: There were several values.
    """

    heading: str
    width: int
    is_number: bool
    is_null: bool = False
    value: str = ""
    num_records: int = 0
    is_varied: bool = False

    @property
    def is_constant(self) -> bool:
        return not self.is_varied and self.num_records >= _SETTLED_RECORDS


class TableCell(NamedTuple):
    """Position of a column in a row, and whether its numbers are returns, which matter most."""

    start: int
    end: int
    is_return: bool


class RecordTable:
    """Columns of the records of one log."""

    def __init__(self, *, hides_constants: bool = True) -> None:
        self._hides_constants = hides_constants
        self._columns: dict[str, _Column] = {}
        self._kinds: dict[str, str] = {}
        self._shown: dict[str, _Column] = {}

    def __bool__(self) -> bool:
        """True once there is a column."""
        return bool(self._columns)

    @property
    def constants(self) -> tuple[str, ...]:
        """Names and values of the columns that are left out because they never changed: ``workers 4``."""
        hidden = ((name, column) for name, column in self._columns.items() if name not in self._shown)
        constants = (column for _, column in hidden if column.value not in ("", NOTHING))
        return tuple(f"{column.heading} {column.value}" for column in constants)

    @property
    def cells(self) -> tuple[TableCell, ...]:
        """Positions of the columns in a row."""
        widths = (column.width for column in self._shown.values())
        ends = accumulate(widths, lambda end, width: end + len(COLUMN_GAP) + width)
        return tuple(
            TableCell(end - column.width, end, name in _RETURNS)
            for (name, column), end in zip(self._shown.items(), ends, strict=True)
        )

    @property
    def heading(self) -> str:
        """Headings of the columns, as wide as the rows below them."""
        return COLUMN_GAP.join(_at(column.heading, column) for column in self._shown.values()).rstrip()

    @property
    def ends(self) -> tuple[int, ...]:
        """Positions at which a row may be cut: after each column, and anywhere in a text in the last column."""
        columns = tuple(self._shown.values())
        ends = tuple(cell.end for cell in self.cells)
        if not columns or columns[-1].is_number:
            return ends
        start = ends[-1] - columns[-1].width
        return (*ends[:-1], *range(start + _LEAST_CUT, start + _LONGEST_TEXT + 1))

    def learn(self, pod: str, record: Mapping[str, Any]) -> bool:
        """Add columns for the fields of a record; return True if the existing rows no longer match the columns."""
        before = [(name, column.width, column.is_number) for name, column in self._shown.items()]
        hidden = self._columns.keys() - self._shown.keys()
        kind = sanitize(str(record.get(_KIND, "")))
        # A pod may write records of several kinds, such as steps and fetches: the kind distinguishes them.
        if self._kinds.setdefault(pod, kind) != kind and _KIND not in self._columns:
            self._columns = {_KIND: _Column(_KIND_HEADING, len(_KIND_HEADING), is_number=False), **self._columns}
        self._widen(_KIND, kind)
        for name, value in record.items():
            if name in _LEFT_OUT:
                continue
            if name not in self._columns and len(self._columns) < MAX_COLUMNS:
                self._add(name, value)
            self._settle(name, value)
            text = _field_text(name, value)
            self._widen(name, text)
            if (column := self._columns.get(name)) is not None:
                column.value = text if not column.num_records else column.value
                column.num_records += 1
                column.is_varied = column.is_varied or text != column.value
        self._shown = {
            name: column
            for name, column in self._columns.items()
            if name in _ALWAYS or not (self._hides_constants and column.is_constant)
        }
        after = [(name, column.width, column.is_number) for name, column in self._shown.items()]
        # A new last column does not change rows without a value in it.
        return after[: len(before)] != before or not hidden.isdisjoint(self._shown)

    def row(self, record: Mapping[str, Any]) -> str:
        """Return a record as a row; fields without a column are appended as ``name=value``, unless they have the
        constant value that is in the title.
        """
        *names, last = self._shown or ("",)
        cells = [_at(_cell(record, name, self._shown[name]), self._shown[name]) for name in names]
        if last:
            cells.append(self._last_cell(record, last))
        rest = [
            f"{sanitize(name)}={_text(value)}"
            for name, value in record.items()
            if name not in self._shown and name not in _LEFT_OUT and not self._is_constant(name, value)
        ]
        return COLUMN_GAP.join([COLUMN_GAP.join(cells).rstrip() if not rest else COLUMN_GAP.join(cells), *rest])

    def _is_constant(self, name: str, value: object) -> bool:
        column = self._columns.get(name)
        return column is not None and column.value == _field_text(name, value)

    def _last_cell(self, record: Mapping[str, Any], name: str) -> str:
        """Return the cell at the end of a row: a text there may be longer than its column."""
        column = self._columns[name]
        text = _cell(record, name, column)
        return _at(text, column) if column.is_number or len(text) < column.width else shorten(text, _LONGEST_TEXT)

    def _add(self, name: str, value: object) -> None:
        heading = fit(
            _HEADINGS.get(name, sanitize(name).removesuffix(_BYTES).replace("_", " ")), _WIDEST_TEXT
        ).rstrip()
        column = _Column(heading, len(heading), not isinstance(value, str), value is None)
        self._columns[name] = column
        order = {first: number for number, first in enumerate((_KIND, *_FIRST))}
        ordered = sorted(self._columns.items(), key=lambda item: order.get(item[0], len(order)))
        self._columns = dict(ordered)

    def _settle(self, name: str, value: object) -> None:
        """Make a column a text column if its first value is a text."""
        column = self._columns.get(name)
        if column is not None and column.is_null and value is not None:
            column.is_null, column.is_number = False, not isinstance(value, str)

    def _widen(self, name: str, text: str) -> None:
        column = self._columns.get(name)
        if column is not None:
            most = _WIDEST_NUMBER if column.is_number else _WIDEST_TEXT
            column.width = max(column.width, min(len(text), most))


def _at(text: str, column: _Column) -> str:
    """Return a text at the width of its column; a cut text ends with a sign."""
    return fit(text, column.width, right=column.is_number)


def _cell(record: Mapping[str, Any], name: str, column: _Column) -> str:
    value = record.get(name)
    if name not in record or (value is None and not column.is_number):
        return ""
    text = _field_text(name, value)
    numbers = value if isinstance(value, list) else [value]
    if len(text) > column.width and all(isinstance(number, int | float) for number in numbers):
        # A number is never cut: digits would be missing. All numbers of a cell are rounded until they fit.
        shorter = ("/".join(f"{number:.{digits}g}" for number in numbers) for digits in (6, 4, 3, 2, 1))
        return next((short for short in shorter if len(short) <= column.width), "…")
    return text


def _field_text(name: str, value: object) -> str:
    """Write a value; large rates have no fraction and shares two digits, as more would be noise."""
    if name.endswith(_WHOLE) and isinstance(value, float):
        return count(value)
    if name.endswith("_per_second") and isinstance(value, float):
        return per_second(value)
    if name.endswith("_share") and isinstance(value, float):
        return decimal(value)
    if name.endswith(_BYTES) and isinstance(value, int | float):
        return format_bytes(value)
    return _text(value)


def _text(value: object) -> str:
    match value:
        case None:
            return NOTHING
        case bool():
            return str(value)
        case str():
            return sanitize(value)
        case int():
            return count(value) if abs(value) < 1e15 else f"{value:g}"
        case float():
            # As in the other tables; but a loss of 0.0004 must not read as 0.00.
            return decimal(value) if abs(value) >= 1 else f"{value:.4g}"
        case list():
            return "/".join(_text(item) for item in value)
        case _:
            return sanitize(json.dumps(value, separators=(",", ":")))
