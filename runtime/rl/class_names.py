"""Imports a class by its name in a spec, ``package.module:Class``, or raises a clear error."""

from __future__ import annotations

import importlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnNetwork:
    """User-defined module that computes features of an observation; see ``runtime.rl.algos.own_network``."""

    name: str
    """Name of the class, ``package.module:Class``."""
    options: str
    """JSON object with the constructor's options."""
    size: int
    """Number of features per observation."""
    parts: tuple[tuple[int, ...], ...]
    """Shapes of its parameters, in the module's order."""


def load_class(name: str) -> type:
    """Return the class ``package.module:Class``. Raises ValueError with a sentence if it does not exist."""
    module, _, attribute = name.partition(":")
    try:
        value = getattr(importlib.import_module(module), attribute, None)
    # User code runs at the import: the error names its module, without our traceback.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{name}: {module} cannot be imported ({reason}); is its file the run's program?"
        ) from error
    if not isinstance(value, type):
        raise ValueError(f"{name}: {module} has no class {attribute}")  # noqa: TRY004  (a spec's value)
    return value
