"""Worker: fetches the policy, rolls out, sends. It steps only if it has credit for the resulting segment.

It acts in NumPy: importing torch would cost every worker seconds and 200 MB.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import SetupError
from runtime.base.gpu_meter import GpuMeter, own_devices
from runtime.base.methods import ImpalaConfig
from runtime.base.metrics import Console, record
from runtime.base.signals import Stop
from runtime.exchange.inference.wire import RemotePolicy
from runtime.exchange.learner_client import LearnerClient
from runtime.rl.algos.actor import CopyStates, NumpyActor
from runtime.rl.algos.plan import Plan
from runtime.rl.buffers.rollout_buffer import rollout_layout
from runtime.rl.datasets.recorder import EpisodeRecorder
from runtime.rl.envs.base import HoldsProcesses, VectorEnv, bare, closing_env
from runtime.rl.roles.launch_context import Context, environment_plan, make_environment
from runtime.rl.roles.remote_inference import remote_policy
from runtime.rl.roles.rollout import FinishedSegment, Rollout
from runtime.rl.roles.step_watch import StepWatch
from runtime.rl.roles.worker_gradients import RolloutGradients

RECORD_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 0.2
"""Longest wait for messages of the learner, which also delays the reaction to a signal."""
EXCHANGE_SECONDS: Final = 0.005
"""Time between two looks for messages within a segment: one at each step is a seventh of a quick worker's CPU."""
WORKER_SEEDS: Final = 1
"""Distinguishes a worker's random numbers from other roles' with the same run seed and index."""


def run(context: Context, stop: Stop, console: Console) -> None:
    """Collect until the learner reports that the run is done or `stop` is set. Raises PeerRefusedError."""
    settings = context.settings
    if settings.collect != "workers":
        raise SetupError(f"collect is {settings.collect}: the learner of this run takes no workers")
    env = make_environment(settings, settings.num_envs, {})
    stop.keep()
    with closing_env(env, stop.is_set):
        _collect(context, env, stop, console)


def _collect(context: Context, env: VectorEnv, stop: Stop, console: Console) -> None:
    settings = context.settings
    plan = environment_plan(settings, env)
    folder = settings.record_experience
    actor, wants_weights = NumpyActor(plan.shape), not settings.remote_inference
    with (
        LearnerClient(
            context, actor, plan.layout, plan.segment_transitions, console, wants_weights=wants_weights
        ) as peer,
        nullcontext() if wants_weights else remote_policy(context, plan, peer.name) as remote,
        nullcontext() if folder is None else EpisodeRecorder(folder, env, settings.environment) as recorder,
    ):
        RolloutWorker(context, plan, env, peer, console, remote, recorder).loop(stop)


class _OvertakenError(Exception):
    """The learner overwrote the weights while they were in use."""


