"""User-defined classes by name, ``package.module:Class``: loading and validation with clear error sentences.

Workers read a method's `Config`, so this module does not import torch; the user's module may.
"""

from __future__ import annotations

from typing import Final

from runtime.rl.algos.method_config import MethodConfig, ReplayConfig, RolloutConfig
from runtime.rl.class_names import load_class

METHODS_NEEDED: Final = ("update", "policy_weights", "tensors")
"""Members of `runtime.rl.algos.algorithm.Algorithm` that a method must implement."""


def method_config(name: str) -> type[MethodConfig]:
    """Return the `Config` of a user-defined method. Raises ValueError if the class is not a method."""
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
