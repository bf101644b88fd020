"""Templates: named spec files in the user's folder, ``templates/NAME.yaml`` next to the settings file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from l2rtui.config import config_dir, nearest
from l2rtui.domain.workload import name_problem
from l2rtui.errors import BackendError, NotFoundError, RefusedError, SpecError, UsageError
from runtime.base.atomic_files import write_private

if TYPE_CHECKING:
    from l2rtui.services.spec.spec_file import LaunchRequest

_SUFFIXES: Final = (".yaml", ".yml")
_ABOUT_CHARACTERS: Final = 4096


@dataclass(frozen=True, slots=True)
class Template:
    """A spec under a name.

    Attributes:
        about: Its first comment; empty without one.
    """

    name: str
    path: Path
    about: str


def templates() -> tuple[Template, ...]:
    """Return the templates by name; empty if the folder is missing or cannot be read."""
    return tuple(Template(path.stem, path, about_of(head_of(path))) for path in sorted(_paths()))


def template_path(name: str) -> Path:
    """Return the file of a template.

    Raises:
        NotFoundError: unknown name; names the existing ones.
    """
    paths = {path.stem: path for path in _paths()}
    if name not in paths:
        hint = nearest(name, paths) or (f"There are: {', '.join(sorted(paths))}." if paths else "")
        none = f"Put spec files into {_folder()}, or write `l2rtui template save NAME -f SPEC`."
        raise NotFoundError(f"There is no template {name!r}.", hint or none)
    return paths[name]


def template_named(text: str) -> Path | None:
    """Return the file of the template that a text names; None if it is the path of a file, or names nothing."""
    if "/" in text or text.endswith(_SUFFIXES):
        return None
    return next((path for path in _paths() if path.stem == text), None)


def save(name: str, source: str, *, replaces: bool = False) -> Path:
    """Copy a spec file into the folder of templates, after reading it without an error.

    Raises:
        UsageError: the name is not valid for a run. SpecError: the file is wrong, or is another spec in that
            folder.
        RefusedError: the name is taken. BackendError: it cannot be written.
    """
    from l2rtui.services.spec import spec_file

    if problem := name_problem(name):
        raise UsageError(f"{problem}.")
    request = spec_file.load(source)
    present = template_named(name)
    if present is not None and not replaces:
        raise RefusedError(f"There is a template {name} already: {present}.", "Add --replace to write over it.")
    path = _folder() / f"{name}.yaml"
    draft = path.with_name(f".{path.name}")
    try:
        write_private(draft, Path(source).read_text("utf-8"))
        # Files that a spec names in its own folder are missing there: a template must not differ from its source.
        if not _is_same(draft, request):
            sentence = f"{source} names files or folders beside itself, which a template has not."
            raise SpecError(sentence, "Write whole paths there.")
        draft.replace(path)
    except OSError as error:
        raise BackendError(f"{path} was not written: {error.strerror}.", "Look at its folder's rights.") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    if present is not None and present != path:  # NAME.yml, which would be a second one of the same name
        present.unlink(missing_ok=True)
    return path


def delete(name: str) -> Path:
    """Remove a template and return its old path.

    Raises:
        NotFoundError: unknown name. BackendError: it cannot be removed.
    """
    path = template_path(name)
    try:
        path.unlink()
    except OSError as error:
        raise BackendError(f"{path} was not removed: {error.strerror}.") from error
    return path


def head_of(path: Path) -> str:
    """Return the beginning of a file; empty if it cannot be read."""
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_ABOUT_CHARACTERS)
    return ""


def about_of(text: str) -> str:
    """Return the first comment of a spec, which describes it; empty without one."""
    first = text.lstrip().partition("\n")[0]
    return first.lstrip("# ") if first.startswith("#") else ""


def _folder() -> Path:
    return config_dir() / "templates"


def _paths() -> Iterator[Path]:
    with contextlib.suppress(OSError):
        files = _folder().iterdir()
        yield from (path for path in files if path.suffix in _SUFFIXES and not path.name.startswith("."))


def _is_same(path: Path, request: LaunchRequest) -> bool:
    from l2rtui.services.spec import spec_file

    try:
        return spec_file.load(str(path)).runs() == request.runs()
    except SpecError:
        return False
