"""Generic parts of SVG pictures: the document and escaped text."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

FRAME: Final = "#888888"
"""Colour of axes and frames."""


def svg_document(width: float, height: float, parts: Iterable[str]) -> str:
    """Return a picture with a white background; sizes are in pixels."""
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return "\n".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11" fill="none">',
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
        *parts,
        "</svg>\n",
    ))  # fmt: skip


def svg_text_element(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", has_halo: bool = False
) -> str:
    """Return a text at its base line.

    Args:
        anchor: Which end of the text is at ``x``: ``start``, ``middle`` or ``end``.
        has_halo: Draw a white outline around the letters, so that they are readable on lines.
    """
    halo = ' stroke="#ffffff" stroke-width="3" paint-order="stroke"' if has_halo else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="#222222" text-anchor="{anchor}" font-weight="{weight}"{halo}>'
        f"{escaped(text)}</text>"
    )


def escaped(text: str) -> str:
    """Escape a text for XML: names come from other people's specs."""
    # A character that XML forbids would make the file unreadable.
    return escape("".join(char for char in text if char.isprintable()))
