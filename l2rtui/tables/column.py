"""Column and view: the layout of a table, for the CLI, the app or both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic

from msgspec import Struct

from l2rtui.domain.status import Level

Document = Mapping[str, Any]
"""One object in its JSON form; ``docs/json.md`` lists the fields."""
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Document)
else:
    from typing import TypeVar  # without the default, which Python has from 3.13 on

    T = TypeVar("T")


class TableColumn(Struct, frozen=True):
    """One column of a table of the app.

    Attributes:
        key: Stable name. title: text of the header.
        most: Maximum width; longer content is cut.
        right: Aligned to the right, for numbers.
        rank: In a narrow table columns of the highest rank are left out first; 0 never is.
        is_age: The sort value is minus the time of creation; the age is computed when the cell is drawn, so that
            the passing of time changes no row.
        needs: Key of a column without which this one is left out, too: half of an interval would mislead.
        is_cell: The cursor can be on single cells of this column instead of the whole row.
        style: Name of the ``TextStyle`` of cells without a level.
        text: Text of a value that is there; None writes texts unchanged, whole numbers in full, others rounded.
        is_count: Zero is dim.
        sort: Sort value of the cell; None sorts by the value.
    """

    key: str
    title: str
    most: int = 30
    right: bool = False
    rank: int = 0
    is_age: bool = False
    needs: str = ""
    is_cell: bool = False
    style: str = "plain"
    text: Callable[[Any], str] | None = None
    is_count: bool = False
    sort: Callable[[Any], Any] | None = None


class Column(Struct, Generic[T], frozen=True):
    """One column of a table of the CLI, and of the app if it has ``app``.

    Attributes:
        header: In capitals.
        value: Key of the cell in a document, or a function that returns it: text, number, bool or None.
        is_wide: Shown only with ``-o wide``.
        is_number: Aligned to the right.
        level: Colour by meaning; None leaves the cell plain.
        is_volatile: Differs each time, such as an age: its change is not a change of the object.
        text: Text of a value that is there, in the CLI; None uses ``cell_text``.
        app: The column in the app; None if it does not have it.
        is_app_only: The CLI does not have it.
    """

    header: str
    value: str | Callable[[T], object]
    is_wide: bool = False
    is_number: bool = False
    level: Callable[[T], Level | None] | None = None
    is_volatile: bool = False
    text: Callable[[Any], str] | None = None
    app: TableColumn | None = None
    is_app_only: bool = False

    def of(self, item: T) -> object:
        """Return the value of this column for an object."""
        return item[self.value] if isinstance(self.value, str) else self.value(item)  # type: ignore[index]

    def cell(self, item: T) -> object:
        """Return the value as the CLI writes it."""
        value = self.of(item)
        return value if self.text is None or value is None else self.text(value)


def both(
    title: str,
    value: Callable[[T], object],
    most: int,
    rank: int = 0,
    *,
    header: str = "",
    key: str = "",
    is_number: bool = False,
    is_count: bool = False,
    is_wide: bool = False,
    level: Callable[[T], Level | None] | None = None,
    style: str = "plain",
    needs: str = "",
    text: Callable[[Any], str] | None = None,
    cli_text: Callable[[Any], str] | None = None,
    sort: Callable[[T], Any] | None = None,
) -> Column[T]:
    """Return a column of both tables; ``header`` and ``key`` follow from the title, ``text`` is that of the app."""
    is_right = is_number or is_count
    app = TableColumn(
        key or title, title, most, is_right, rank, needs=needs, style=style, text=text, is_count=is_count, sort=sort
    )
    return Column(header or title.upper(), value, is_wide, is_right, level, text=cli_text, app=app)


def app_only(app: TableColumn, value: Callable[[T], object] = lambda _: None) -> Column[T]:
    """Return a column that only the app has; without a value, the app gives its cells."""
    return Column("", value, is_number=app.right, app=app, is_app_only=True)


def _same(item: Any) -> Document:
    document: Document = item
    return document


class View(Struct, Generic[T], frozen=True):
    """Table layout of objects of one kind: their columns, and their name (key or function) for ``-o name``.

    Attributes:
        hidden: Returns the cells of columns that only filters see, by the names ``hidden_names``.
        document: Returns the JSON form of an object, which may be its own.
    """

    name: str | Callable[[T], str]
    columns: tuple[Column[T], ...]
    hidden_names: tuple[str, ...] = ()
    hidden: Callable[[T], tuple[str, ...]] | None = None
    document: Callable[[T], Document] = _same

    @property
    def of_cli(self) -> list[Column[T]]:
        """The columns of the CLI."""
        return [column for column in self.columns if not column.is_app_only]

    def name_of(self, item: T) -> str:
        """Return the name of an object."""
        return str(item[self.name]) if isinstance(self.name, str) else self.name(item)  # type: ignore[index]
