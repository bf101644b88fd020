"""Registry of environments: names in a spec to vector environments, with Gymnasium's ids as the fallback.

Apart from `base`, so that each environment imports the interface and nothing imports an environment before it is
made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from runtime.base import environments
from runtime.base.environments import PETTINGZOO
from runtime.rl.class_names import load_class
from runtime.rl.envs.base import VectorEnv
from runtime.rl.envs.device import DeviceArrays, DeviceEnv


def _racing(num_envs: int, options: Mapping[str, Any]) -> VectorEnv:
    from runtime.rl.envs.racing import RacingVectorEnv
    from runtime.rl.envs.racing_rules import RacingOptions

    return RacingVectorEnv(num_envs, RacingOptions.from_mapping(options))


def _l2r(num_envs: int, options: Mapping[str, Any]) -> VectorEnv:
    from runtime.rl.envs.l2r import L2RVectorEnv
    from runtime.rl.envs.l2r_options import L2ROptions

    return L2RVectorEnv(num_envs, L2ROptions.from_mapping(options))


VECTOR_ENVS: Final[Mapping[str, Callable[[int, Mapping[str, Any]], VectorEnv]]] = {
    "racing": _racing,
    "l2r": _l2r,
}
"""Name in a spec to factory; the module of an environment is imported when it is made."""
EVALUATION_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "racing": {"start": "line", "laps": 1},
    "l2r": {"start": "line", "laps": 1},
}
"""Options for evaluation that are taken where a spec states none, by environment."""


def make_vector_env(name: str, num_envs: int, *, options: Mapping[str, Any]) -> VectorEnv:
    """Make ``num_envs`` copies of the environment ``name``: one of ours, or one that Gymnasium knows by its id.

    Raises ValueError for an unknown name, for an option that the environment does not know or cannot take, and
    for fewer than one copy.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}; an environment needs at least 1 copy")
    if name in VECTOR_ENVS:
        return VECTOR_ENVS[name](num_envs, options)
    if name.startswith(PETTINGZOO):
        from runtime.rl.envs.parallel_games import ParallelGames

        return ParallelGames(name, num_envs, options)
    from runtime.rl.envs.classic import PHYSICS, ClassicVectorEnv

    if name in PHYSICS and not options:
        return ClassicVectorEnv(PHYSICS[name], num_envs)
    if (kind := _own_class(name)) is not None:
        from runtime.rl.envs.own import OwnVectorEnv

        return OwnVectorEnv(name, kind, num_envs, options)
    from runtime.rl.envs.gym_vector import make_gym_env

    return make_gym_env(name, num_envs, options, sorted(VECTOR_ENVS))


def _racing_on_device(num_envs: int, options: Mapping[str, Any], arrays: DeviceArrays) -> DeviceEnv:
    from runtime.rl.envs.racing import DeviceRacing
    from runtime.rl.envs.racing_rules import RacingOptions

    return DeviceRacing(num_envs, RacingOptions.from_mapping(options), arrays)


def _classic_on_device(name: str) -> Callable[[int, Mapping[str, Any], DeviceArrays], DeviceEnv]:
    def make(num_envs: int, options: Mapping[str, Any], arrays: DeviceArrays) -> DeviceEnv:
        from runtime.rl.envs.classic import PHYSICS, DeviceClassic

        for option in options:
            raise ValueError(
                f"{name} has no option {option!r} where the learner collects on its device: it has none there"
            )
        return DeviceClassic(PHYSICS[name], num_envs, arrays)

    return make


DEVICE_ENVS: Final[Mapping[str, Callable[[int, Mapping[str, Any], DeviceArrays], DeviceEnv]]] = {
    "racing": _racing_on_device,
    **{name: _classic_on_device(name) for name in ("CartPole-v1", "Pendulum-v1")},
}
"""Name in a spec to factory, for learners that collect on their device."""


def make_device_env(name: str, num_envs: int, options: Mapping[str, Any], arrays: DeviceArrays) -> DeviceEnv:
    """Make ``num_envs`` copies of the environment ``name`` on a device.

    Raises ValueError for an environment that has no such form, and for an option that it does not know.
    """
    if name in DEVICE_ENVS:
        return DEVICE_ENVS[name](num_envs, options, arrays)
    if (kind := _own_class(name)) is not None:
        from runtime.rl.envs.own import OwnDeviceEnv

        return OwnDeviceEnv(name, kind, num_envs, options, arrays)
    raise ValueError(
        f"environment {name} has no device form, so the learner cannot collect on its device; take workers, or one "
        f"of {', '.join(DEVICE_ENVS)}, or a class of your own on tensors (docs/gpu.md)"
    )


def _own_class(name: str) -> type | None:
    """Return the class ``module:Class`` on tensors; None for an id of Gymnasium, which may be written alike.

    Raises ValueError if the module cannot be imported.
    """
    if not environments.may_be_class(name):
        return None
    try:
        kind = load_class(name)
    except ValueError as error:
        # Gymnasium's `module:Id` registers an id that need not be the name of a class; it has the last word.
        if isinstance(error.__cause__, Exception):
            raise
        return None
    return None if hasattr(kind, "reset") else kind
