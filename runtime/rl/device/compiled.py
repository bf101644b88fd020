"""Steps of environments on a device, compiled by torch: many small kernels become a few large ones.

Racing's step launches about 250 kernels, each of which reads and writes all cars. TorchInductor fuses them: on an
H200 the same step of 65,536 cars as a CUDA graph ran six times as often (docs/gpu.md). Compiling takes half a
minute and requires Triton and a C compiler, so it is meant for large runs; a learner without them continues
uncompiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from runtime.base.errors import first_line
from runtime.rl.envs.device import DeviceArrays, DeviceEnv, DeviceStep

LEAST_COPIES: Final = 4_096
"""Number of copies from which ``compile: auto`` compiles, because such runs are long. It depends on the settings
only, so that repeated and resumed runs use the same kernels.
"""


def is_compiled(setting: bool | str, device: str, copies: int) -> bool:
    """Return whether the setting ``compile`` applies for that many copies on ``device``."""
    if isinstance(setting, bool):
        return setting
    return torch.device(device).type == "cuda" and copies >= LEAST_COPIES


def compiled(env: DeviceEnv, draws: Draws, name: str, say: Callable[[str], None]) -> DeviceEnv:
    """Return ``env`` with a compiled step; if torch cannot compile it, say why and return ``env`` unchanged.

    ``env`` was created with ``draws.arrays``; ``name`` is the environment's name.
    """
    say(f"compiling the step of {name}: half a minute the first time")
    state = env.state()
    try:
        return CompiledEnv(env, draws)
    except torch.OutOfMemoryError:
        raise
    # Torch, Triton and the C compiler fail in different ways, and an uncompiled step is only slower.
    except Exception as error:  # noqa: BLE001
        say(f"the step of {name} could not be compiled ({_reason(error)}); the learner continues uncompiled")
        draws.use(())
        env.use_state(state)
        return env


def _reason(error: Exception) -> str:
    """Return type and first line of the cause of torch's error, which names the missing compiler."""
    inner = getattr(error, "inner_exception", None) or error
    return f"{type(inner).__name__}: {first_line(inner)}"


class Draws:
    """An environment's random numbers, which can be drawn for a whole step in advance.

    A function compiled by torch cannot draw from a generator. Numbers drawn before it in the same order are the
    ones the function would have drawn, so compiled and uncompiled runs of a seed see the same episodes.
    """

    def __init__(self, arrays: DeviceArrays) -> None:
        self._drawing = arrays
        self.arrays = DeviceArrays(arrays.xp, arrays.convert, self._next, self._part)
        """The arrays with which to create an environment."""
        self.has_parts = False
        """True once a step named parts that must not be compiled together."""
        self._zeros: list[Tensor] | None = None
        self._drawn: tuple[Tensor, ...] = ()
        self._taken = 0

    def examples(self, function: Callable[[], object]) -> tuple[Tensor, ...]:
        """Return zeros with the shapes that ``function`` draws, in order; no generator advances."""
        zeros: list[Tensor] = []
        self._zeros = zeros
        try:
            function()
        finally:
            self._zeros = None
        return tuple(zeros)

    def draw(self, examples: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Draw numbers with the examples' shapes."""
        return tuple(self._drawing.uniform(tuple(example.shape)) for example in examples)

    def use(self, drawn: tuple[Tensor, ...]) -> None:
        """Return ``drawn`` one after another from now on; if empty, draw on demand."""
        self._drawn, self._taken = drawn, 0

    def _part(self) -> None:
        self.has_parts = True
        if torch.compiler.is_compiling():  # otherwise the name itself would import the compiler
            torch._dynamo.graph_break()  # noqa: SLF001  (its documented name)

    def _next(self, shape: tuple[int, ...]) -> Tensor:
        if self._zeros is not None:
            zeros: Tensor = self._drawing.convert(np.zeros(shape, dtype=np.float32))
            self._zeros.append(zeros)
            return zeros
        if not self._drawn:
            drawn: Tensor = self._drawing.uniform(shape)
            return drawn
        self._taken += 1
        return self._drawn[self._taken - 1]


class CompiledEnv:
    """Environment whose step and the following observation are one compiled function.

    See ``runtime.rl.envs.device.DeviceEnv`` for the methods. Results agree with the uncompiled environment's to
    float32 rounding: fused kernels contract products and sums.
    """

    def __init__(self, env: DeviceEnv, draws: Draws) -> None:
        """Compile; raises torch's error if that fails."""
        self.num_envs, self.obs_space, self.action_space = env.num_envs, env.obs_space, env.action_space
        self._env, self._draws = env, draws
        self._state: dict[str, Tensor] = dict(env.state())
        self._names = tuple(self._state)
        self._obs: Tensor | None = None
        example = next(iter(self._state.values()))
        action = torch.zeros(
            (env.num_envs, env.action_space.size),
            dtype=torch.int32 if env.action_space.choices else torch.float32,
            device=example.device,
        )
        with torch.no_grad():
            self._examples = draws.examples(lambda: env.step(action))
            # As a whole, unless the environment names parts: a graph break for another reason would silently launch
            # the kernels one by one.
            self._function = torch.compile(self._step, dynamic=False, fullgraph=not draws.has_parts)
            self._function(action, self._examples, *self._state.values())
        self._restore()

    def start(self) -> None:
        """Start a new episode in every copy."""
        self._restore()
        self._env.start()
        self.use_state(self._env.state())

    def observe(self) -> Tensor:
        """(B, obs_space.width) of the current state."""
        if self._obs is None:
            self._restore()
            self._obs = self._env.observe()
        return self._obs

    def step(self, action: Tensor) -> DeviceStep:
        """Advance every copy by one step."""
        drawn = self._draws.draw(self._examples)
        reward, ended, final_obs, episodes, self._obs, state = self._function(action, drawn, *self._state.values())
        self._state = dict(zip(self._names, state, strict=True))
        return DeviceStep(reward, ended, final_obs, episodes)

    def state(self) -> dict[str, Tensor]:
        """Return the copies' arrays."""
        return self._state

    def use_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with other arrays."""
        self._state = {name: state[name] for name in self._names}
        self._obs = None

    def _restore(self) -> None:
        """Undo the compiled function's effect on the environment: it leaves results that the next call
        overwrites.
        """
        self._draws.use(())
        self._env.use_state(self._state)

    def _step(self, action: Tensor, drawn: tuple[Tensor, ...], *state: Tensor) -> tuple[Any, ...]:
        """Step and observe as a pure function of the arguments, which torch compiles."""
        env = self._env
        self._draws.use(drawn)
        env.use_state(dict(zip(self._names, state, strict=True)))
        step = env.step(action)
        episodes = tuple(value.to(torch.float64) for value in step.episodes)
        return step.reward, step.ended, step.final_obs, episodes, env.observe(), tuple(env.state().values())
