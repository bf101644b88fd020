"""Output of verbs: data on stdout as a table, JSON, YAML or names; messages on stderr.

Text from outside (names, reasons, log lines) may contain any characters, so tables pass through ``sanitize``, and
JSON and YAML escape every character that a terminal would interpret or hide. Colours are used only on a terminal,
and never with NO_COLOR.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, TextIO

from l2rtui.domain.sanitize import HIDDEN, sanitize
from l2rtui.domain.status import Level
from l2rtui.tables.column import Column, Document, T, View

_NUMBER_WIDTH = 8
"""Width of a column of numbers in a stream, whose later rows are unknown."""
_FIRST_ROWS = 100
"""Rows that determine the widths of a long table; they are written before the others are made."""
_COLOURS = {Level.OK: "32", Level.WAIT: "36", Level.WARN: "33", Level.BAD: "31", Level.DONE: "2"}


def is_screen(stream: TextIO) -> bool:
    """Return True if a stream is a terminal on which the cursor can be moved."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def has_colours(stream: TextIO) -> bool:
    """Return True if colour sequences may be written to a stream."""
    return is_screen(stream) and not os.environ.get("NO_COLOR")


def can_ask() -> bool:
    """Return True if stdin and stderr are terminals, so that a question can be asked and answered."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Output:
    """stdout in one form.

    Args:
        form: ``table``, ``wide``, ``json``, ``yaml`` or ``name``.
    """

    def __init__(self, form: str, stream: TextIO | None = None) -> None:
        self.form = form
        self.stream = stream or sys.stdout
        self.has_colours = has_colours(self.stream)
        self.is_screen = is_screen(self.stream)
        self._widths: list[int] = []

    def show_all(self, view: View[T], items: Sequence[T]) -> None:
        """Write many objects: a list in JSON and YAML, even for one object or none."""
        if self.form in ("table", "wide"):
            self._table(view, items)
        elif self.form == "name":
            self._names(view, items)
        else:
            self.dump([view.document(item) for item in items])

    def show_rows(self, view: View[T], items: Iterable[T]) -> int:
        """Write many objects as they arrive, and return their number; JSON and YAML are one list, at the end.

        A table has the widths of its first rows: a longer cell below shifts the rest of its row.
        """
        if self.form in ("json", "yaml"):
            every = [view.document(item) for item in items]
            self.dump(every)
            return len(every)
        rows = iter(items)
        first = list(islice(rows, _FIRST_ROWS))
        columns = self._columns(view)
        if self.form != "name":
            self._header(columns, _fitting(columns, [_cells(columns, row) for row in first]))
        number = 0
        for number, item in enumerate(chain(first, rows), 1):
            if self.form == "name":
                self._names(view, [item])
            else:
                self._row_of_stream(columns, item)
            if number == len(first):
                self.stream.flush()
        return number

    def show_one(self, view: View[T], item: T) -> None:
        """Write one object: not a list in JSON and YAML."""
        if self.form in ("json", "yaml"):
            self.dump(view.document(item))
        else:
            self.show_all(view, [item])

    def start_stream(self, view: View[T], items: Sequence[T]) -> None:
        """Write the header of an endless table, with the widths of these rows; they are not written."""
        if self.form in ("table", "wide") and items:
            self._open_stream(self._columns(view), items)

    def stream_one(self, view: View[T], item: T) -> None:
        """Write one of an endless series of objects: a line of JSON, a document of YAML, a row of the table."""
        if self.form == "json":
            self.line(to_json(view.document(item), indent=None))
        elif self.form == "yaml":
            self.line("---")
            self.dump(view.document(item))
        elif self.form == "name":
            self._names(view, [item])
        else:
            self._row_of_stream(self._columns(view), item)
        self.stream.flush()

    def dump(self, data: Any) -> None:
        """Write any data as JSON or YAML."""
        self.line(to_yaml(data) if self.form == "yaml" else to_json(data))

    def text(self, text: str) -> None:
        """Write one line of text from outside, sanitised."""
        self.line(sanitize(text))

    def line(self, text: str) -> None:
        """Write one line that is already safe."""
        print(text, file=self.stream)

    def _names(self, view: View[T], items: Iterable[T]) -> None:
        for item in items:
            self.line(sanitize(view.name_of(item)))

    def _columns(self, view: View[T]) -> list[Column[T]]:
        return [column for column in view.of_cli if self.form == "wide" or not column.is_wide]

    def stable_cells(self, view: View[T], item: T) -> tuple[str, ...]:
        """Return the cells of a row that reveal a change of its object."""
        return tuple(cell_text(column.cell(item)) for column in self._columns(view) if not column.is_volatile)

    def table_lines(self, view: View[T], items: Sequence[T], limit: int | None = None) -> list[str]:
        """Return a table as lines, header first.

        Args:
            limit: Characters of a line, without its colours; longer lines are cut with a sign.
        """
        columns = self._columns(view)
        rows = [_cells(columns, item) for item in items]
        widths = _fitting(columns, rows)
        header = self._aligned(columns, widths, [column.header for column in columns], limit=limit)
        pairs = zip(rows, items, strict=True)
        return [header, *(self._aligned(columns, widths, row, item, limit) for row, item in pairs)]

    def _table(self, view: View[T], items: Sequence[T]) -> None:
        for line in self.table_lines(view, items):
            self.line(line)

    def _row_of_stream(self, columns: Sequence[Column[T]], item: T) -> None:
        if not self._widths:
            self._open_stream(columns, [item])
        self.line(self._aligned(columns, self._widths, _cells(columns, item), item))

    def _open_stream(self, columns: Sequence[Column[T]], items: Sequence[T]) -> None:
        # Later rows are unknown: leave room for growing numbers.
        rows = [_cells(columns, item) for item in items]
        widths = [
            max(len(column.header), _NUMBER_WIDTH * column.is_number, 2 + max(len(row[n]) for row in rows))
            for n, column in enumerate(columns)
        ]
        self._header(columns, widths)

    def _header(self, columns: Sequence[Column[T]], widths: list[int]) -> None:
        """Write the header of a table whose rows follow one by one."""
        self._widths = widths
        self.line(self._aligned(columns, widths, [column.header for column in columns]))

    def _aligned(
        self,
        columns: Sequence[Column[T]],
        widths: Sequence[int],
        row: Sequence[str],
        item: T | None = None,
        limit: int | None = None,
    ) -> str:
        cells: list[str] = []
        room = sys.maxsize if limit is None else limit
        for column, width, text in zip(columns, widths, row, strict=True):
            if room <= 0:
                break
            # Aligned, and cut, before it is coloured: escape sequences have a length but no width.
            cell = _cut(text.rjust(width) if column.is_number else text.ljust(width), room)
            room -= width + 2
            if item is not None and column.level is not None:
                cell = self.coloured(cell, column.level(item))
            cells.append(cell)
        return "  ".join(cells).rstrip()

    def coloured(self, text: str, level: Level | None) -> str:
        """Colour a text by meaning, if colours are enabled."""
        if level is None or not self.has_colours:
            return text
        return f"\x1b[{_COLOURS[level]}m{text}\x1b[0m"


class StderrReporter:
    """stderr: sentences for the user, and a live line on a terminal. If stderr is closed, work continues.

    Args:
        hint: Completes the command lines in a sentence.
    """

    def __init__(self, stream: TextIO | None = None, hint: Callable[[str], str] = str) -> None:
        self._stream = stream or sys.stderr
        self._hint = hint
        self.is_live = is_screen(self._stream)
        self._has_live_line = False
        self._last_progress = ""

    def say(self, text: str) -> None:
        """Write one sentence; text from outside in it is sanitised."""
        self._write(f"{sanitize(self._hint(text))}\n")

    def progress(self, text: str) -> None:
        """Write progress: over the last such line on a terminal, as a separate line elsewhere."""
        if self.is_live:
            # One column less than the terminal: a full line wraps, and the carriage return would overwrite only its
            # tail.
            self._write(sanitize(text)[: _columns_of_terminal() - 1])
            self._has_live_line = True
        elif text != self._last_progress:
            self.say(text)
        self._last_progress = text

    def live(self, text: str) -> None:
        """Write progress if a line can be overwritten, otherwise nothing."""
        if self.is_live and not (self._has_live_line and text == self._last_progress):
            self.progress(text)

    def clear(self) -> None:
        """Remove the live line, before other output."""
        if self._has_live_line:
            self._write("")

    def step(self, text: str, *, is_step: bool) -> None:
        """Write progress; if no line can be overwritten, only separate steps."""
        if self.is_live or is_step:
            self.progress(text)

    def ask(self, question: str, word: str = "") -> bool:
        """Ask for y or N, or for a full word; any other answer is no."""
        self._write(f"{sanitize(question)} [{f'type {word} to go ahead' if word else 'y/N'}] ")
        answer = sys.stdin.readline()
        if not answer:
            self._write("\n")
        return answer.strip().lower() in ((word,) if word else ("y", "yes"))

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            # A live line is cleared before other text is written over it.
            self._stream.write(f"\r\x1b[K{text}" if self._has_live_line else text)
            self._stream.flush()
        self._has_live_line = False


def _columns_of_terminal() -> int:
    import shutil

    return shutil.get_terminal_size().columns


def _cells(columns: Sequence[Column[T]], item: T) -> list[str]:
    return [cell_text(column.cell(item)) for column in columns]


def _fitting(columns: Sequence[Column[T]], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the widths that headers and cells need."""
    return [max([len(column.header), *(len(row[n]) for row in rows)]) for n, column in enumerate(columns)]


