"""Rendering of spans to strips: the one module in which a TextStyle becomes a colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

from l2rtui.ui.text import Line, Span, TextStyle
from l2rtui.ui.theme import ASCII, Palette, palette, plain

NO_STYLE = Style()


class SpanWidget(Widget):
    """Widget that draws itself line by line from spans.

    Computing a style walks up the whole widget tree. It is done once for each repaint, not for each line, and not
    at all if a repaint finds every line of this widget cached.
    """

    _base: Style = NO_STYLE
    _pens: Palette | None = None
    _is_plain = False

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw the refreshed lines; Textual requests all of them when an adjacent widget changes."""
        # The theme or the focus may differ since the last repaint.
        self._pens = None
        return super().render_lines(crop)

    def refresh_changed(self, before: Sequence[Line], after: Sequence[Line]) -> None:
        """Redraw only the lines that differ; all of them if their number has changed."""
        if len(before) != len(after):
            self.refresh()
            return
        for y, (old, new) in enumerate(zip(before, after, strict=True)):
            if old != new:
                self.refresh(self.size.region.crop_size((self.size.width, 1)).translate((0, y)))

    def strip(self, line: Iterable[Span], width: int, back: Style = NO_STYLE) -> Strip:
        """Draw one line, cut or padded to a width in columns; ``back`` is applied over it, e.g. for the cursor."""
        if self._pens is None:
            self._base = self.rich_style
            self._pens = _on(self._base, tuple(_palette_of(self.app).items()))
            self._is_plain = is_plain(self.app)
        pens = self._pens
        # Adjacent spans of one style become one segment: each segment costs the terminal an escape sequence.
        pieces = (
            (text_style, "".join(text for text, _ in spans))
            for text_style, spans in groupby(line, key=itemgetter(1))
        )
        if self._is_plain:
            pieces = ((text_style, plain(text)) for text_style, text in pieces)
        own = TextStyle.SELECTED_FAULT  # it has its own background
        segments = [
            Segment(text, pens[style] if style is own else pens[style] + back) for style, text in pieces if text
        ]
        return Strip(segments).adjust_cell_length(width, self._base + back)


def _palette_of(app: App[None]) -> Palette:
    return palette(app.theme_variables, has_colours=not app.no_color)


def is_plain(app: App[None]) -> bool:
    """True if the app must write ASCII only."""
    return app.theme == ASCII.name


# One entry for each background that occurs in a theme.
@lru_cache(maxsize=64)
def _on(base: Style, pens: tuple[tuple[TextStyle, Style], ...]) -> Mapping[TextStyle, Style]:
    return {text_style: base + style for text_style, style in pens}


def to_text(app: App[None], lines: Iterable[Iterable[Span]]) -> Text:
    """Convert lines to a Text for a Static, which wraps them. A Text is never parsed as markup."""
    styles = _palette_of(app)
    write = plain if is_plain(app) else str
    texts = (Text.assemble(*((write(span.text), styles[span.style]) for span in line)) for line in lines)
    return Text("\n").join(texts)
