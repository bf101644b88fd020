"""Backend names and how each is made; only the one that was chosen is imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from l2rtui.backends.base import Backend
from l2rtui.config import Settings, nearest, user_name
from l2rtui.errors import UsageError


def _local(settings: Settings) -> Backend:
    from l2rtui.backends.local.backend import LocalBackend

    return LocalBackend(settings)


def _demo(settings: Settings) -> Backend:
    import time

    from l2rtui.backends.fake import FakeBackend

    return FakeBackend(time.time, owner=user_name(), slots_per_gpu=settings.slots_per_gpu)


def _kubernetes(settings: Settings) -> Backend:
    from l2rtui.backends.kubernetes.backend import KubernetesBackend

    return KubernetesBackend(settings)


_FACTORIES: dict[str, Callable[[Settings], Backend]] = {
    "local": _local,
    "kubernetes": _kubernetes,
    "demo": _demo,
}

BACKENDS: tuple[str, ...] = tuple(_FACTORIES)
"""Names that ``--backend`` takes."""


def make_backend(name: str, settings: Settings) -> Backend:
    """Make the backend with this name; an empty name chooses.

    Raises:
        UsageError: there is none.
    """
    name = name or chosen_backend(settings)
    factory = _FACTORIES.get(name)
    if factory is None:
        raise UsageError(
            f"There is no backend {name!r}.", nearest(name, BACKENDS) or f"Use {' or '.join(BACKENDS)}."
        )
    return factory(settings)


def chosen_backend(settings: Settings, environ: Mapping[str, str] | None = None) -> str:
    """The backend for somebody who names none: the cluster that a kubeconfig points at, else this machine."""
    if settings.context or settings.namespaces:
        return "kubernetes"
    environ = os.environ if environ is None else environ
    paths = [path for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    return "kubernetes" if any(map(_names_a_context, paths or [Path.home() / ".kube/config"])) else "local"


def _names_a_context(path: str | Path) -> bool:
    """Whether a kubeconfig marks a context as current; read as text: a YAML parser costs more than the answer."""
    try:
        lines = Path(path).read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return False
    values = (line.partition(":")[2].strip() for line in lines if line.startswith("current-context:"))
    return any(value.strip("\"'") for value in values)
