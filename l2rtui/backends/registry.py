"""Names and factories of the backends; only the chosen one is imported."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from l2rtui.config import Settings, current_context, kubeconfigs, named_kubeconfigs, user_name
from l2rtui.errors import ConfigError, UsageError, nearest

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend

_log = logging.getLogger(__name__)


# Each import is inside its function: otherwise the command line would load every client library.
def _local(settings: Settings) -> Backend:
    from l2rtui.backends.local.backend import LocalBackend

    return LocalBackend(settings)


def _demo(settings: Settings) -> Backend:
    import time

    from l2rtui.backends.fake import FakeBackend

    return FakeBackend(time.time, owner=user_name(), slots_per_gpu=settings.slots_per_gpu)


def _kubernetes(settings: Settings) -> Backend:
    from l2rtui.backends.kubernetes.api.library_import import large_import

    with large_import("l2rtui.backends.kubernetes.backend"):
        from l2rtui.backends.kubernetes.backend import KubernetesBackend
    return KubernetesBackend(settings, eks_token=eks_token)


def eks_token(cluster: str, region: str, profile: str, role: str) -> tuple[str, float]:
    """Sign a token for EKS in this process. Passed to the backend for clusters, as it may not import ``cloud``.

    Raises:
        ImportError: Amazon's library is not installed. BackendError: There are no credentials.
    """
    from l2rtui.cloud.aws.eks_login import sign_eks_token

    return sign_eks_token(cluster, region, profile, role)


def _docker(settings: Settings) -> Backend:
    from l2rtui.backends.docker.backend import DockerBackend

    return DockerBackend(settings)


_FACTORIES: dict[str, Callable[[Settings], Backend]] = {
    "local": _local,
    "kubernetes": _kubernetes,
    "docker": _docker,
    "demo": _demo,
}

ALL_CONTEXTS: Final = "*"
"""Means every context of the kubeconfig: no context has this name."""
_UNQUEUED: Final = ("demo",)
"""Backends in the memory of one process: no other process could start their waiting runs."""
UNSHARED: Final = ("local", "docker", "demo")
"""Backends whose runs only this machine's own history knows: their ``records`` are None."""
BACKENDS: tuple[str, ...] = tuple(_FACTORIES)
"""Values of ``--backend``."""


def make_backend(name: str, settings: Settings, *, is_queued: bool = True) -> Backend:
    """Make the backend with this name; an empty name means ``chosen_backend``.

    Args:
        is_queued: Show the runs of its queue too, where it has one.

    Raises:
        UsageError: No backend has this name. ConfigError: See ``chosen_backend``.
    """
    name = name or chosen_backend(settings)
    factory = _FACTORIES.get(name)
    if factory is None:
        sentence = f"There is no backend {name!r}."
        raise UsageError(sentence, nearest(name, BACKENDS) or f"Use {' or '.join(BACKENDS)}.")
    _log.info("backend %s%s", name, f", context {settings.context}" if settings.context else "")
    backend = factory(settings)
    if not is_queued or name in _UNQUEUED:
        return backend
    from l2rtui.backends.queued import QueuedBackend

    return QueuedBackend(backend, settings)


def named_contexts(text: str, *, is_all: bool = False) -> tuple[str, ...]:
    """Return the contexts of a text that names several: ``a,b``, or ``*`` for all; otherwise empty.

    Args:
        is_all: All contexts of the kubeconfig, regardless of the text.

    Raises:
        ConfigError: The kubeconfig cannot be read, or has no such context.
    """
    is_all = is_all or text.strip() == ALL_CONTEXTS
    if not (is_all or "," in text):
        return ()
    from l2rtui.backends.kubernetes.api.kubeconfig import context_names

    available = context_names()[0]
    if not is_all and text in available:
        return ()  # a single context whose name has a comma
    names = available if is_all else tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in available:
            hint = nearest(name, available) or f"There are: {', '.join(available) or 'none'}."
            raise ConfigError(f"The kubeconfig has no context {name!r}.", hint)
    if not names:
        raise ConfigError("The kubeconfig has no contexts.")
    return tuple(dict.fromkeys(names))


def compose(contexts: Mapping[str, Settings], make: Callable[[Settings], Backend] | None = None) -> Backend:
    """Return the backend that shows these contexts, each with its own settings.

    Args:
        make: Creates the backend of one context; None creates a cluster's backend.

    Raises:
        UsageError: The settings name a backend that has no contexts.
    """
    from l2rtui.backends.composed.backend import ComposedBackend

    for settings in contexts.values():
        if settings.backend not in ("", "kubernetes"):
            raise UsageError(f"The {settings.backend} backend has no contexts: they mean nothing there.")
    make = make or (lambda settings: make_backend("kubernetes", settings))
    return ComposedBackend({name: (make(settings), settings) for name, settings in contexts.items()})


def chosen_backend(settings: Settings, environ: Mapping[str, str] | None = None) -> str:
    """Return the default backend: the cluster of a kubeconfig, otherwise this machine.

    Raises:
        ConfigError: A kubeconfig was named, or exists in its usual place, but does not say which cluster to use.
            Otherwise a launch or a destroy could act on this machine by mistake.
    """
    # Both settings only make sense for a cluster.
    if settings.context or settings.namespaces:
        return "kubernetes"
    environ = os.environ if environ is None else environ
    return "kubernetes" if current_context(environ) or _has_current_context(environ) else "local"


def _has_current_context(environ: Mapping[str, str]) -> bool:
    """Read the kubeconfig as YAML; return False if it is missing, or empty in the usual place."""
    files, is_named = kubeconfigs(environ), bool(named_kubeconfigs(environ))
    if not is_named and not any(path.exists() for path in files):
        return False
    from l2rtui.backends.kubernetes.api.kubeconfig import merge_files

    merged = merge_files(None, environ)
    if merged is None or merged.current:
        return merged is not None
    names, where = ", ".join(merged.entries["contexts"]), os.pathsep.join(map(str, files))
    here = "`--backend local` acts on this machine."
    if names:
        sentence = f"The kubeconfig {where} marks no context as the current one (there are: {names})."
        raise ConfigError(sentence, f"Name one with --context; {here}")
    # Tools that delete a cluster leave an empty file in the usual place; the user has not named it.
    if is_named:
        raise ConfigError(f"The kubeconfig {where} has no contexts.", f"Correct KUBECONFIG; {here}")
    return False
