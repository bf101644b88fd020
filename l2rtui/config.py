"""Settings from file, environment and flags, each overriding the one before; and the folders of files.

The file is ``config.toml`` in ``config_dir()`` (or ``$L2RTUI_CONFIG``); a variable is ``L2RTUI_`` and the name in
capitals. Importing this is cheap: a TOML parser is loaded only if there is a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2rtui.errors import ConfigError, nearest

if TYPE_CHECKING:
    from dataclasses import Field

    from runtime.base.limits import Limits

PREFIX = "L2RTUI_"
CONTEXT_TABLE = "context"
"""Table of the file with a table for each context: ``[context.NAME]``."""
FILE_ONLY = ("keys", "filters", "limits", "protected")
"""Settings that no variable may set: tables, and a protection that a stray variable must not switch off."""


def _setting(
    default: object, *, low: float | None = None, high: float | None = None, choices: tuple[str, ...] = ()
) -> Any:
    """Return a field with its minimum and maximum, both allowed, or with its only choices."""
    return field(default=default, metadata={"low": low, "high": high, "choices": choices})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, complete and checked.

    Attributes:
        backend: Name of the backend in ``backends.registry``. Default empty: ``kubernetes`` if a context is chosen
            or a kubeconfig has a current one, otherwise ``local``, which works on every machine. An explicit
            kubeconfig that cannot be used is an error: it must not turn into this machine.
        context: Context of a kubeconfig. Default empty: the current context of the kubeconfig.
        namespaces: Namespaces to show; the first is where runs are launched. Default empty: the context's own for
            launches, and all of them for viewing if that is allowed.
        impersonate_user: User to act as, like kubectl's ``--as``; the server checks the permission. Default empty:
            the user of the kubeconfig (``as``), otherwise yourself.
        impersonate_groups: Groups to act as, like kubectl's ``--as-group``. Default empty: those of the kubeconfig.
        image: Container image for specs that name none. Default empty: such a spec is refused if one is needed.
        binding: How a pod gets its GPU if the spec does not say: ``env`` (both variables, the pod pinned to its
            node), ``device-plugin``, ``shared``, ``hami``, ``dra`` or ``cpu``. Default ``env``; sets that need no
            GPU get ``cpu`` automatically.
        cuda_index: Value of ``CUDA_VISIBLE_DEVICES`` with ``env`` if a GPU's UUID is unknown: ``same`` (the index,
            correct if the container sees all GPUs) or ``zero`` (correct if the container runtime shows only the
            pod's own GPU). Default ``zero``, as for NVIDIA's container runtime.
        runtime_class: RuntimeClass of pods with an NVIDIA GPU: ``auto``, ``none``, or a name. Default ``auto``:
            ``nvidia`` if the cluster has this class and the node's default runtime has no GPU (k3s, RKE2).
        claims_namespace: Namespace of the Leases through which slots are claimed; all users who share the GPUs must
            set the same one. Default empty: ``l2rtui-claims`` if it exists (``l2rtui cluster prepare`` makes it),
            otherwise the namespace of the run.
        network_policy: Create a network policy for each run, so that only its own pods can reach its pods. Default
            on: if the cluster's network does not enforce policies, it has no effect.
        metrics_namespace: Namespace whose pods may read the learner's status port 5557 despite that policy, e.g.
            the namespace of Prometheus. Default empty: none.
        slots_by_product: Slots per GPU by product name, such as ``NVIDIA-A100-SXM4-80GB=8``; a node's label
            ``l2rtui.io/slots-per-gpu`` has precedence. Default empty: ``slots_per_gpu`` for every product.
        readonly: Refuse every change. Default off: for demonstrations and shared screens.
        slots_per_gpu: Workers that share a GPU, a count. Default 4: suits a simulator and a small policy per worker
            on a card of 24 GB; set 1 if a process fills the card.
        slots_per_core: Workers that share a CPU core, a count. Default 8: rollouts of small environments wait for
            the learner most of the time, and twelve of them should fit on two cores.
        max_cpu_slots: Maximum number of CPU slots of a node, a count. Default 64: more do not fit on a screen.
        theme: Colours of the app: ``l2r-dark``, ``l2r-light``, ``l2r-contrast``, ``l2r-ascii`` (only ASCII
            characters), or a theme of Textual. Default empty: dark, and ASCII if the locale is not UTF-8.
        notify: Ring and send a terminal notification (OSC 9) when a run of yours fails or ends. Default on.
        ready_seconds: Seconds for which every pod must run without a restart before ``launch --wait`` returns.
            Default 10: a process that lacks a package has ended by then.
        grace_seconds: Seconds between SIGTERM and SIGKILL for kill and destroy. Default empty: each set's own value
            (10 unless its spec says otherwise).
        log_max_bytes: Bytes after which a log file is rotated; one rotated file is kept for each process. Default
            10 MiB, as kubelet's containerLogMaxSize.
        backoff_seconds: Seconds before the second restart in a row of a failing process; doubles up to 30 times
            this value, and is reset after 60 times this value without a failure. Default 10: kubelet's 10 s, 5 min,
            10 min.
        protected: Each change needs the name of the context typed, and the app has a distinct frame. Default off:
            set it in ``[context.NAME]`` of a cluster on which other people depend.
        history_to: Folder, or ``s3://BUCKET/PREFIX``, to which the record of each run is written at its launch and
            at its end; all users with this setting have it in their history, even after a destroy. Default empty:
            none.
        keys: ``[keys]``: keys of the app by the names in ``docs/keys.md``, such as ``"run.destroy" = "ctrl+x"``.
        limits: ``[limits]``: limits of runs whose spec has none, in the form of a spec's ``limits``, such as ``wall
            = "12h"``; a context's ``[context.NAME.limits]`` replaces the whole table.
        filters: ``[filters]``: named filters, each a view and the filter text, such as ``broken = "pods
            status=Failed"``; ``:filter broken`` shows it.

    A table ``[context.NAME]`` holds settings for only one context of the kubeconfig; ``local`` and ``demo`` stand
    for those backends. It has precedence over the rest of the file.
    """

    backend: str = _setting("")
    context: str = _setting("")
    namespaces: tuple[str, ...] = _setting(())
    impersonate_user: str = _setting("")
    impersonate_groups: tuple[str, ...] = _setting(())
    image: str = _setting("")
    binding: str = _setting("env", choices=("env", "device-plugin", "shared", "hami", "dra", "cpu"))
    cuda_index: str = _setting("zero", choices=("same", "zero"))
    runtime_class: str = _setting("auto")
    claims_namespace: str = _setting("")
    network_policy: bool = _setting(default=True)
    metrics_namespace: str = _setting("")
    slots_by_product: tuple[str, ...] = _setting(())
    readonly: bool = _setting(default=False)
    slots_per_gpu: int = _setting(4, low=1, high=64)
    slots_per_core: int = _setting(8, low=1, high=64)
    max_cpu_slots: int = _setting(64, low=1, high=1024)
    theme: str = _setting("")
    notify: bool = _setting(default=True)
    ready_seconds: float = _setting(10.0, low=0, high=86400)
    grace_seconds: float | None = _setting(None, low=0, high=86400)
    log_max_bytes: int = _setting(10 << 20, low=4096, high=1 << 40)
    backoff_seconds: float = _setting(10.0, low=0.001, high=3600)
    protected: bool = _setting(default=False)
    history_to: str = _setting("")
    keys: tuple[tuple[str, str], ...] = _setting(())
    limits: tuple[tuple[str, str], ...] = _setting(())
    filters: tuple[tuple[str, str], ...] = _setting(())

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check_range(setting, getattr(self, setting.name), f"Settings.{setting.name}")
        if self.limits:
            _ = self.default_limits
        if self.history_to:
            _check_place(self.history_to)

    @property
    def default_limits(self) -> Limits:
        """Limits of runs whose spec has none. Raises ConfigError."""
        from runtime.base.limits import limits_of

        try:
            return limits_of(dict(self.limits))
        except ValueError as error:
            raise ConfigError(f"The table [limits] is wrong: {error}.") from None

    def grace(self, grace_seconds: float | None) -> float | None:
        """Return the grace period of a kill or destroy: the given one, otherwise the setting (None: each set's
        own).
        """
        return self.grace_seconds if grace_seconds is None else grace_seconds


