"""Classes of one's own by name, ``package.module:Class``: found, checked and refused with a sentence.

Workers read a method's `Config`, so this imports no torch; the module that it names may.
"""

from __future__ import annotations

from typing import Final

from runtime.rl.algos.method_config import MethodConfig, ReplayConfig, RolloutConfig
from runtime.rl.class_names import load_class

METHODS_NEEDED: Final = ("update", "policy_weights", "tensors")
"""What `runtime.rl.algos.algorithm.Algorithm` leaves to a method."""


def method_config(name: str) -> type[MethodConfig]:
    """Return the `Config` of a method of one's own. ValueError if the class is no method."""
    method = load_class(name)
    if not any(base.__module__ == "runtime.rl.algos.algorithm" for base in method.__mro__):
        raise ValueError(f"{name} does not derive from runtime.rl.algos.algorithm.Algorithm")
    for needed in METHODS_NEEDED:
        if getattr(getattr(method, needed), "__isabstractmethod__", False):
            raise ValueError(f"{name} has no method {needed}; docs/own-methods.md says what it returns")
    config = getattr(method, "Config", None)
    if not (isinstance(config, type) and issubclass(config, ReplayConfig | RolloutConfig)):
        sentence = "has no Config that derives from ReplayConfig or RolloutConfig; docs/own-methods.md shows one"
        raise ValueError(f"{name} {sentence}")  # noqa: TRY004  (a spec's value)
    return config
