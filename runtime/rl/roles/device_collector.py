"""Collection by the learner itself: environment, policy and rollout on its device, as one captured function.

As in Anakin (Hessel et al. 2021, *Podracer architectures*, arXiv:2104.06272): if environment and networks share a
device, acting and learning take turns and no data leaves it. One rollout of all copies is one launch; its columns
stay in place, and the update reads them there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.base import contract
from runtime.base.errors import SetupError
from runtime.base.training import Settings
from runtime.exchange.learner_server import LearnerServer
from runtime.exchange.protocol.segment_schema import Layout
from runtime.rl.algos.actor import HALF_LOG_2_PI, ActorShape
from runtime.rl.algos.networks import Network, squashed_log_std
from runtime.rl.algos.plan import Plan, Store
from runtime.rl.buffers.replay import Replay
from runtime.rl.buffers.ring_index import GOES_ON
from runtime.rl.buffers.rollout_buffer import DISCOUNTED, DeviceRollouts
from runtime.rl.device.accelerator import check_generator, load_generator, saved_generators
from runtime.rl.device.captured import Captured
from runtime.rl.device.compiled import Draws, compiled, is_compiled
from runtime.rl.envs.device import DeviceArrays
from runtime.rl.envs.registry import make_device_env

COLLECTOR_SEEDS: Final = 3
"""Distinguishes the collector's random numbers from other roles' with the same run seed."""
_SUMS: Final = 5
"""Length of `DeviceStep.episodes`: episodes, returns, steps, metres, laps."""

Columns = dict[str, Tensor]
"""Columns of a rollout by name, (T, N, …): T steps of N copies."""


class DeviceCollector:
    """Copies of an environment on a device, and their rollout with the newest policy."""

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        seed: int,
        device: str,
        weights: Callable[[], Tensor],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Create the copies; the first rollout is captured. ``weights`` returns the policy's weights, on
        ``device``.

        ``say`` reports whether their step was compiled.

        Raises SetupError if the environment does not support devices, or the settings do not fit it.
        """
        self._plan, self._device = plan, device
        self._steps, self._count = settings.segment_steps, settings.num_envs
        self._weights = weights
        self._is_captured = settings.cuda_graphs
        self._generator = torch.Generator(device)
        seeds = np.random.SeedSequence([seed, COLLECTOR_SEEDS]).generate_state(1)
        self._generator.manual_seed(int(seeds[0]))
        draws = Draws(torch_arrays(device, self._generator))
        try:
            self._env = make_device_env(
                settings.environment, self._count, settings.environment_options, draws.arrays
            )
        except (TypeError, ValueError) as error:
            raise SetupError(f"{contract.ENV_CONFIG}: {error}") from error
        if is_compiled(settings.compile, device, self._count):
            self._env = compiled(self._env, draws, settings.environment, say)
        self._policy = PolicySampler(plan.shape, device, self._generator)
        self._columns = _empty_columns(plan.layout, self._steps, self._count, device)
        # Copied: a step may return one tensor under several names, and these are written in place.
        self._state = {name: tensor.clone() for name, tensor in self._env.state().items()}
        if DISCOUNTED in self._columns:
            self._state[DISCOUNTED] = torch.zeros(self._count, device=device)
        # float64, because the sums grow until they are read.
        self._sums = torch.zeros(_SUMS, dtype=torch.float64, device=device)
        self._rollouts: dict[bool, Captured] = {}
        self._episodes = EpisodeMeans()

    @property
    def transitions(self) -> int:
        """Number of env steps of one rollout."""
        return self._steps * self._count

    def collect(self, *, at_random: bool = False) -> Columns:
        """Take one rollout with the newest policy, or with uniformly random actions; the next one overwrites its
        columns.
        """
        weights = self._weights().detach()
        rollout = self._rollouts.get(at_random)
        if rollout is None:
            rollout = self._rollouts[at_random] = Captured(
                lambda newest: self._roll_out(newest, at_random=at_random),
                weights,
                generators=[self._generator],
                state=[*self._state.values(), self._sums],
                enabled=self._is_captured,
            )
        rollout(weights)
        return self._columns

    @torch.no_grad()
    def _roll_out(self, weights: Tensor, *, at_random: bool) -> None:
        """Step all copies; everything that outlives a rollout is written in place."""
        env, columns, policy = self._env, self._columns, self._policy
        policy.load(weights)
        env.use_state(self._state)
        draw = policy.draw_at_random if at_random else policy.draw
        for t in range(self._steps):
            rows = columns["obs"][t]
            rows.copy_(env.observe())
            action, log_prob = draw(rows)
            step = env.step(action)
            columns["action"][t].copy_(action)
            columns["reward"][t].copy_(step.reward)
            columns["next_obs"][t].copy_(step.final_obs)
            columns["ended"][t].copy_(step.ended)
            if "log_prob" in columns:
                columns["log_prob"][t].copy_(log_prob)
            if DISCOUNTED in columns:
                returns = self._state[DISCOUNTED].mul_(self._plan.gamma).add_(step.reward)
                columns[DISCOUNTED][t].copy_(returns)
                returns.mul_(step.ended == GOES_ON)
            self._sums += torch.stack([value.to(torch.float64) for value in step.episodes])
        for name, tensor in env.state().items():
            self._state[name].copy_(tensor)
        if "steps" in columns:
            sum_over_steps(columns, self._plan.n_step, self._plan.gamma)

    def live_state(self) -> dict[str, Tensor]:
        """Return the state that the next rollout depends on, by name: tensors that rollouts modify."""
        return {**self._state, "episodes": self._sums, **saved_generators({"generator": self._generator})}

    def load_state(self, state: Mapping[str, Tensor]) -> list[str]:
        """Continue from a result of ``live_state``, on this or another device; return sentences about differences.

        Copies that do not fit, for example after a change of settings, restart: the learned state does not depend
        on them.
        """
        tensors = {**self._state, "episodes": self._sums}
        if any(name not in state or state[name].shape != tensor.shape for name, tensor in tensors.items()):
            return [f"the checkpoint has no {self._count} copies of this environment: they restart"]
        try:
            check_generator("generator", self._generator, state)
        except (KeyError, ValueError) as error:
            return [f"the copies of the environment restart: {error}"]
        for name, tensor in tensors.items():
            tensor.copy_(state[name])
        note = load_generator("generator", self._generator, state)
        return [note] if note else []

    def metric_fields(self) -> dict[str, Any]:
        """Return statistics of the episodes since the last call: one copy from the device per record."""
        return self._episodes.fields(self.taken_sums().tolist())

    def taken_sums(self) -> Tensor:
        """Return the sums over the episodes since the last call."""
        sums = self._sums.clone()
        self._sums.zero_()
        return sums


