"""Ways of installing this program, and the command that adds the packages of one of its extras in each."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import sys
from pathlib import Path

ONE_FILE_PYTHON = "l2rtui-python"
"""Name of the interpreter in the one file."""
_REQUIREMENT = re.compile(r"([\w.-]+(?:\[[\w,-]+\])?)[^;]*;.*extra == ['\"]([\w-]+)['\"]")


def install_hint(extra: str, executable: str | None = None) -> str:
    """Return the next step for a missing extra: it names packages of the index, never this program itself.

    Args:
        executable: The interpreter; None for this one.
    """
    python = Path(executable or sys.executable)
    prefix = python.parent.parent
    if python.name == ONE_FILE_PYTHON:
        if extra == "runtime":
            return "The one file has no runtime: put the l2r-runtime of another environment on your PATH."
        return f"The one file cannot be extended: install the wheel, with the packages of the extra {extra}."
    tree = Path(__file__).resolve().parents[2]
    if prefix == tree / ".venv":
        step = "make setup" if extra == "runtime" else f".venv/bin/pip install -e '.[{extra}]'"
        return f"Run `{step}` in {tree}."
    packages = packages_of(extra)
    if not packages:
        return f"Install the packages of the extra {extra}."
    names = " ".join(map(shlex.quote, packages))
    if "/pipx/venvs/" in str(prefix):
        return f"Run `pipx inject {prefix.name} {names}`."
    if "/uv/tools/" in str(prefix):
        return f"Run `uv pip install --python {python} {names}`."
    return f"Run `{python} -m pip install {names}`."


def packages_of(extra: str) -> tuple[str, ...]:
    """Return the packages of an extra, as the metadata of this installation names them; empty without metadata."""
    try:
        lines = importlib.metadata.requires("l2rtui") or []
    except importlib.metadata.PackageNotFoundError:  # in an image the runtime is copied
        return ()
    matches = (_REQUIREMENT.match(line) for line in lines)
    return tuple(match[1] for match in matches if match is not None and match[2] == extra)
