"""A worker: fetch the policy, roll out, send. It steps only when the learner has room for what comes of it.

It acts in NumPy: importing torch here would cost every worker seconds and 200 MB.
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

from runtime.algos.configs import ImpalaConfig, SGDConfig
from runtime.algos.plan import Plan
from runtime.envs.base import Attended, VectorEnv, attended
from runtime.gpu import GpuMeter, own_device
from runtime.gradient_work import ExampleGradients, HasExamples, RolloutGradients
from runtime.inference_channel import QuestionChannel
from runtime.metrics import Console, record
from runtime.peer import Peer
from runtime.process import Context, UsageError, environment_plan, make_environment
from runtime.questions import proof_of
from runtime.remote import RemotePolicy, shapes_of
from runtime.rollout import Collected, Rollout
from runtime.rollouts import rollout_layout
from runtime.stopping import Stop

RECORD_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 0.2
"""Longest wait for the learner's word; a signal is seen within it."""
WORKER_SEEDS: Final = 1
"""Keeps a worker's random numbers apart from those of other roles with the same run seed and index."""


def run(context: Context, stop: Stop, console: Console) -> None:
    """Collect until the learner says that the run is done or `stop` is set. Raises RefusedError."""
    settings = context.settings
    env = make_environment(settings, settings.num_envs, {})
    plan = environment_plan(settings, env)
    wants_weights = not settings.remote_inference
    with (
        attended(env, stop.is_set),
        Peer(
            context, plan.shape, plan.layout, plan.segment_transitions, console, wants_weights=wants_weights
        ) as peer,
        nullcontext() if wants_weights else _channel(context, plan, peer) as channel,
    ):
        remote = RemotePolicy(channel, shapes_of(plan, settings), _proof(context)) if channel else None
        Worker(context, plan, env, peer, console, remote).loop(stop)


def _channel(context: Context, plan: Plan, peer: Peer) -> QuestionChannel:
    largest = shapes_of(plan, context.settings).answer_bytes
    return QuestionChannel(context.endpoint, peer.name, largest, context.peer_keys())


def _proof(context: Context) -> bytes:
    return proof_of(context.token, context.run_id)


class _OvertakenError(Exception):
    """The learner has written over the weights while they were used."""


class Worker:
    """The loop of one worker process."""

    def __init__(
        self,
        context: Context,
        plan: Plan,
        env: VectorEnv,
        peer: Peer,
        console: Console,
        remote: RemotePolicy | None = None,
    ) -> None:
        seeds = np.random.SeedSequence([context.seed, WORKER_SEEDS, context.index]).generate_state(2)
        self._rng = np.random.default_rng(seeds[0])
        self._env = env
        self._plan = plan
        self._peer = peer
        self._remote = remote
        """Who is asked what the policy says; None where the policy is here."""
        self._said: NDArray[np.float32] | None = None
        """What it said to the present observations."""
        self._rollout: Rollout | None = None
        self._collect = self._collector(context.settings.segment_steps, int(seeds[1]))
        self._console = console
        self._gpu = GpuMeter(own_device(os.environ))
        self._recorded = time.monotonic()
        self._episodes = 0
        self._returns: deque[tuple[int, float]] = deque(maxlen=16)

    def loop(self, stop: Stop) -> None:
        """Collect until told to end."""
        peer = self._peer
        while not stop.is_set() and peer.finished is None:
            is_too_old = self._remote is None and peer.is_too_old
            may_step = peer.session.has_credit and not is_too_old and self._has_policy
            peer.exchange(0.0 if may_step else WAIT_SECONDS)
            peer.adopt(in_place=self._rollout is not None)  # a gradient takes longer than a policy may be lent
            if may_step:
                self._step(stop)
            if time.monotonic() - self._recorded >= RECORD_SECONDS:
                self._record()
        peer.leave(stop.reason or "the run is done")
        self._record()
        self._console.say(f"worker ends: {peer.finished or stop.reason}")

    def _step(self, stop: Stop) -> None:
        if self._remote is not None and self._rollout is not None and self._peer.session.policy_version:
            answered = self._remote.outputs(self._rollout.obs, lambda: self._may_wait(stop))
            if answered is None:
                return
            self._said, self._peer.policy_version = answered
        try:
            finished = self._collect(self._peer.policy_version)
        except _OvertakenError:
            return  # nothing was stepped: newer weights are adopted and asked
        self._peer.env_steps += self._steps_each
        if finished is not None:
            self._peer.offer(finished.segment, finished.memory)
            if finished.segment.episodes:
                self._episodes += finished.segment.episodes
                self._returns.append((finished.segment.episodes, finished.segment.return_sum))

    def _collector(self, steps: int, seed: int) -> Callable[[int], Collected | None]:
        """Return what takes a step with the policy of a version: of the environment, or of a gradient."""
        plan, env = self._plan, self._env
        self._steps_each = env.num_envs
        if isinstance(plan.config, SGDConfig):
            if not isinstance(env, HasExamples):
                raise UsageError("sgd learns from examples, and this environment has none; digits has")
            examples = ExampleGradients(env, plan.config.batch_size, seed)
            self._steps_each = plan.config.batch_size
            return lambda version: examples.step(self._peer.actor, version)
        if isinstance(plan.config, ImpalaConfig) and plan.sends_gradients:
            from runtime.algos.impala import Impala

            method = Impala(replace(plan.shape, others=0), plan.config, seed)
            layout = rollout_layout(env.obs_space, env.action_space)
            rollouts = RolloutGradients(env, layout, steps, seed, method)
            return lambda version: rollouts.step(self._act, self._peer.actor, version)
        rollout = self._rollout = Rollout(env, plan.layout, steps, seed, n_step=plan.n_step, gamma=plan.gamma)
        return lambda version: rollout.step(self._act, version)

    @property
    def _has_policy(self) -> bool:
        """Whether there is something to act by; on-policy data must come from the learner's own policy."""
        version = self._peer.policy_version if self._remote is None else self._peer.session.policy_version
        return bool(version) or not self._plan.is_on_policy

    def _may_wait(self, stop: Stop) -> bool:
        """Look after the session while no answer comes, and say whether one is still wanted."""
        self._peer.exchange(0.0)
        return not stop.is_set() and self._peer.finished is None

    def _act(self, obs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """The newest policy with its exploration, or random actions as long as there is none."""
        if not self._peer.policy_version:
            return self._plan.action_space.at_random(len(obs), self._rng), None
        if self._said is not None:
            said, self._said = self._said, None
            return self._draw(said)
        outputs = self._peer.actor.outputs(obs)
        if self._peer.is_overtaken:
            raise _OvertakenError
        return self._draw(outputs)

    def _draw(self, outputs: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """Draw actions of what the network gave, with their probability for a method that asks for it."""
        if self._plan.is_on_policy:
            return self._peer.actor.draw_with_log_prob(outputs, self._rng)
        return self._peer.actor.draw(outputs, self._rng), None

    def _record(self) -> None:
        self._recorded = time.monotonic()
        count = sum(episodes for episodes, _ in self._returns)
        fields = {
            "env_steps": self._peer.env_steps,
            "env_steps_per_second": self._peer.steps_per_second(),
            "episodes": self._episodes,
            "mean_return": sum(total for _, total in self._returns) / count if count else None,
            "policy_version": self._peer.policy_version,
            **(self._env.report() if isinstance(self._env, Attended) else {}),
            **self._gpu.report(),
        }
        self._console.record(record("worker", fields))
