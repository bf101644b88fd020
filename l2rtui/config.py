"""Settings: file, then environment, then flags, each over the one before; and where files live.

The file is ``config.toml`` in ``config_dir()`` (or ``$L2RTUI_CONFIG``); the environment says ``L2RTUI_`` and the
name in capitals. Importing this costs next to nothing: a TOML parser is loaded only when there is a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2rtui.errors import ConfigError

if TYPE_CHECKING:
    from dataclasses import Field

PREFIX = "L2RTUI_"


CONTEXT_TABLE = "context"
"""Table of the file with a part for each context: ``[context.NAME]``."""
_FILE_ONLY = ("keys", "filters", "protected")
"""Settings that make no sense as a variable: tables, and what a wrong variable must not switch off."""


def _setting(
    default: object, *, low: float | None = None, high: float | None = None, words: tuple[str, ...] = ()
) -> Any:
    """A field with the smallest and largest value that it may have, both allowed, or the only words."""
    return field(default=default, metadata={"low": low, "high": high, "words": words})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, complete and checked.

    Attributes:
        backend: Where things run, a name of ``backends.registry``. Default empty: ``kubernetes`` where a context is
            chosen or a kubeconfig names a current one, else ``local``, which works on every machine.
        context: Context of a kubeconfig. Default empty: the one that the kubeconfig marks as current.
        namespaces: Namespaces to look at; the first is where runs are launched. Default empty: the context's own,
            and a look at all of them where that is allowed.
        image: Container image for specs that name none. Default empty: such a spec is refused where one is needed.
        binding: How a pod gets its GPU where the spec does not say: ``env`` (both variables, the pod pinned to its
            node), ``device-plugin``, ``shared``, ``hami``, ``dra`` or ``cpu``. Default ``env``.
        cuda_index: What ``CUDA_VISIBLE_DEVICES`` says with ``env`` where a GPU's UUID is not known: ``same`` (the
            index, right where the container sees all GPUs) or ``zero`` (right where the container runtime shows it
            only its own). Default ``zero``: what NVIDIA's container runtime does.
        claims_namespace: Namespace of the Leases through which slots are claimed; everybody who shares the GPUs
            must name the same one. Default empty: the namespace of the run.
        slots_by_product: Slots a GPU by its product name, such as ``NVIDIA-A100-SXM4-80GB=8``; a node's own label
            ``l2rtui.io/slots-per-gpu`` wins over it. Default empty: ``slots_per_gpu`` for every product.
        readonly: Refuse everything that changes something. Default off: for demonstrations and shared screens.
        slots_per_gpu: Workers that share a GPU, a count. Default 4: what a simulator and a small policy leave
            room for on a card of 24 GB; set 1 where a process fills the card.
        slots_per_core: Workers that share a CPU core on a machine without a GPU, a count. Default 4: rollouts of
            small environments wait for the learner most of the time.
        max_cpu_slots: Most slots of the ``cpu`` device, a count. Default 64: more fit on no screen.
        theme: Colours of the app: ``l2r-dark``, ``l2r-light``, ``l2r-contrast``, ``l2r-ascii`` (no character beyond
            ASCII), or a theme of Textual. Default empty: dark, and ASCII where the locale knows no UTF-8.
        notify: Ring and send a terminal notification (OSC 9) when a run of yours fails or ends. Default on.
        grace_seconds: Seconds between SIGTERM and SIGKILL for kill and destroy. Default empty: what each set says
            (10 unless its spec says otherwise).
        log_max_bytes: Bytes after which a log file is set aside; one set-aside file is kept for each process.
            Default 10 MiB, as kubelet's containerLogMaxSize.
        backoff_seconds: Seconds before the second restart in a row of a failing process; doubles up to 30 times
            this, and is forgotten after 60 times this without a failure. Default 10: kubelet's 10 s, 5 min, 10 min.
        protected: Each change wants the name of the context typed, and the app has a frame of its own. Default off:
            set it in ``[context.NAME]`` of a cluster on which other people depend.
        keys: ``[keys]``: keys of the app by the names in ``docs/keys.md``, such as ``"run.destroy" = "ctrl+x"``.
        filters: ``[filters]``: filters with a name, each a view and what is typed after it, such as
            ``broken = "pods status=Failed"``; ``:filter broken`` shows it.

    A table ``[context.NAME]`` holds settings for one context of the kubeconfig alone; ``local`` and ``demo`` stand
    for those backends. It wins over the rest of the file.
    """

    backend: str = _setting("")
    context: str = _setting("")
    namespaces: tuple[str, ...] = _setting(())
    image: str = _setting("")
    binding: str = _setting("env", words=("env", "device-plugin", "shared", "hami", "dra", "cpu"))
    cuda_index: str = _setting("zero", words=("same", "zero"))
    claims_namespace: str = _setting("")
    slots_by_product: tuple[str, ...] = _setting(())
    readonly: bool = _setting(default=False)
    slots_per_gpu: int = _setting(4, low=1, high=64)
    slots_per_core: int = _setting(4, low=1, high=64)
    max_cpu_slots: int = _setting(64, low=1, high=1024)
    theme: str = _setting("")
    notify: bool = _setting(default=True)
    grace_seconds: float | None = _setting(None, low=0, high=86400)
    log_max_bytes: int = _setting(10 << 20, low=4096, high=1 << 40)
    backoff_seconds: float = _setting(10.0, low=0.001, high=3600)
    protected: bool = _setting(default=False)
    keys: tuple[tuple[str, str], ...] = _setting(())
    filters: tuple[tuple[str, str], ...] = _setting(())

    def __post_init__(self) -> None:
        for one in fields(self):
            _check_range(one, getattr(self, one.name), f"Settings.{one.name}")


