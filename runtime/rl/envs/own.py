"""User-defined environments on tensors, on the learner's device: a class with ``start``, ``observe`` and ``step``.

The class computes with torch, on all copies together, and keeps nothing: the state of the copies is a dictionary
that its methods take and return. So where an episode ends, its copy can begin anew by a mask; a checkpoint can hold
the copies; and a step can be compiled and captured. docs/gpu.md shows a whole one. Workers and evaluators step the
same class on their CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.base.errors import first_line
from runtime.rl.envs.base import EpisodeSummary, StepResult
from runtime.rl.envs.device import DeviceArrays, DeviceStep, ended_code, summed
from runtime.rl.spaces import ActionSpace, ObsSpace

METHODS: Final = ("start", "observe", "step")
_NUMBERS: Final = {"start_draws": 0, "step_draws": 0, "max_steps": 0}
"""Whole numbers that the class may have, and what they are where it has none."""
_WAITING: Final = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "equal",
    "is_nonzero",
    "unique_dim",
)
"""Operations of torch whose result the host needs before it can go on."""
_FROM_HOST: Final = ("lift_fresh", "lift_fresh_copy", "_pin_memory")
"""Operations by which a number, list or array of the host becomes a tensor."""
State = dict[str, Tensor]


class OwnDeviceEnv:
    """Copies of a user-defined class; see ``runtime.rl.envs.device.DeviceEnv`` for the methods."""

    def __init__(
        self, name: str, kind: type, num_envs: int, options: Mapping[str, Any], arrays: DeviceArrays
    ) -> None:
        """Make ``kind`` and take one step of it. ValueError names what of it is not as it should be."""
        self._name, self._uniform = name, arrays.uniform
        self._none = arrays.convert(np.zeros(num_envs))
        self.num_envs, device = num_envs, self._none.device
        missing = [method for method in METHODS if not callable(getattr(kind, method, None))]
        if missing:
            raise ValueError(f"{name} has no method {missing[0]}; docs/gpu.md shows a whole environment")
        self._env = self._call("__init__", lambda: kind(num_envs, device, **options))
        self.obs_space, self.action_space = (
            self._space("obs_space", ObsSpace),
            self._space("action_space", ActionSpace),
        )
        for space, size in (("obs_space", self.obs_space.width), ("action_space", self.action_space.size)):
            if size < 1:
                raise ValueError(f"{name}: {space} has the size {size}; expected at least one number")
        self._start_draws, self._step_draws, self._max_steps = map(self._number, _NUMBERS)
        self._zero_steps = arrays.convert(np.zeros(num_envs, dtype=np.int64))
        dtype = torch.int32 if self.action_space.choices else torch.float32
        self._check(torch.zeros((num_envs, self.action_space.size), dtype=dtype, device=device))
        self.start()

    def start(self) -> None:
        """Begin a new episode in every copy."""
        self._state = self._started()
        self._steps, self._returns = self._zero_steps, self._none

    def observe(self) -> Tensor:
        """(B, obs_space.width) of the current state."""
        rows: Tensor = self._env.observe(self._state)
        return rows

    def step(self, action: Tensor) -> DeviceStep:
        """Advance every copy by one step."""
        state, reward, terminated, truncated = self._stepped(self._state, action)
        reward = reward.to(torch.float32)
        steps, returns = self._steps + 1, self._returns + reward
        if self._max_steps:
            truncated = truncated | (steps >= self._max_steps)
        ended = terminated | truncated
        # No track: progress and laps of these episodes are 0.
        episodes = summed(ended, returns, steps, self._none, self._none)
        final_obs = self._env.observe(state)
        fresh = self._started()
        self._state = {name: torch.where(_along(ended, state[name]), fresh[name], state[name]) for name in fresh}
        self._steps = torch.where(ended, self._zero_steps, steps)
        self._returns = torch.where(ended, self._none, returns)
        code = ended_code(terminated, truncated & ~terminated, torch)
        return DeviceStep(reward, code, final_obs, episodes)

    def state(self) -> State:
        """Return the copies' tensors."""
        own = {f"env.{name}": tensor for name, tensor in self._state.items()}
        return {**own, "steps": self._steps, "returns": self._returns}

    def use_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on with other tensors."""
        self._state = {name: state[f"env.{name}"] for name in self._state}
        self._steps, self._returns = state["steps"], state["returns"]

    def _started(self) -> State:
        started: State = self._env.start(self._uniform((self.num_envs, self._start_draws)))
        return started

    def _stepped(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, Tensor]:
        # Samples of a normal distribution exceed the bounds of an action.
        action = action if self.action_space.choices else action.clip(-1.0, 1.0)
        draws = (self._uniform((self.num_envs, self._step_draws)),) if self._step_draws else ()
        result: tuple[State, Tensor, Tensor, Tensor] = self._env.step(state, action, *draws)
        return result

    # --- the check at the start ---

    @torch.no_grad()
    def _check(self, action: Tensor) -> None:
        """Start and step once; raise ValueError for the first unexpected value."""
        bool_, float_, count = (torch.bool,), (torch.float32, torch.float64), self.num_envs
        rows = (count, self.obs_space.width)
        pixels_or_numbers = (torch.uint8,) if self.obs_space.images else (torch.float32,)
        with _NoWaiting() as watch:  # type: ignore[no-untyped-call]
            started = self._call("start", self._started, watch)
            self._state_of("start", started)
            observed = self._call("observe", lambda: self._env.observe(started), watch)
            self._tensor("observe", "its result", observed, rows, pixels_or_numbers)
            stepped = self._call("step", lambda: self._stepped(started, action), watch)
        if not isinstance(stepped, tuple) or len(stepped) != 4:
            got = f"{len(stepped)} values" if isinstance(stepped, tuple) else type(stepped).__name__
            raise ValueError(f"{self._name}.step returns {got}; expected state, reward, terminated, truncated")
        state, *values = stepped
        self._state_of("step", state)
        if set(state) != set(started):
            raise ValueError(
                f"{self._name}.step returns a state of {_words(state)}; start returns {_words(started)}"
            )
        for key, tensor in started.items():
            self._tensor("step", f"state {key!r}", state[key], tuple(tensor.shape), (tensor.dtype,))
        for what, value, types in zip(
            ("reward", "terminated", "truncated"), values, (float_, bool_, bool_), strict=True
        ):
            self._tensor("step", what, value, (count,), types)

    def _call(self, method: str, function: Callable[[], Any], watch: _NoWaiting | None = None) -> Any:
        """Call a method of the class; raise ValueError with a sentence for any error of it."""
        try:
            return function()
        except torch.OutOfMemoryError:
            raise
        # The class is the user's, and so is whatever it raises.
        except Exception as error:
            if watch is not None and watch.refused:
                raise ValueError(f"{self._name}.{method} {watch.refused}") from error
            raise ValueError(f"{self._name}.{method} raised {type(error).__name__}: {first_line(error)}") from error

    def _state_of(self, method: str, state: Any) -> None:
        if not isinstance(state, dict) or not state or not all(isinstance(key, str) for key in state):
            raise ValueError(
                f"{self._name}.{method} returns {_kind(state)} as the state; expected a dict of tensors by name"
            )
        for key, tensor in state.items():
            self._tensor(method, f"state {key!r}", tensor, None, None)

    def _tensor(
        self,
        method: str,
        what: str,
        value: Any,
        shape: tuple[int, ...] | None,
        types: tuple[torch.dtype, ...] | None,
    ) -> None:
        """Raise ValueError unless ``value`` is a tensor here, of one of the types, of the shape (None: rows)."""
        device = self._none.device
        if not isinstance(value, Tensor):
            raise ValueError(f"{self._name}.{method}: {what} is {_kind(value)}; expected a tensor")  # noqa: TRY004
        if shape is None and (value.ndim == 0 or len(value) != self.num_envs):
            raise ValueError(
                f"{self._name}.{method}: {what} has the shape {tuple(value.shape)}; expected ({self.num_envs}, ...)"
            )
        if shape is not None and tuple(value.shape) != shape:
            raise ValueError(f"{self._name}.{method}: {what} has the shape {tuple(value.shape)}; expected {shape}")
        if types is not None and value.dtype not in types:
            expected = " or ".join(str(dtype) for dtype in types)
            raise ValueError(f"{self._name}.{method}: {what} is of {value.dtype}; expected {expected}")
        if value.device != device:
            raise ValueError(f"{self._name}.{method}: {what} is on {value.device}; expected {device}")

    def _space(self, attribute: str, kind: type) -> Any:
        space = getattr(self._env, attribute, None)
        if not isinstance(space, kind):
            raise ValueError(  # noqa: TRY004  (a spec's value)
                f"{self._name}: {attribute} is {_kind(space)}; expected {kind.__name__} of runtime.rl.spaces"
            )
        return space

    def _number(self, attribute: str) -> int:
        number = getattr(self._env, attribute, _NUMBERS[attribute])
        if type(number) is not int or number < 0:
            raise ValueError(f"{self._name}: {attribute} is {number!r}; expected a whole number from 0")
        return number


class OwnVectorEnv:
    """The same copies for workers and evaluators; see ``runtime.rl.envs.base.VectorEnv`` for the methods."""

    def __init__(self, name: str, kind: type, num_envs: int, options: Mapping[str, Any]) -> None:
        self._generator = torch.Generator()
        arrays = DeviceArrays(
            torch,
            lambda array: torch.from_numpy(array.astype(np.float32) if array.dtype == np.float64 else array),
            lambda shape: torch.rand(shape, generator=self._generator),
        )
        self._env = OwnDeviceEnv(name, kind, num_envs, options, arrays)
        self.num_envs, self.obs_space, self.action_space = num_envs, self._env.obs_space, self._env.action_space
        self.step_seconds = float(getattr(kind, "step_seconds", 0.0))

    @torch.no_grad()
    def reset(self, seed: int) -> NDArray[Any]:
        """Reset every copy."""
        self._generator.manual_seed(seed)
        self._env.start()
        return self._env.observe().numpy().copy()

    @torch.no_grad()
    def step(self, action: NDArray[Any]) -> StepResult:
        """Advance every copy by one step; copies that ended have been reset."""
        before = self._env.state()
        step = self._env.step(torch.from_numpy(np.ascontiguousarray(action)))
        ended, reward = step.ended.numpy(), step.reward.numpy()
        returns, steps = before["returns"].numpy() + reward, before["steps"].numpy() + 1
        episodes = tuple(
            EpisodeSummary(int(copy), int(steps[copy]), float(returns[copy])) for copy in np.flatnonzero(ended)
        )
        # Copies: a class may return its own tensors, which it writes again.
        obs, final_obs = self._env.observe().numpy().copy(), step.final_obs.numpy().copy()
        return StepResult(obs, reward.copy(), ended == 1, ended == 2, final_obs, episodes)


class _NoWaiting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that refuses on every device what a captured step cannot do: wait for it, or copy from the host."""

    refused = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0].removeprefix("aten::")
        by_booleans = name.startswith(("index", "_index_put")) and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
            for indices in args
            if isinstance(indices, list | tuple)
            for index in indices
        )
        if name in _WAITING or by_booleans:
            self.refused = f"waits for the device ({name}): it can neither read a value nor index by booleans"
        if name in _FROM_HOST:
            self.refused = f"copies from the host ({name}): make its constants in __init__"
        if self.refused:
            raise RuntimeError(self.refused)
        return func(*args, **(kwargs or {}))


def _along(ended: Tensor, like: Tensor) -> Tensor:
    """Return (B,) as (B, 1, ...) of as many dimensions as ``like``."""
    return ended.reshape(-1, *(1,) * (like.ndim - 1))


def _words(state: Mapping[str, Tensor]) -> str:
    return ", ".join(sorted(state))


def _kind(value: object) -> str:
    return "missing" if value is None else type(value).__name__
