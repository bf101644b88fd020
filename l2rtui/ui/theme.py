"""Themes, and the colour of each TextStyle in the current theme."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from rich.style import Style
from textual.color import Color
from textual.theme import Theme

from l2rtui.ui.text import BANDS, HUES, TextStyle

_COLOURS: Final = {
    # variable: dark, light, contrast
    "primary": ("#7aa2d8", "#2f5f9e", "#5fd7ff"),
    "secondary": ("#6fb3b8", "#1f7a80", "#00ffff"),
    "accent": ("#7aa2d8", "#2f5f9e", "#ffff00"),
    "success": ("#86b878", "#3f7d32", "#00ff00"),
    "warning": ("#d9a65a", "#9a6200", "#ffaf00"),
    "error": ("#f2777f", "#b3303a", "#ff5f5f"),
    "foreground": ("#d5dae1", "#24292f", "#ffffff"),
    "background": ("#12161b", "#fbfbf9", "#000000"),
    "surface": ("#171c22", "#f3f3f0", "#000000"),
    "panel": ("#232a33", "#e4e4df", "#303030"),
    "l2r-dim": ("#74808e", "#6a737d", "#d0d0d0"),
    "l2r-faint": ("#4c5662", "#a3a9ae", "#9a9a9a"),
    "l2r-heading": ("#5d80ad", "#4a6f9f", "#5fd7ff"),
    "l2r-band": ("#20272f", "#e6e6e1", "#303030"),
    "l2r-strong": ("#eef1f5", "#000000", "#ffffff"),
    "l2r-rule": ("#333c47", "#c9c9c2", "#ffffff"),
    "l2r-cursor": ("#242c36", "#ecece8", "#444444"),
    "l2r-cursor-focus": ("#7aa2d8", "#2f5f9e", "#ffff00"),
    "l2r-selected": ("#0c1117", "#ffffff", "#000000"),
    "l2r-hue0": ("#7aa2d8", "#2f5f9e", "#5fd7ff"),
    "l2r-hue1": ("#b48ead", "#7c4a78", "#ff87ff"),
    "l2r-hue2": ("#6fb3b8", "#1f7a80", "#5fffaf"),
    "l2r-hue3": ("#d0a56c", "#8a5a10", "#ffd75f"),
    "l2r-hue4": ("#93b77d", "#4d7a2f", "#afff5f"),
    "l2r-hue5": ("#cc8f8f", "#9c4a4a", "#ffafaf"),
}


def _theme(name: str, column: int, *, is_dark: bool = True) -> Theme:
    colours: dict[str, Any] = {variable: row[column] for variable, row in _COLOURS.items()}
    own = {variable: colours.pop(variable) for variable in _COLOURS if variable.startswith("l2r-")}
    return Theme(name, dark=is_dark, variables=own, **colours)


DARK: Final = _theme("l2r-dark", 0)
LIGHT: Final = _theme("l2r-light", 1, is_dark=False)
CONTRAST: Final = _theme("l2r-contrast", 2)
ASCII: Final = replace(DARK, name="l2r-ascii")
THEMES: Final = (DARK, LIGHT, CONTRAST, ASCII)


def theme_names() -> tuple[str, ...]:
    """Return the names of all themes that the app knows, including Textual's."""
    from textual.theme import BUILTIN_THEMES

    return tuple(sorted({theme.name for theme in THEMES} | BUILTIN_THEMES.keys()))


_PLAIN: Final = str.maketrans(
    {
        **dict(zip("●◌▲▼✖✔▸✓·─━│┃…░▐▾←→↑↓", "*o!vX+>*.--||~:|v<>^v", strict=True)),
        **dict(zip("▁▂▃▄▅▆▇█", "_..--==#", strict=True)),
        **dict(zip("▏▎▍▌▋▊▉○", "||||###o", strict=True)),
        **dict(zip("┤±≠≥", "+~%>", strict=True)),
        **{chr(code): "*" for code in range(0x2801, 0x2900)},  # braille dots of the plots
        "\u2800": " ",
    }
)
"""Replacements for every non-ASCII character that the app itself writes, each of the same width."""


def plain(text: str) -> str:
    """Replace the glyphs of the app by ASCII; other text stays unchanged."""
    return text if text.isascii() else text.translate(_PLAIN)


_VARIABLES: Final = {
    TextStyle.PLAIN: "foreground",
    TextStyle.DIM: "l2r-dim",
    TextStyle.FAINT: "l2r-faint",
    TextStyle.HEADING: "l2r-heading",
    TextStyle.STRONG: "l2r-strong",
    TextStyle.OK: "success",
    TextStyle.WAIT: "secondary",
    TextStyle.WARN: "warning",
    TextStyle.BAD: "error",
    TextStyle.FAULT: "error",
    TextStyle.DONE: "l2r-dim",
    TextStyle.ACCENT: "accent",
    TextStyle.BUTTON: "accent",
    TextStyle.STAGED: "warning",
    TextStyle.SELECTED: "l2r-selected",
    TextStyle.SELECTED_FAULT: "error",
    **{hue: f"l2r-{hue.value}" for hue in HUES},
    **{band: f"l2r-{hue.value}" for band, hue in zip(BANDS, HUES, strict=True)},
}
_FALLBACKS: Final = {
    "l2r-dim": "foreground-muted",
    "l2r-faint": "foreground-disabled",
    "l2r-strong": "foreground",
    "l2r-selected": "button-color-foreground",
    "l2r-rule": "panel",
}

