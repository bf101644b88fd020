"""Classes by name, ``package.module:Class``, as a spec has them: imported, or refused with a sentence."""

from __future__ import annotations

import importlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnNetwork:
    """Module of one's own that makes features of an observation; see ``runtime.rl.algos.own_network``."""

    name: str
    """Its class, ``package.module:Class``."""
    options: str
    """JSON object of the constructor's options."""
    size: int
    """Features that it makes of an observation."""
    parts: tuple[tuple[int, ...], ...]
    """Shapes of its parameters, in its own order."""


def load_class(name: str) -> type:
    """Return the class ``package.module:Class``. ValueError with a sentence if there is none."""
    module, _, attribute = name.partition(":")
    try:
        value = getattr(importlib.import_module(module), attribute, None)
    # Whatever the module does at its import is the user's: a sentence names it, and no traceback of ours.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{name}: {module} cannot be imported ({reason}); is its file the run's program?"
        ) from error
    if not isinstance(value, type):
        raise ValueError(f"{name}: {module} has no class {attribute}")  # noqa: TRY004  (a spec's value)
    return value