def _cut(cell: str, room: int) -> str:
    """Return a cell that fits, with a sign if text is cut."""
    return cell[:room] if len(cell.rstrip()) <= room else f"{cell[: room - 1]}…"


def cell_text(value: object) -> str:
    """Return the text of a value in a table."""
    match value:
        case None | "" | ():
            return "-"
        case bool():
            return "yes" if value else "no"
        # Four digits are enough for a table; JSON has the exact value.
        case float():
            return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
        case _:
            return sanitize(str(value))


def to_json(data: Any, indent: int | None = 2) -> str:
    """Write JSON without terminal effects: UTF-8, with control, bidirectional and invisible characters escaped."""
    # allow_nan=False: NaN is not JSON, and a document with one is a bug that must not reach a parser.
    text = json.dumps(data, ensure_ascii=False, indent=indent, allow_nan=False)
    return HIDDEN.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def to_yaml(data: Any) -> str:
    """Write YAML in ASCII: everything else is escaped."""
    import yaml

    return yaml.safe_dump(data, sort_keys=False, width=110).rstrip("\n")


def csv_rows(documents: Iterable[Document]) -> Iterator[str]:
    """Yield the lines of a CSV table with the fields of the JSON as its header."""
    header: Sequence[str] = ()
    for document in documents:
        if not header:
            header = tuple(document)
            yield _csv_line(header)
        yield _csv_line([document[name] for name in header])


def _csv_line(cells: Iterable[object]) -> str:
    import csv  # needed only for this form

    file = io.StringIO()
    # Spreadsheets read a cell with such a first character as a formula, and names of runs come from other users.
    csv.writer(file, lineterminator="").writerow(
        f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@") else cell for cell in cells
    )
    return file.getvalue()