def load_settings(flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Join the file, the environment and the flags.

    Args:
        flags: Values by name of the setting, typed or as text; None stands for a flag that was not given.

    Raises:
        ConfigError: a name or a value is wrong, or the file cannot be read; the sentence says where.
    """
    environ = os.environ if environ is None else environ
    values, contexts = _from_file(environ)
    given: dict[str, Any] = {}
    for name, text in environ.items():
        if name.startswith(PREFIX) and name != f"{PREFIX}CONFIG":
            key = name.removeprefix(PREFIX).lower()
            if key in _FILE_ONLY:
                raise ConfigError(f"The variable {name} means nothing: {key} is set in the file alone.")
            given[key] = _decode(key, text, f"The variable {name}", PREFIX)
    for key, value in (flags or {}).items():
        if value is not None:
            given[key] = _decode(key, value, f"The flag --{key.replace('_', '-')}")
    if contexts:
        values |= contexts.get(context_name({**values, **given}, environ), {})
    return Settings(**values | given)


def context_name(values: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> str:
    """What ``[context.NAME]`` calls the place that is looked at: a backend that has no contexts, or a context.

    Args:
        values: Of the settings ``backend`` and ``context``, as far as they are given.
    """
    backend, context = values.get("backend", ""), values.get("context", "")
    if backend not in ("", "kubernetes"):
        return str(backend)
    return str(context) or current_context(os.environ if environ is None else environ) or "local"


def current_context(environ: Mapping[str, str]) -> str:
    """The context that the kubeconfig marks as current; read as text: a YAML parser costs more than the answer."""
    listed = [Path(path) for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    for path in listed or [Path(environ.get("HOME") or Path.home()) / ".kube" / "config"]:
        try:
            lines = path.read_text("utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("current-context:") and (name := line.partition(":")[2].strip().strip("\"'")):
                return name
    return ""


def state_dir() -> Path:
    """Folder for what must survive a restart: ``$XDG_STATE_HOME/l2rtui``, by default ``~/.local/state/l2rtui``."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def config_dir() -> Path:
    """Folder of the configuration file: ``$XDG_CONFIG_HOME/l2rtui``, by default ``~/.config/l2rtui``."""
    return _xdg("XDG_CONFIG_HOME", ".config")


def user_name() -> str:
    """Who we are to other people: the login name, or the number of a user without one."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry in the user database: usual in containers
        return f"uid-{os.getuid()}"


def nearest(name: str, names: Iterable[str]) -> str:
    """``Did you mean X?`` for the most similar name, or nothing."""
    import difflib

    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"Did you mean {found[0]}?" if found else ""


def _xdg(variable: str, default: str) -> Path:
    # The XDG Base Directory Specification: a relative path is invalid and is ignored.
    base = os.environ.get(variable, "")
    return (Path(base) if base.startswith("/") else Path.home() / default) / "l2rtui"


def _from_file(environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Settings of the file, and those of each context."""
    named = environ.get(f"{PREFIX}CONFIG", "")
    path = Path(named) if named else config_dir() / "config.toml"
    if not named and not path.exists():
        return {}, {}
    import tomllib

    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"The configuration file {path} cannot be read: {error.strerror}.",
            "Correct its path or its permissions.",
        ) from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise ConfigError(f"The configuration file {path} is not TOML: {error}.", "Correct that line.") from error
    contexts = table.pop(CONTEXT_TABLE, {}) if isinstance(table.get(CONTEXT_TABLE), dict) else {}
    parts: dict[str, dict[str, Any]] = {}
    for name, part in contexts.items():
        if not isinstance(part, dict):
            raise ConfigError(
                f"context.{name} in {path} is {part!r}: a table [context.{name}] is wanted.",
                'One context for all is written `context = "NAME"`.',
            )
        for key in ("backend", "context"):
            if key in part:
                raise ConfigError(f"The setting context.{name}.{key} in {path} would change which context it is.")
        parts[name] = {
            key: _decode(key, value, f"The setting context.{name}.{key} in {path}") for key, value in part.items()
        }
    return {key: _decode(key, value, f"The setting {key} in {path}") for key, value in table.items()}, parts


