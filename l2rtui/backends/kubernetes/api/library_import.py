"""Import of large libraries, and of the part of the client library that is used.

``session`` is imported when a process first needs it, in a thread. Its import takes 0.3 s of CPU with all that is
left out here, and twice as long without.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

_SESSION: Final = "l2rtui.backends.kubernetes.api.session"
_IMPORTED: Final[list[ModuleType]] = []
_IMPORTING: Final = threading.RLock()
"""Held while a first import has changed what all threads share."""


def import_session() -> Any:
    """Import and return the module ``session``."""
    with _IMPORTING:
        _skip_packages("kubernetes", "kubernetes.aio")
        with large_import(_SESSION), _no_authorities(), _without("pydantic", "dateutil.parser"):
            module = importlib.import_module(_SESSION)
        _IMPORTED[:] = [module]
    return module


def imported_session() -> Any | None:
    """Return the module ``session`` if it is imported wholly, so that no thread is needed for it."""
    return next(iter(_IMPORTED), None)


def _skip_packages(*names: str) -> None:
    """Enter packages as imported without running them, so that one of their modules is imported alone.

    The client library's own packages import all of it: loaders of kubeconfigs, OAuth, requests, informers, none of
    which is used. Their modules are still imported by any module that names them.
    """
    for name in names:
        if name not in sys.modules and (spec := importlib.util.find_spec(name)) is not None:
            sys.modules[name] = importlib.util.module_from_spec(spec)


@contextlib.contextmanager
def large_import(module: str) -> Iterator[None]:
    """Speed up the import of a module with large libraries.

    They create many permanent objects. Garbage collections among them find nothing, neither during the import nor
    later, nor at the end of the process, where they took a sixth of the time of a short command.
    """
    if module in sys.modules:
        yield
        return
    with _IMPORTING:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
            gc.freeze()  # only once: garbage that exists at this moment is kept as well
        finally:
            if was_enabled:
                gc.enable()


class _Unused:
    """Placeholder for the classes and functions of a module that is not imported."""

    def __init__(self, *_: object, **__: object) -> None:
        pass


@contextlib.contextmanager
def _without(*names: str) -> Iterator[None]:
    """Leave modules out of an import whose code names them and which we never run.

    The client library's session imports pydantic and a parser of dates for its typed answers. We take answers as
    bytes, and the two cost a sixth of a short command. Later imports get the real modules.
    """
    left_out = {}
    for name in names:
        if name not in sys.modules:
            left_out[name] = module = ModuleType(name)
            module.__getattr__ = lambda _: _Unused  # type: ignore[method-assign]
    sys.modules.update(left_out)
    try:
        yield
    finally:
        for name, module in left_out.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


@contextlib.contextmanager
def _no_authorities() -> Iterator[None]:
    """Let this thread make TLS contexts without reading the machine's authorities.

    aiohttp makes two at its import, for connectors without a context of their own; the authorities of both took a
    tenth of a short command. ``connectors.make_connector`` requires a context, and the two trust nobody now.
    """
    import ssl

    thread, load = threading.get_ident(), ssl.SSLContext.set_default_verify_paths

    def load_elsewhere(context: ssl.SSLContext) -> None:
        if threading.get_ident() != thread:
            load(context)

    ssl.SSLContext.set_default_verify_paths = load_elsewhere  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        ssl.SSLContext.set_default_verify_paths = load  # type: ignore[method-assign]
