"""Colours by meaning: one dark and one light theme, and the style of each Tone in the theme of the day."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from rich.style import Style
from textual.color import Color
from textual.theme import Theme

from l2rtui.ui.text import HUES, Tone

DARK: Final = Theme(
    name="l2r-dark",
    primary="#7aa2d8",
    secondary="#6fb3b8",
    accent="#7aa2d8",
    success="#86b878",
    warning="#d9a65a",
    error="#e06c75",
    foreground="#c8ced6",
    background="#12161b",
    surface="#171c22",
    panel="#232a33",
    dark=True,
    variables={
        "l2r-dim": "#74808e",
        "l2r-strong": "#eef1f5",
        "l2r-rule": "#333c47",
        "l2r-cursor": "#2a3542",
        "l2r-cursor-focus": "#2f4a68",
        "l2r-hue0": "#7aa2d8",
        "l2r-hue1": "#b48ead",
        "l2r-hue2": "#6fb3b8",
        "l2r-hue3": "#d0a56c",
        "l2r-hue4": "#93b77d",
        "l2r-hue5": "#cc8f8f",
    },
)
LIGHT: Final = Theme(
    name="l2r-light",
    primary="#2f5f9e",
    secondary="#1f7a80",
    accent="#2f5f9e",
    success="#3f7d32",
    warning="#9a6200",
    error="#b3303a",
    foreground="#24292f",
    background="#fbfbf9",
    surface="#f3f3f0",
    panel="#e4e4df",
    dark=False,
    variables={
        "l2r-dim": "#6a737d",
        "l2r-strong": "#000000",
        "l2r-rule": "#c9c9c2",
        "l2r-cursor": "#e4e4df",
        "l2r-cursor-focus": "#c5d7ee",
        "l2r-hue0": "#2f5f9e",
        "l2r-hue1": "#7c4a78",
        "l2r-hue2": "#1f7a80",
        "l2r-hue3": "#8a5a10",
        "l2r-hue4": "#4d7a2f",
        "l2r-hue5": "#9c4a4a",
    },
)
CONTRAST: Final = Theme(
    name="l2r-contrast",
    primary="#5fd7ff",
    secondary="#00ffff",
    accent="#ffff00",
    success="#00ff00",
    warning="#ffaf00",
    error="#ff5f5f",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#303030",
    dark=True,
    variables={
        "l2r-dim": "#d0d0d0",
        "l2r-strong": "#ffffff",
        "l2r-rule": "#ffffff",
        "l2r-cursor": "#444444",
        "l2r-cursor-focus": "#0000d7",
        "l2r-hue0": "#5fd7ff",
        "l2r-hue1": "#ff87ff",
        "l2r-hue2": "#5fffaf",
        "l2r-hue3": "#ffd75f",
        "l2r-hue4": "#afff5f",
        "l2r-hue5": "#ffafaf",
    },
)
ASCII: Final = Theme(
    name="l2r-ascii",
    primary=DARK.primary,
    secondary=DARK.secondary,
    accent=DARK.accent,
    success=DARK.success,
    warning=DARK.warning,
    error=DARK.error,
    foreground=DARK.foreground,
    background=DARK.background,
    surface=DARK.surface,
    panel=DARK.panel,
    dark=True,
    variables=DARK.variables,
)
THEMES: Final = (DARK, LIGHT, CONTRAST, ASCII)
_PLAIN: Final = str.maketrans(
    {
        **dict(zip("●◌▲✖✔▸✓·─━│┃…░▐▾←→↑↓", "*o!X+>*.--||~:|v<>^v", strict=True)),
        **dict(zip("▁▂▃▄▅▆▇█", "_..--==#", strict=True)),
        **{chr(code): "*" for code in range(0x2801, 0x2900)},
        "\u2800": " ",
    }
)
"""Every character beyond ASCII that the app itself writes, and one of the same width in its place."""


def plain(text: str) -> str:
    """The text with ASCII in place of our own glyphs; text from outside stays what it is."""
    return text if text.isascii() else text.translate(_PLAIN)


_VARIABLES: Final = {
    Tone.PLAIN: "foreground",
    Tone.DIM: "l2r-dim",
    Tone.STRONG: "l2r-strong",
    Tone.OK: "success",
    Tone.WAIT: "secondary",
    Tone.WARN: "warning",
    Tone.BAD: "error",
    Tone.DONE: "l2r-dim",
    Tone.ACCENT: "accent",
    Tone.STAGED: "warning",
    **{hue: f"l2r-{hue.value}" for hue in HUES},
}
_FALLBACKS: Final = {"l2r-dim": "foreground-muted", "l2r-strong": "foreground", "l2r-rule": "panel"}

Palette = Mapping[Tone, Style]


def palette(variables: Mapping[str, str]) -> Palette:
    """Give the style of each tone.

    Args:
        variables: ``App.theme_variables``; any theme will do, those of Textual have no colours of ours and get
            their nearest relatives.
    """
    return _palette(tuple(_colour(variables, name) for name in _VARIABLES.values()))


@lru_cache(maxsize=8)
def _palette(colours: tuple[str, ...]) -> Palette:
    styles = {
        tone: Style(color=Color.parse(colour).rich_color) for tone, colour in zip(_VARIABLES, colours, strict=True)
    }
    for tone in (Tone.STRONG, Tone.BAD):
        styles[tone] += Style(bold=True)
    styles[Tone.STAGED] += Style(bold=True, underline=True)
    return styles


def colour(variables: Mapping[str, str], name: str) -> Style:
    """A background style of one of our variables: ``l2r-cursor``, ``l2r-cursor-focus``."""
    fallback = "primary-muted" if name == "l2r-cursor-focus" else "panel"
    return _background(variables.get(name) or variables.get(fallback) or "ansi_default")


@lru_cache(maxsize=16)
def _background(value: str) -> Style:
    return Style(bgcolor=Color.parse(value).rich_color)


def _colour(variables: Mapping[str, str], name: str) -> str:
    found = variables.get(name) or variables.get(_FALLBACKS.get(name, "primary")) or ""
    return "ansi_default" if not found or found.startswith("auto") else found
