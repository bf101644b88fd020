"""Specs by name: templates, in the user's own folder beside the settings file, the examples that come along, and a
new one to begin with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

import l2rtui
from l2rtui.config import config_dir
from l2rtui.domain.workload import name_problem
from l2rtui.errors import BackendError, NotFoundError, RefusedError, SpecError, UsageError, nearest
from runtime.base.atomic_files import write_private

if TYPE_CHECKING:
    from l2rtui.services.spec.reference import Field
    from l2rtui.services.spec.spec_file import LaunchRequest

_SUFFIXES: Final = (".yaml", ".yml")
_ABOUT_CHARACTERS: Final = 4096


class Template(Struct, frozen=True):
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


def examples() -> dict[str, Path]:
    """Return the example specs that come with the program, by name: in the installed package or the source tree."""
    package = Path(l2rtui.__file__).parent
    folders = (package / "manifests", package.parent / "manifests")
    with contextlib.suppress(OSError):
        paths = [path for folder in folders for path in sorted(folder.glob("*.yaml")) if is_spec(head_of(path))]
        return dict(sorted({path.stem: path for path in reversed(paths)}.items()))
    return {}


def is_spec(text: str) -> bool:
    """Return True for the beginning of a spec, and False for that of Kubernetes' own objects."""
    return "kind:" in text and "apiVersion:" not in text


def template_path(name: str) -> Path:
    """Return the file of a template, or of an example that comes along.

    Raises:
        NotFoundError: unknown name; names the existing ones.
    """
    paths = {**examples(), **{path.stem: path for path in _paths()}}
    if name not in paths:
        own = sorted(path.stem for path in _paths())
        hint = nearest(name, paths) or (f"There are: {', '.join(own)}." if own else "")
        none = f"`l2rtui template save NAME -f SPEC` makes one. Examples: {', '.join(sorted(examples()))}."
        raise NotFoundError(f"There is no template {name!r}.", hint or none)
    return paths[name]


def template_named(text: str) -> Path | None:
    """Return the file of the template that a text names; None if it is the path of a file, or names nothing."""
    if "/" in text or text.endswith(_SUFFIXES):
        return None
    return next((path for path in _paths() if path.stem == text), None)


def starter(name: str, environment: str, algorithm: str) -> str:
    """Return a commented spec to begin with.

    Raises:
        UsageError: the name is not one of a run, or environment and method do not go together.
    """
    from runtime.base import environments
    from runtime.base.methods import METHODS
    from runtime.base.training_rules import mistakes_in

    if problem := name_problem(name):
        raise UsageError(f"{problem}.")
    if not environments.is_possible(environment):
        raise UsageError(f"There is no environment {environment!r}.", environments.suggestion(environment))
    hint = "`l2rtui explain train.algorithm` names the methods."
    for sentence in mistakes_in({"environment": environment, "algorithm": algorithm}):
        raise UsageError(f"{sentence[0].upper()}{sentence[1:]}.", hint)
    from l2rtui.services.spec import reference

    lines = [
        f"# {algorithm} on {environment}. `l2rtui plan -f FILE` shows what a launch would create.",
        "kind: learner-workers",
        f"name: {name}",
        "# seed: 0  # `launch --seeds 0-4` starts one run for each",
        "train:",
        f"  environment: {environment}",
        f"  algorithm: {algorithm}",
        "  total_env_steps: 200000  # the run ends there; without it, it trains on",
    ]
    for setting in ("num_envs", "segment_steps", "hidden"):
        (field,) = reference.explained(f"train.{setting}")
        lines.append(f"  # {setting}: {_value(field)}  # {reference.meaning(field.schema)}")
    if algorithm in METHODS:
        lines.append(f"  # {algorithm}:  # `l2rtui explain train.{algorithm}` says more of each")
        (method,) = reference.explained(f"train.{algorithm}")
        for setting in method.fields:
            (field,) = reference.explained(f"train.{algorithm}.{setting}")
            lines.append(f"  #   {setting}: {_value(field)}")
    lines += [
        "workers:",
        "  - name: w",
        "    replicas: 2",
        "evaluator: {}",
        "# limits: {wall: 12h}  # ends the run with a checkpoint",
    ]
    return "\n".join(lines) + "\n"


def _value(field: Field) -> str:
    from l2rtui.services.spec.reference import in_yaml

    return in_yaml(field.schema.get("default"))


def write_new(path: Path, text: str, *, replaces: bool = False) -> None:
    """Write a new spec file.

    Raises:
        RefusedError: the file exists. BackendError: it cannot be written.
    """
    try:
        with path.open("w" if replaces else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise RefusedError(f"{path} exists already.", "Add --replace to write over it, or --to FILE.") from None
    except OSError as error:
        raise BackendError(f"{path} was not written: {error.strerror}.", "Choose another by --to FILE.") from error


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
            sentence = f"{source} names files or folders next to it, which are not copied."
            raise SpecError(sentence, "Write absolute paths there.")
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