class EpisodeMeans:
    """Means over the episodes that ended between two records; if none ended, those of the previous record."""

    def __init__(self) -> None:
        self._latest: dict[str, float | None] = {"mean_return": None, "mean_length": None, "mean_progress": None}

    def fields(self, sums: list[float]) -> dict[str, Any]:
        """Return the fields of a record from the sums in `DeviceStep.episodes`."""
        count, returns, steps, progress, laps = sums
        if count:
            means = (returns / count, steps / count, progress / count)
            self._latest = dict(zip(self._latest, means, strict=True))
        return {**self._latest, "episodes": round(count), "laps": round(laps) if math.isfinite(laps) else 0}


class DataSource(Protocol):
    """Source of a learner's data: the exchange with its workers, or its own collector."""

    def await_data(self, updates: int, timeout_seconds: float) -> bool:
        """Return True once there is data for one more update than ``updates``; wait for about the timeout."""


class DeviceSource:
    """Data source without workers: collects, stores and counts, alternating with the updates."""

    def __init__(self, collector: DeviceCollector, exchange: LearnerServer, store: Store) -> None:
        self._collector = collector
        self._exchange = exchange
        self._store = store

    def await_data(self, updates: int, timeout_seconds: float) -> bool:
        """Collect data for one more update than ``updates``, for about the timeout; return True if it is complete.

        Raises RuntimeError if the exchange with the evaluators has failed.
        """
        exchange, store = self._exchange, self._store
        if isinstance(store, DeviceRollouts):
            # On-policy data is used once: whatever the counters say, an update needs a new rollout.
            if not len(store):
                store.offer(self._collector.collect())
                exchange.collected(self._collector.transitions)
            exchange.await_data(updates, 0.0)
            return True
        deadline = time.monotonic() + timeout_seconds
        while not (has_data := exchange.await_data(updates, 0.0)):
            # Off-policy methods start with random actions, like their workers.
            columns = self._collector.collect(at_random=not updates)
            exchange.locked_sample(partial(_put, store, columns))
            exchange.collected(self._collector.transitions)
            if time.monotonic() > deadline:
                return exchange.await_data(updates, 0.0)
        return has_data


def _put(store: Store, columns: Columns) -> None:
    """Store a rollout's transitions in a replay buffer."""
    assert isinstance(store, Replay)  # noqa: S101  (what learns by rollouts has a store for them)
    store.put_steps(**columns)


def _empty_columns(layout: Layout, steps: int, count: int, device: str) -> Columns:
    columns = {}
    assert layout.tail is not None  # noqa: S101  (what collects has observations)
    for field in (*layout.fields, replace(layout.tail, name="next_obs")):
        dtype = torch.from_numpy(np.empty(0, field.dtype)).dtype
        columns[field.name] = torch.zeros((steps, count, *field.shape_tail), dtype=dtype, device=device)
    return columns


