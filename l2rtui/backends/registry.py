"""Backend names and how each is made; only the one that was chosen is imported."""

from __future__ import annotations

from collections.abc import Callable

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


_FACTORIES: dict[str, Callable[[Settings], Backend]] = {"local": _local, "demo": _demo}

BACKENDS: tuple[str, ...] = tuple(_FACTORIES)
"""Names that ``--backend`` takes."""


def make_backend(name: str, settings: Settings) -> Backend:
    """Make the backend with this name.

    Raises:
        UsageError: there is none.
    """
    factory = _FACTORIES.get(name)
    if factory is None:
        raise UsageError(
            f"There is no backend {name!r}.", nearest(name, BACKENDS) or f"Use {' or '.join(BACKENDS)}."
        )
    return factory(settings)