Palette = Mapping[TextStyle, Style]


_CONTRASTS: Final = {
    TextStyle.FAULT: 1.0,
    TextStyle.BAD: 1.0,
    TextStyle.WARN: 0.92,
    TextStyle.STAGED: 0.92,
    TextStyle.STRONG: 0.84,
    TextStyle.ACCENT: 0.8,
    TextStyle.BUTTON: 0.8,
    TextStyle.PLAIN: 0.75,
    TextStyle.WAIT: 0.7,
    TextStyle.OK: 0.65,
    TextStyle.DONE: 0.55,
    TextStyle.HEADING: 0.6,
    TextStyle.DIM: 0.55,
    TextStyle.FAINT: 0.35,
    TextStyle.SELECTED: 0.0,
    TextStyle.SELECTED_FAULT: 1.0,
}
"""Contrast with the background without colours, 0 to 1: by lightness of the colours, a fault would be darker than
normal text.
"""
_HUE_CONTRAST: Final = 0.7
_BAND_SHARE: Final = 0.25
"""Part of its hue in the background of a band."""


def palette(variables: Mapping[str, str], *, has_colours: bool = True) -> Palette:
    """Return the Rich style of each TextStyle for ``App.theme_variables``; greys by weight if there are no
    colours.
    """
    # Textual's themes lack the ``l2r-`` variables and get fallbacks. Only the used colours are the key of the
    # cache: a theme has some hundred other variables.
    background = variables.get("background") or "#000000"
    if has_colours:
        return _palette(tuple(_colour(variables, name) for name in _VARIABLES.values()), background)
    is_dark = Color.parse(background).brightness < 0.5
    greys = (_grey(_CONTRASTS.get(style, _HUE_CONTRAST), is_dark=is_dark) for style in _VARIABLES)
    return _palette(tuple(greys), background)


def _grey(contrast: float, *, is_dark: bool) -> str:
    level = round(255 * (contrast if is_dark else 1 - contrast))
    return f"#{level:02x}{level:02x}{level:02x}"


@lru_cache(maxsize=8)
def _palette(colours: tuple[str, ...], background: str) -> Palette:
    styles = {
        text_style: Style(color=Color.parse(colour).rich_color)
        for text_style, colour in zip(_VARIABLES, colours, strict=True)
    }
    # Bold and reverse carry the meaning on a terminal without colours.
    for text_style in (TextStyle.STRONG, TextStyle.BAD, TextStyle.HEADING):
        styles[text_style] += Style(bold=True)
    for text_style in (TextStyle.FAULT, TextStyle.STAGED, TextStyle.BUTTON):
        styles[text_style] += Style(bold=True, reverse=True)
    # A block of its own on the filled row of the cursor, whose colour its letters would otherwise have.
    dark = Color.parse(colours[list(_VARIABLES).index(TextStyle.SELECTED)])
    styles[TextStyle.SELECTED_FAULT] += Style(bold=True, bgcolor=dark.rich_color)
    for band, hue in zip(BANDS, HUES, strict=True):
        behind = Color.parse(background).blend(Color.parse(colours[list(_VARIABLES).index(hue)]), _BAND_SHARE)
        styles[band] += Style(bgcolor=behind.rich_color)
    return styles


def colour(variables: Mapping[str, str], name: str) -> Style:
    """Return the background style of a variable: ``l2r-cursor``, ``l2r-cursor-focus``, ``l2r-band``."""
    fallback = "primary" if name == "l2r-cursor-focus" else "panel"
    return _background(variables.get(name) or variables.get(fallback) or "ansi_default")


def cursor_style(variables: Mapping[str, str]) -> Style:
    """Return the style of the cursor in the slot grid: dark text on the strongest colour, over any content."""
    return _inverse(_colour(variables, "l2r-strong"), variables.get("background") or "ansi_default")


@lru_cache(maxsize=16)
def _inverse(light: str, dark: str) -> Style:
    style = Style(color=Color.parse(dark).rich_color, bgcolor=Color.parse(light).rich_color)
    return style + Style(bold=True, reverse=False)


@lru_cache(maxsize=16)
def _background(value: str) -> Style:
    return Style(bgcolor=Color.parse(value).rich_color)


def _colour(variables: Mapping[str, str], name: str) -> str:
    value = variables.get(name) or variables.get(_FALLBACKS.get(name, "primary")) or ""
    # "auto" means black or white, depending on the background; only Textual's style sheets can resolve it, and the
    # share behind a colour of the terminal.
    return "ansi_default" if not value or value.startswith("auto") else value.partition(" ")[0]