class RolloutWorker:
    """Main loop of a worker process."""

    def __init__(
        self,
        context: Context,
        plan: Plan,
        env: VectorEnv,
        peer: LearnerClient[NumpyActor],
        console: Console,
        remote: RemotePolicy | None = None,
        recorder: EpisodeRecorder | None = None,
    ) -> None:
        # Two independent streams: for the actions, and for the environment.
        seeds = np.random.SeedSequence([context.seed, WORKER_SEEDS, context.index]).generate_state(2)
        self._rng = np.random.default_rng(seeds[0])
        self._env = env
        self._plan = plan
        self._peer = peer
        self._remote = remote
        """Policy at the learner; None if this worker has the weights."""
        self._remote_outputs: NDArray[np.float32] | None = None
        """Its outputs for the current observations."""
        self._states = CopyStates(peer.actor, env.num_envs)
        self._rollout: Rollout | None = None
        self._has_finished = False
        """The latest step completed a segment, which the learner waits for."""
        self._clip_rewards = context.settings.clip_rewards
        self._recorder = recorder
        self._segment_steps, self._seed = context.settings.segment_steps, int(seeds[1])
        self._console = console
        self._gpu = GpuMeter(*own_devices(os.environ))
        self._recorded = time.monotonic()
        self._waited = 0.0
        """Seconds without credit or policy so far."""
        self._env_seconds: Callable[[], float] = lambda: 0.0
        self._counted = (0.0, 0.0)
        """Seconds in the environment and waiting, up to the last record."""
        self._episodes = 0
        self._returns: deque[tuple[int, float]] = deque(maxlen=16)
        self._watch = StepWatch(
            context.settings.environment, lambda: peer.exchange(0.0), self._record_within_step, console
        )

    def loop(self, stop: Stop) -> None:
        """Collect until the run is done or `stop` is set."""
        with self._watch:
            self._loop(stop)

    def _loop(self, stop: Stop) -> None:
        peer = self._peer
        with self._watch.foreign():  # the first reset may take as long as any step
            self._collect = self._collector(self._segment_steps, self._seed)
        stop.keep()
        looked = float("-inf")
        while not stop.is_set() and peer.session.done is None:
            is_too_old = self._remote is None and peer.is_too_old
            # Without credit the worker waits instead of stepping: a waiting segment would only become stale.
            may_step = peer.session.has_credit and not is_too_old and self._has_policy
            now = time.monotonic()
            if not may_step or self._has_finished or now - looked >= EXCHANGE_SECONDS:
                looked, self._has_finished = now, False
                peer.exchange(0.0 if may_step else WAIT_SECONDS)
            if not may_step:
                self._waited += time.monotonic() - now
            # Gradients take so long that the learner would often overwrite shared weights during the computation.
            peer.use_newest_weights(in_place=self._rollout is not None)
            if may_step:
                self._step(stop)
            if now - self._recorded >= RECORD_SECONDS:
                self._record()
        peer.leave(stop.reason or "the run is done")
        self._record()
        self._console.say(f"worker ends: {peer.session.done or stop.reason}")

    def _step(self, stop: Stop) -> None:
        if self._remote is not None and self._rollout is not None and self._peer.session.policy_version:
            answer = self._remote.outputs(self._rollout.obs, lambda: self._may_wait(stop))
            if answer is None:
                return
            self._remote_outputs, self._peer.policy_version = answer
        self._watch.begin()
        try:
            finished = self._collect(self._peer.policy_version)
        except _OvertakenError:
            return  # not stepped; the loop fetches the newest weights and tries again
        finally:
            self._watch.end()
        self._peer.env_steps += self._steps_each
        if finished is not None:
            self._has_finished = True
            self._peer.session.queue_segment(finished.segment, finished.memory)
            if finished.segment.episodes:
                self._episodes += finished.segment.episodes
                self._returns.append((finished.segment.episodes, finished.segment.return_sum))

    def _collector(self, steps: int, seed: int) -> Callable[[int], FinishedSegment | None]:
        """Return a function that takes one step with the policy of a version, and returns full segments."""
        plan, env = self._plan, self._env
        self._steps_each = env.num_envs
        if isinstance(plan.config, ImpalaConfig) and plan.sends_gradients:
            from runtime.rl.algos.impala import Impala  # imports torch, which no other worker needs

            method = Impala(replace(plan.shape, others=0), plan.config, seed)
            layout = rollout_layout(env.obs_space, env.action_space)
            rollouts = RolloutGradients(env, layout, steps, seed, method)
            self._env_seconds = lambda: rollouts.env_seconds
            return lambda version: rollouts.step(self._act, self._peer.actor, version)
        rollout = self._rollout = Rollout(
            env,
            plan.layout,
            steps,
            seed,
            n_step=plan.n_step,
            gamma=plan.gamma,
            states=self._states,
            recorder=self._recorder,
            clip_rewards=self._clip_rewards,
        )
        self._env_seconds = lambda: rollout.env_seconds
        return lambda version: rollout.step(self._act, version)

    @property
    def _has_policy(self) -> bool:
        """True if there is a policy to act with. Off-policy workers start with random actions and need none."""
        version = self._peer.policy_version if self._remote is None else self._peer.session.policy_version
        return bool(version) or not self._plan.is_on_policy

    def _may_wait(self, stop: Stop) -> bool:
        """Serve the session while no answer arrives; return False once the process must end."""
        self._peer.exchange(0.0)
        return not stop.is_set() and self._peer.session.done is None

    def _act(self, obs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """Return exploring actions of the newest policy and their log probability; random ones before the first."""
        if not self._peer.policy_version:
            return self._plan.action_space.at_random(len(obs), self._rng), None
        if self._remote_outputs is not None:
            outputs, self._remote_outputs = self._remote_outputs, None
            return self._draw(outputs)
        outputs = self._states.outputs(obs)
        # After the use, not before: only then is it certain that all weights came from one version.
        if self._peer.is_overtaken:
            raise _OvertakenError
        return self._draw(outputs)

    def _draw(self, outputs: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """Draw actions from the network's outputs, with their log probability for on-policy methods."""
        if self._plan.is_on_policy:
            return self._peer.actor.draw_with_log_prob(outputs, self._rng)
        return self._peer.actor.draw(outputs, self._rng), None

    def _record_within_step(self) -> None:
        """Write a record from the watch's thread, while the environment is at work."""
        if not isinstance(bare(self._env), HoldsProcesses):  # its report is not made for two threads
            self._record()

    def _shares(self, seconds: float) -> dict[str, float]:
        """Return the shares of a time in which this worker stepped its environment and in which it waited."""
        counted = self._env_seconds(), self._waited
        (environment, waiting), self._counted = self._counted, counted
        spent = counted[0] - environment, counted[1] - waiting
        names = "environment_share", "waiting_share"
        return {
            name: round(min(1.0, part / max(seconds, 1e-9)), 4) for name, part in zip(names, spent, strict=True)
        }

    def _record(self) -> None:
        before, self._recorded = self._recorded, time.monotonic()
        count = sum(episodes for episodes, _ in self._returns)
        source = bare(self._env)
        fields = {
            "num_envs": self._env.num_envs,
            "env_steps": self._peer.env_steps,
            "env_steps_per_second": self._peer.steps_per_second(),
            "episodes": self._episodes,
            "mean_return": sum(total for _, total in self._returns) / count if count else None,
            "policy_version": self._peer.policy_version,
            **self._shares(self._recorded - before),
            **(source.report() if isinstance(source, HoldsProcesses) else {}),
            **self._gpu.report(),
            **self._watch.fields(),
        }
        self._console.record(record("worker", fields))
