"""Environments whose copies live on the learner's device: the interface, and the arrays that they are made of.

A learner that collects without workers (`collect: device`) steps such an environment inside one captured function,
so no method waits for the device, copies to it or branches on a value: copies that end begin again by masks, and
what is known of their episodes is summed where they are. The library of arrays is the one that `DeviceArrays` hands
in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from runtime.rl.spaces import ActionSpace, ObsSpace
from runtime.tracks.vehicle import Namespace

Array = Any
"""Array of the device's library."""
Episodes = tuple[Array, Array, Array, Array, Array]
"""0-d sums over the episodes that ended: their count, returns, steps, metres of progress, laps."""


@dataclass(frozen=True, slots=True)
class DeviceArrays:
    """Library of arrays on one device, with a source of random numbers there."""

    xp: Namespace
    convert: Callable[[NDArray[Any]], Array]
    """NumPy's array to one on the device; float64 becomes float32."""
    uniform: Callable[[tuple[int, ...]], Array]
    """Even random numbers in [0, 1) of a shape."""
    part: Callable[[], None] = lambda: None
    """Called between two parts of a step that a compiler must not make one kernel of."""


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """Result of one step of all copies; B is the number of copies."""

    reward: Array
    """(B,) float32"""
    ended: Array
    """(B,) uint8: 1 for terminated, 2 for truncated, 0 for neither."""
    final_obs: Array
    """(B, obs_space.width) before any reset."""
    episodes: Episodes


class DeviceEnv(Protocol):
    """``num_envs`` copies of one environment, as arrays on a device."""

    num_envs: int
    obs_space: ObsSpace
    action_space: ActionSpace

    def start(self) -> None:
        """Begin a new episode in every copy."""

    def observe(self) -> Array:
        """(B, obs_space.width) of the current state: after a step, that behind the resets."""

    def step(self, action: Array) -> DeviceStep:
        """Apply (B, action_space.size) actions, and begin new episodes where one ended."""

    def state(self) -> dict[str, Array]:
        """Return the arrays that the next step depends on, by name; a step replaces them by others."""

    def use_state(self, state: Mapping[str, Array]) -> None:
        """Go on from arrays of the names and shapes of ``state``."""


def summed(ended: Array, returns: Array, steps: Array, progress: Array, laps: Array) -> Episodes:
    """Sum each quantity (B,) over the copies whose episode ``ended`` (B,) bool."""
    return ended.sum(), *((ended * quantity).sum() for quantity in (returns, steps, progress, laps))


def ended_code(terminated: Array, truncated: Array, xp: Namespace) -> Array:
    """(B,) uint8 of `DeviceStep.ended`."""
    return xp.asarray(terminated, dtype=xp.uint8) + 2 * xp.asarray(truncated, dtype=xp.uint8)