class PolicySampler:
    """Draws the same actions as ``NumpyActor``, in tensors. Nothing waits for the device, so it can be captured."""

    def __init__(self, shape: ActorShape, device: str, generator: torch.Generator) -> None:
        self.shape = shape
        self._generator = generator
        self._network = Network(shape, torch.Generator().manual_seed(0), device)

    def load(self, weights: Tensor) -> None:
        """Copy in the policy's weights, in the layout of ``ActorShape.parts``."""
        self._network.arena.flat.copy_(weights)

    def draw(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions (B, act_dim) for observations (B, obs_dim), and the log probability (density) of each,
        (B,).

        Probabilities of a squashed Gaussian are zeros: off-policy methods do not need them.
        """
        out = self._network(rows)
        if self.shape.head == "categorical":
            return self._choose(out)
        if self.shape.head == "greedy":
            return self._choose_greedily(out), torch.zeros_like(out[:, 0])
        if self.shape.head == "deterministic":
            action = out.tanh()
            noise = torch.randn(action.shape, generator=self._generator, device=action.device)
            noisy = torch.addcmul(action, self._network.drawing, noise)
            return noisy.clamp_(-1.0, 1.0), torch.zeros_like(action[:, 0])
        if self.shape.head == "gaussian":
            mean, log_std = out, self._network.drawing.expand_as(out)
        else:
            mean, scale = out.chunk(2, dim=1)
            log_std = squashed_log_std(scale)
        noise = torch.randn(mean.shape, generator=self._generator, device=mean.device)
        action = torch.addcmul(mean, log_std.exp(), noise)
        if self.shape.head == "squashed":
            return action.tanh_(), torch.zeros_like(action[:, 0])
        return action, -(0.5 * noise.square() + log_std + HALF_LOG_2_PI).sum(dim=1)

    def draw_at_random(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Uniformly random actions as ``ActionSpace.at_random`` draws them, and zeros."""
        if self.shape.choices:
            return self._choose(torch.zeros((len(rows), self.shape.outputs), device=rows.device))
        shape = (len(rows), self.shape.act_dim)
        draws = torch.rand(shape, generator=self._generator, device=rows.device)
        return 2.0 * draws - 1.0, torch.zeros_like(draws[:, 0])

    def _choose_greedily(self, values: Tensor) -> Tensor:
        """(B, 1) int32: the choice with the largest value, or a random one for a share of the rows."""
        best = values.argmax(dim=1, keepdim=True)
        draws = torch.rand((2, *best.shape), generator=self._generator, device=values.device)
        anything = (draws[1] * values.shape[1]).long().clamp_(max=values.shape[1] - 1)
        return torch.where(draws[0] < self._network.drawing, anything, best).to(torch.int32)

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """One choice (B, groups) int32 per group of logits, and the log probability of all of them together,
        (B,).
        """
        chosen, log_probs = [], []
        for part in torch.split(logits, list(self.shape.choices), dim=1):
            # Gumbel-max trick, as in NumpyActor: minus the logarithm of an exponential variable is a Gumbel
            # variable.
            noise = torch.empty_like(part).exponential_(generator=self._generator)
            choice = (part - noise.log()).argmax(dim=1, keepdim=True)
            log_probs.append(part.log_softmax(dim=1).gather(1, choice).squeeze(1))
            chosen.append(choice.to(torch.int32))
        return torch.cat(chosen, dim=1), sum(log_probs[1:], log_probs[0])


def sum_over_steps(columns: Mapping[str, Tensor], n_step: int, gamma: float) -> None:
    """Sum rewards over up to ``n_step`` steps of the same episode, in place; fewer at the end of a rollout.

    ``columns`` are (T, N, …); ``ended`` is 0 if the episode continues. ``steps`` becomes the number of summed
    rewards: with it the replay finds the last of them and the observation after it.
    """
    reward, steps, ended = columns["reward"], columns["steps"], columns["ended"]
    single, length = reward.clone(), len(reward)
    steps.fill_(1)
    goes_on = ended == 0
    for ahead in range(1, min(n_step, length)):
        # Row t looks `ahead` steps further; the last rows of a rollout have fewer steps to look at.
        takes = goes_on[:-ahead].clone()
        reward[:-ahead] += gamma**ahead * single[ahead:] * takes
        steps[:-ahead] += takes
        goes_on[:-ahead] = takes & (ended[ahead:] == 0)
        goes_on[-ahead:].fill_(False)  # an assignment would make a tensor of the value on the host first


def torch_arrays(device: str, generator: torch.Generator) -> DeviceArrays:
    """Return torch's arrays on ``device``; random numbers come from ``generator``, which is on the same device."""

    def convert(array: NDArray[Any]) -> Tensor:
        # float32 throughout: consumer GPUs compute float64 at 1/64 of the float32 rate, and in float32 positions
        # within a kilometre are exact to 0.1 mm.
        single = array.astype(np.float32) if array.dtype == np.float64 else array
        return torch.tensor(single, device=device)

    def uniform(shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    return DeviceArrays(torch, convert, uniform)