def load_settings(flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Merge the file, the environment and the flags into checked settings.

    Args:
        flags: Values by name of the setting, typed or as text; None for a flag that was not given.

    Raises:
        ConfigError: a name or a value is wrong, or the file cannot be read; the sentence names the place.
    """
    environ = os.environ if environ is None else environ
    values, contexts = settings_of_file(environ)
    overrides = settings_of_variables(environ)
    for key, value in (flags or {}).items():
        if value is not None:
            overrides[key] = _decode(key, value, f"The flag --{key.replace('_', '-')}")
    # After flags and environment: they may choose the context whose table applies.
    if contexts:
        values |= contexts.get(context_name({**values, **overrides}, environ), {})
    return Settings(**values | overrides)


def context_name(values: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> str:
    """Return the name of the ``[context.NAME]`` table that applies: a kubeconfig context, or a backend without any.

    Args:
        values: The settings ``backend`` and ``context``, as far as they are given.
    """
    backend, context = values.get("backend", ""), values.get("context", "")
    if backend not in ("", "kubernetes"):
        return str(backend)
    return str(context) or current_context(os.environ if environ is None else environ) or "local"


def named_kubeconfigs(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that ``$KUBECONFIG`` names."""
    return [Path(path).expanduser() for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]


def kubeconfigs(environ: Mapping[str, str]) -> list[Path]:
    """Return the paths of the kubeconfig files, existing or not: from ``$KUBECONFIG``, otherwise
    ``~/.kube/config``.
    """
    return named_kubeconfigs(environ) or [Path(environ.get("HOME") or Path.home()) / ".kube" / "config"]


def current_context(environ: Mapping[str, str]) -> str:
    """Return the current context of the kubeconfig; empty if it has none."""
    # Read as text: loading a YAML parser would double the time of a command on the local backend. Like kubectl,
    # take the value of the first file that has one.
    for path in kubeconfigs(environ):
        try:
            lines = path.read_text("utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("current-context:") and (name := line.partition(":")[2].strip().strip("\"'")):
                return name
    return ""


