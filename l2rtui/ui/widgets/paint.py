"""Lines of spans to strips: the one place where a Tone becomes a colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from l2rtui.ui.text import Span, Tone
from l2rtui.ui.theme import ASCII, Palette, palette, plain

NO_STYLE = Style()


class Painted(Widget):
    """A widget that draws itself line by line from spans.

    Working out a style walks up the whole tree of widgets: that is done once for each paint and not for each line,
    and not at all when a paint finds every line of this widget as it was.
    """

    _base: Style = NO_STYLE
    _pens: Palette | None = None
    _is_plain = False

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw the lines that were refreshed; Textual asks for all of them whenever something beside us changes."""
        self._pens = None
        return super().render_lines(crop)

    def strip(self, line: Iterable[Span], width: int, back: Style = NO_STYLE) -> Strip:
        """Draw one line, cut or filled to a width in columns.

        Args:
            back: Laid over it: the background of a cursor, for example.
        """
        if self._pens is None:
            self._base = self.rich_style
            self._pens = _on(self._base, _frozen(palette(self.app.theme_variables)))
            self._is_plain = is_plain(self.app)
        pens = self._pens
        # Neighbours of one tone become one segment: each segment costs the terminal an escape sequence.
        pieces = ((tone, "".join(text for text, _ in spans)) for tone, spans in groupby(line, key=itemgetter(1)))
        if self._is_plain:
            pieces = ((tone, plain(text)) for tone, text in pieces)
        segments = [Segment(text, pens[tone] + back) for tone, text in pieces if text]
        return Strip(segments).adjust_cell_length(width, self._base + back)


def is_plain(app: App[None]) -> bool:
    """Whether the app may write nothing beyond ASCII."""
    return app.theme == ASCII.name


def _frozen(pens: Palette) -> tuple[tuple[Tone, Style], ...]:
    return tuple(pens.items())


@lru_cache(maxsize=64)
def _on(base: Style, pens: tuple[tuple[Tone, Style], ...]) -> Mapping[Tone, Style]:
    return {tone: base + style for tone, style in pens}


def text_of(app: App[None], lines: Iterable[Iterable[Span]]) -> Text:
    """Lines for a Static, which breaks them where they are too long. A Text is never read as markup."""
    styles = palette(app.theme_variables)
    write = plain if is_plain(app) else str
    return Text("\n").join(
        Text.assemble(*((write(span.text), styles[span.tone]) for span in line)) for line in lines
    )
