"""Parameter server: one shard of the weights, updated by each gradient as it arrives."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.base import contract
from runtime.base.addresses import Endpoint, parse
from runtime.base.atomic_files import lock_folder
from runtime.base.errors import InterruptedWorkError, NotFiniteError, SetupError
from runtime.base.launch_context import LaunchContext
from runtime.base.metrics import Console, record
from runtime.base.signals import Stop
from runtime.exchange.learner_server import LearnerServer
from runtime.exchange.machines.member_state import Accounts, SessionTerms
from runtime.exchange.transport import curve_keys
from runtime.jobs.parameter_server.rank_context import LoggedConsole, PsRank
from runtime.rl.buffers.rollout_buffer import Gradients
from runtime.rl.checkpoints.checkpoint_files import Checkpoints
from runtime.rl.checkpoints.counters import Counters, next_epoch, read_journal, write_journal
from runtime.rl.roles.rate_limiter import RateLimiter

_BETAS: Final = (0.9, 0.999)
_EPSILON: Final = 1e-8


@dataclass(slots=True)
class Adam:
    """Weights and the two moments of their gradients, each (size,)."""

    weights: NDArray[np.float32]
    lr: float
    steps: int = 0
    mean: NDArray[np.float32] = field(init=False)
    square: NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        """Start with zero moments."""
        self.mean = np.zeros_like(self.weights)
        self.square = np.zeros_like(self.weights)

    def step(self, gradient: NDArray[np.float32]) -> None:
        """Move the weights against ``gradient`` (size,)."""
        first, second = _BETAS
        self.steps += 1
        self.mean += (1 - first) * (gradient - self.mean)
        self.square += (1 - second) * (np.square(gradient) - self.square)
        # Algorithm 1 with both bias corrections written out; learners use torch's fused version.
        scale = np.sqrt(self.square / (1 - second**self.steps)) + _EPSILON
        self.weights -= (self.lr / (1 - first**self.steps)) * self.mean / scale

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of everything that a step changes."""
        arrays = {"weights": self.weights, "mean": self.mean, "square": self.square}
        return {**{name: array.copy() for name, array in arrays.items()}, "steps": np.array(self.steps)}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Load a result of `arrays`. Raises ValueError if the size differs."""
        for name, mine in (("weights", self.weights), ("mean", self.mean), ("square", self.square)):
            if arrays[name].shape != mine.shape:
                raise ValueError(f"it holds {arrays[name].shape[0]} weights, and this shard has {mine.shape[0]}")
            mine[:] = arrays[name]
        self.steps = int(arrays["steps"])


RECORD_SECONDS: Final = 2.0
CHECKPOINT_SECONDS: Final = 10.0
CHECKPOINTS_KEPT: Final = 3
WAIT_SECONDS: Final = 0.2
WAITING_GRADIENTS: Final = 4
"""Gradients that may wait in addition to the one being applied; more would only become stale."""
FAREWELL_SECONDS: Final = (2.0, 30.0)
"""How long a finished server stays: the minimum, for late workers, and the maximum, for connected ones."""
LOCK_SECONDS: Final = 10.0


def run(place: PsRank, stop: Stop, console: Console) -> int:
    """Serve until the last step, and return the exit code. Raises the same errors with a sentence as the
    learner.
    """
    context = place.servers[place.index]
    place.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as holds:
        for folder in {place.folder, context.endpoint.folder or place.folder}:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            holds.enter_context(lock_folder(folder, LOCK_SECONDS, stop.is_set))
        logged = LoggedConsole(place.log, console)
        holds.callback(logged.close)
        server = Server(place, context, logged)
        holds.callback(server.close)
        server.loop(stop)
    return contract.EXIT_DONE


class Server:
    """State and main loop of one server."""

    def __init__(self, place: PsRank, context: LaunchContext, console: Console) -> None:
        self._place, self._console = place, console
        self._steps = place.hyper.train_steps
        self._joiners = context.joiners
        number = place.index
        layout = place.layout(number)
        self._adam = Adam(place.first_weights()[place.shard(number)].copy(), place.hyper.learning_rate)
        self._store = Gradients(layout, 1)
        self._checkpoints = Checkpoints(place.folder / "checkpoints", CHECKPOINTS_KEPT)
        self._counters, accounts = self._resume()
        terms = SessionTerms(
            run=context.run,
            run_id=context.run_id,
            token=context.token,
            epoch=self._counters.epoch,
            environment=context.environment,
            layout=layout.text,
            actor_floats=place.shard_shape(number).size,
            transition_bytes=layout.item_bytes,
            segment_transitions=1,
            max_policy_lag=place.hyper.max_staleness,
        )
        self._exchange = LearnerServer(
            _listening(context),
            _keys(context),
            terms,
            self._store,
            RateLimiter(0, 1.0, WAITING_GRADIENTS),
            console.say,
            accounts=accounts,
            policy_version=self._counters.policy_version,
        )
        self._recorded = self._saved = time.monotonic()

    def loop(self, stop: Stop) -> None:
        """Apply gradients until the last step."""
        place = self._place
        self._exchange.start()
        self._publish()
        self._console.say(
            f"server {place.index} of {len(place.servers)} holds {len(self._adam.weights)} weights "
            f"from global step {self._counters.kept_updates} on"
        )
        while not stop.is_set() and not self._is_over:
            if self._exchange.await_data(self._counters.kept_updates, WAIT_SECONDS):
                self._update()
            now = time.monotonic()
            if now - self._recorded >= RECORD_SECONDS:
                self._record(now)
            if now - self._saved >= CHECKPOINT_SECONDS:
                self._save(now)
        self._record(time.monotonic())
        self._save(time.monotonic())
        if not self._is_over:
            raise InterruptedWorkError(
                f"server {place.index} was ended by {stop.reason} at global step {self._counters.kept_updates}"
            )
        self._console.say(f"server {place.index} is done: global step {self._counters.kept_updates}")
        self._exchange.finish(f"{self._steps} global steps", *FAREWELL_SECONDS)
        self._exchange.await_latecomers(self._joiners, stop.is_set)

    def close(self) -> None:
        """Stop answering."""
        self._exchange.close()

    @property
    def _is_over(self) -> bool:
        return bool(self._steps) and self._counters.kept_updates >= self._steps

    def _resume(self) -> tuple[Counters, Accounts]:
        """Load the newest complete checkpoint and start a new epoch."""
        checkpoint, aside = self._checkpoints.load()
        for sentence in aside:
            self._console.say(sentence)
        saved, accounts = None, Accounts()
        if checkpoint is not None:
            try:
                self._adam.load({name.removeprefix("adam."): array for name, array in checkpoint.tensors.items()})
                saved = Counters.from_facts(checkpoint.facts["counters"])
                accounts = Accounts.from_state(checkpoint.facts["accounts"])
            except (KeyError, ValueError) as error:
                raise SetupError(
                    f"{checkpoint.name} in {self._place.folder} does not fit: {error}; set the servers back or "
                    "take another folder"
                ) from error
            self._console.say(f"resumed {checkpoint.name}: global step {saved.kept_updates}")
        return next_epoch(saved, read_journal(self._place.folder), time.time()), accounts

    def _update(self) -> None:
        gradient = self._exchange.locked_sample(self._store.take_array)
        if gradient is None:
            return
        self._adam.step(gradient)
        if not np.isfinite(self._adam.weights).all():
            raise NotFiniteError("the weights are no longer finite; lower learning_rate")
        self._counters.updates += 1
        self._publish()

    def _publish(self) -> None:
        """Publish the weights under a new version, which is first written to the journal."""
        counters = self._counters
        counters.policy_version += 1
        # Before publishing: after a crash no version may be used twice with different weights.
        write_journal(self._place.folder, counters)
        self._exchange.publish(counters.policy_version, self._adam.weights.copy(), counters.kept_updates)

    def _record(self, now: float) -> None:
        self._recorded = now
        figures = self._exchange.metric_fields()
        fields = {
            "role": "ps",
            "index": self._place.index,
            "global_step": self._counters.kept_updates,
            "workers": figures["workers"],
            "staleness": figures["policy_lag"],
            "refused": figures["refused"],
        }
        self._console.record(record("ps", fields))
        self._console.say(f"global step {self._counters.kept_updates} workers {figures['workers']}")

    def _save(self, now: float) -> None:
        self._saved = now
        holdings = self._exchange.snapshot(0)
        self._counters.env_steps = max(self._counters.env_steps, holdings.env_steps)
        counters = {**self._counters.facts(), "env_steps": holdings.env_steps}
        facts = {"counters": counters, "accounts": holdings.accounts}
        arrays = {f"adam.{name}": array for name, array in self._adam.arrays().items()}
        self._checkpoints.save(self._counters.updates, holdings.env_steps, arrays, facts)
        self._exchange.saved(holdings)


def _listening(context: LaunchContext) -> Endpoint:
    """Return the endpoint to bind: all addresses of the pod, which does not know which one its name resolves to."""
    endpoint = context.endpoint
    return endpoint if endpoint.is_private() else parse(f"tcp://*:{endpoint.port}")


def _keys(context: LaunchContext) -> curve_keys.LearnerKeys | None:
    """Return the server's CURVE keys. Raises SetupError if other machines could reach it without a token."""
    if not context.token and not context.endpoint.is_private():
        raise SetupError(
            f"the endpoint {context.endpoint.data} can be reached from other machines and there is no token; "
            f"set {contract.ENV_TOKEN_FILE} to the run's token file"
        )
    return curve_keys.learner_keys(context)