def state_dir() -> Path:
    """Return the folder of persistent state: ``$XDG_STATE_HOME/l2rtui``, by default ``~/.local/state/l2rtui``."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def config_dir() -> Path:
    """Return the folder of the configuration file: ``$XDG_CONFIG_HOME/l2rtui``, by default ``~/.config/l2rtui``."""
    return _xdg("XDG_CONFIG_HOME", ".config")


def user_name() -> str:
    """Return the owner of new runs: the login name, or the user's number without one."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry in the user database: usual in containers
        return f"uid-{os.getuid()}"


def _xdg(variable: str, default: str) -> Path:
    # The XDG Base Directory Specification: a relative path is invalid and is ignored.
    base = os.environ.get(variable, "")
    return (Path(base) if base.startswith("/") else Path.home() / default) / "l2rtui"


def settings_path(environ: Mapping[str, str]) -> Path:
    """Return the settings file: ``$L2RTUI_CONFIG``, otherwise ``config.toml`` of the folder, existing or not."""
    named = environ.get(f"{PREFIX}CONFIG", "")
    return Path(named) if named else config_dir() / "config.toml"


def _raise(error: ConfigError) -> None:
    raise error


def settings_of_file(
    environ: Mapping[str, str], report: Callable[[ConfigError], None] = _raise
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the settings of the file, and those of each context.

    Args:
        report: Gets each error; the wrong setting is left out, and reading continues.
    """
    path = settings_path(environ)
    if not environ.get(f"{PREFIX}CONFIG") and not path.exists():
        return {}, {}
    import tomllib

    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        sentence = f"The configuration file {path} cannot be read: {error.strerror}."
        raise ConfigError(sentence, "Correct its path or its permissions.") from error
    except RecursionError:
        raise ConfigError(f"The configuration file {path} is not TOML: its values are nested too deeply.") from None
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise ConfigError(f"The configuration file {path} is not TOML: {error}.", "Correct that line.") from error
    contexts = table.pop(CONTEXT_TABLE, {}) if isinstance(table.get(CONTEXT_TABLE), dict) else {}
    parts: dict[str, dict[str, Any]] = {}
    for name, part in contexts.items():
        if not isinstance(part, dict):
            sentence = f"context.{name} in {path} is {part!r}: a table [context.{name}] is wanted."
            report(ConfigError(sentence, 'One context for all is written `context = "NAME"`.'))
            continue
        # They select the table itself, so inside it they could only contradict it.
        for key in ("backend", "context"):
            if key in part:
                sentence = f"The setting context.{name}.{key} in {path} would change which context it is."
                report(ConfigError(sentence))
        parts[name] = _decoded(part, f"context.{name}.", path, report)
    return _decoded(table, "", path, report), parts


def _decoded(
    table: Mapping[str, object], prefix: str, path: Path, report: Callable[[ConfigError], None]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in table.items():
        try:
            values[key] = _decode(key, value, f"The setting {prefix}{key} in {path}")
        except ConfigError as error:
            report(error)
    return values


def settings_of_variables(
    environ: Mapping[str, str], report: Callable[[ConfigError], None] = _raise
) -> dict[str, Any]:
    """Return the settings of the variables; ``report`` as for the file."""
    values: dict[str, Any] = {}
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name == f"{PREFIX}CONFIG":
            continue
        key = name.removeprefix(PREFIX).lower()
        if key in FILE_ONLY:
            report(ConfigError(f"The variable {name} means nothing: {key} can only be set in the file."))
            continue
        try:
            values[key] = _decode(key, text, f"The variable {name}", PREFIX)
        except ConfigError as error:
            report(error)
    return values


def _decode(key: str, value: object, source: str, prefix: str = "") -> Any:
    """Return the value of one setting in its type; text (of a variable or flag) is parsed."""
    settings: dict[str, Field[Any]] = {setting.name: setting for setting in fields(Settings)}
    if key not in settings:
        label = f"{prefix}{key.upper()}" if prefix else key
        names = [f"{prefix}{name.upper()}" if prefix else name for name in settings]
        hint = nearest(label, names) or f"The settings are {', '.join(names)}."
        raise ConfigError(f"{source} is not known.", hint)
    # The annotation as text, by `from __future__ import annotations`: no type has to be evaluated.
    decode, description = _TYPES[str(settings[key].type)]
    try:
        decoded = decode(value)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{source} is {value!r}: {description} is wanted.") from error
    _check_range(settings[key], decoded, source)
    return decoded


def _check_range(setting: Field[Any], value: object, source: str) -> None:
    choices = setting.metadata["choices"]
    if choices and value not in choices:
        raise ConfigError(f"{source} is {value!r}: write {' or '.join(choices)}.", nearest(str(value), choices))
    low, high = setting.metadata["low"], setting.metadata["high"]
    if low is None or value is None or not isinstance(value, int | float):
        return
    if not low <= value <= high:
        raise ConfigError(f"{source} is {value}: write a number from {low} to {high}.")


def _check_place(value: str) -> None:
    from runtime.base.object_store import StoreError, split_bucket_url

    if value.startswith(("/", "~/")):  # a full path: queued runs start from another folder
        return
    try:
        split_bucket_url(value)
    except StoreError:
        sentence = f"The setting history_to is {value!r}, which is neither a bucket nor the full path of a folder."
        raise ConfigError(sentence, "Write s3://BUCKET/PREFIX, or a path that begins with / or ~/.") from None


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
    return tuple((_text(name), _text(text)) for name, text in value.items())


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = _text(value).lower()
    if word not in ("1", "true", "yes", "on", "0", "false", "no", "off", ""):  # VARIABLE= in a shell switches off
        raise ValueError
    return word in ("1", "true", "yes", "on")


def _integer(value: object) -> int:
    # bool is a subclass of int: `slots_per_gpu = true` must not mean 1.
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    return float(value)


_TYPES: dict[str, tuple[Callable[[object], object], str]] = {
    "str": (_text, "text"),
    "tuple[str, ...]": (_names, "a list of names, or names with commas between"),
    "tuple[tuple[str, str], ...]": (_pairs, "a table of names and texts"),
    "bool": (_switch, "true or false"),
    "int": (_integer, "a whole number"),
    "float": (_number, "a number"),
    "float | None": (lambda value: None if value == "" else _number(value), "a number, or nothing"),
}
"""Decoder of a setting, and the description of its values, by its annotation."""