def _decode(key: str, value: object, source: str, prefix: str = "") -> Any:
    """Give the value of one setting in its own type. Text is read as a person writes it."""
    known: dict[str, Field[Any]] = {one.name: one for one in fields(Settings)}
    if key not in known:
        shown = f"{prefix}{key.upper()}" if prefix else key
        names = [f"{prefix}{name.upper()}" if prefix else name for name in known]
        raise ConfigError(
            f"{source} is not known.", nearest(shown, names) or f"The settings are {', '.join(names)}."
        )
    kind = str(known[key].type)
    try:
        decoded = _DECODERS[kind](value)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{source} is {value!r}: {_WANTED[kind]} is wanted.") from error
    _check_range(known[key], decoded, source)
    return decoded


def _check_range(one: Field[Any], value: object, source: str) -> None:
    words = one.metadata["words"]
    if words and value not in words:
        raise ConfigError(f"{source} is {value!r}: write {' or '.join(words)}.", nearest(str(value), words))
    low, high = one.metadata["low"], one.metadata["high"]
    if low is None or value is None or not isinstance(value, int | float):
        return
    if not low <= value <= high:
        raise ConfigError(f"{source} is {value}: write a number from {low} to {high}.")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _names(value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise TypeError
    return tuple(part.strip() for part in map(_text, parts) if part.strip())


def _pairs(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise TypeError
    return tuple((_text(name), _text(one)) for name, one in value.items())


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    return words[_text(value).lower() or "off"]


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    return float(value)


def _number_or_none(value: object) -> float | None:
    return None if value == "" else _number(value)


_DECODERS = {
    "str": _text,
    "tuple[str, ...]": _names,
    "tuple[tuple[str, str], ...]": _pairs,
    "bool": _switch,
    "int": _whole,
    "float": _number,
    "float | None": _number_or_none,
}
_WANTED = {
    "str": "text",
    "tuple[str, ...]": "a list of names, or names with commas between",
    "tuple[tuple[str, str], ...]": "a table of names and texts",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "float | None": "a number, or nothing",
}
