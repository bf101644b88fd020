"""Wrappers of Gymnasium by name, in the order in which they are put around an environment, and one of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium
from numpy.typing import NDArray

from runtime.base.environments import WRAPPERS
from runtime.rl.class_names import load_class


def wrapped(env: gymnasium.Env[Any, Any], entries: object, name: str) -> gymnasium.Env[Any, Any]:
    """Return ``env`` in the wrappers of the option. ValueError with a sentence for one that cannot be.

    Args:
        entries: ``["ClipReward", {"TransformReward": {...}}, "mine:MyWrapper"]``; a name without a module is one of
            ``gymnasium.wrappers``.
        name: Of the environment, for sentences.
    """
    if not isinstance(entries, list | tuple):
        raise ValueError(f"{name}: {WRAPPERS} is {entries!r}; it must be a list")  # noqa: TRY004  (a spec's value)
    for entry in entries:
        wrapper, options = _read(entry, name)
        kind = load_class(wrapper if ":" in wrapper else f"gymnasium.wrappers:{wrapper}")
        if not issubclass(kind, gymnasium.Wrapper):
            raise ValueError(f"{name}: {wrapper} is not a wrapper of Gymnasium")  # noqa: TRY004  (a spec's value)
        try:
            env = kind(env, **options)
        # Foreign code may raise anything; the sentence names the wrapper.
        except Exception as error:
            raise ValueError(f"{name}: {wrapper} cannot be put around it with {dict(options)}: {error}") from error
    return env


def _read(entry: object, name: str) -> tuple[str, Mapping[str, Any]]:
    """Return name and options of one entry."""
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((wrapper, options),) = entry.items()
        if isinstance(wrapper, str) and isinstance(options, Mapping):
            return wrapper, options
    raise ValueError(f"{name}: {WRAPPERS} has {entry!r}; write a name, or one name to its options")


class SelectNumbers(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Show some of the numbers of a vector and hide the others, for tasks that need a memory.

    `{"runtime.rl.envs.wrappers:SelectNumbers": {"indices": [0, 2]}}` shows CartPole without its velocities.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], indices: Sequence[int]) -> None:
        """ValueError for an observation that is no vector, and for an index that it has not."""
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"its observations are {space}; numbers are selected of a vector")
        if not indices or not all(type(index) is int and 0 <= index < space.shape[0] for index in indices):
            raise ValueError(f"indices are {list(indices)}; they must be of 0 to {space.shape[0] - 1}")
        self._indices = list(indices)
        low, high = (bound[self._indices] for bound in (space.low, space.high))
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=cast("Any", space.dtype))

    def observation(self, observation: NDArray[Any]) -> NDArray[Any]:
        """Return the selected numbers."""
        return observation[self._indices]
