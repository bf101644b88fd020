"""Files saved on request: texts, and the screen as SVG with its colours or as plain text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from textual._context import visible_screen_stack
from textual.app import App
from textual.strip import Strip

from l2rtui.errors import UsageError

_FONT_FACE: Final = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)


def save_text(path: str, text: str) -> Path:
    """Write a new file, and return its full path.

    Raises:
        UsageError: the file exists already, or cannot be written.
    """
    target = Path(path).expanduser()
    try:
        # "x" instead of a check: a file that another process creates at the same time is not overwritten either.
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        reason = "it is there already" if isinstance(error, FileExistsError) else error.strerror
        raise UsageError(f"{target} was not written: {reason}.", "Name another file.") from error
    return target.absolute()


def screen_content(app: App[Any], path: str) -> str:
    """Return the content of a file of the screen, by the extension of its path.

    Raises:
        UsageError: the extension is neither .svg nor .txt.
    """
    if path.endswith(".txt"):
        return screen_text(app)
    if path.endswith(".svg"):
        return screen_svg(app)
    raise UsageError(f"{path!r} ends with neither .svg nor .txt.", "Such as `:screenshot screen.svg`.")


def screen_svg(app: App[Any]) -> str:
    """Return the screen as SVG."""
    # The picture would load its font from another host, which would reveal who views it.
    return _FONT_FACE.sub("", app.export_screenshot(title="l2rtui"))


def screen_text(app: App[Any]) -> str:
    """Return the characters of the screen, line by line, without trailing spaces."""
    width, height = app.size
    lines = [strip.crop(0, width).text.rstrip() for strip in screen_strips(app)[:height]]
    return "".join(f"{line}\n" for line in lines)


def screen_strips(app: App[Any]) -> list[Strip]:
    """Return the styled characters of the screen, including the screens visible behind a dialog."""
    # Textual has no public access to the characters. Without the screens below, a dialog would keep an empty
    # background in its cache, and the terminal would show that too.
    visible_screen_stack.set(app._background_screens)  # noqa: SLF001
    return app.screen._compositor.render_strips()  # noqa: SLF001
