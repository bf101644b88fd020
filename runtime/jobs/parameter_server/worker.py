"""Worker of parameter servers: fetches the shards, computes a gradient, and sends each part to its server.

The shards used for one gradient may be from different steps. Each part contains the version that it was computed
with, and each server decides whether that is too stale.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

import numpy as np

from runtime.base import contract
from runtime.base.errors import InterruptedWorkError
from runtime.base.metrics import Console, record
from runtime.base.signals import Stop
from runtime.exchange.learner_client import LearnerClient
from runtime.jobs.datasets import digits
from runtime.jobs.parameter_server.rank_context import LoggedConsole, PsRank
from runtime.rl.algos.actor import NumpyActor
from runtime.rl.roles.worker_gradients import cross_entropy_gradient, gradient_segment

RECORD_SECONDS: Final = 1.0
WAIT_SECONDS: Final = 0.02
LAST_WEIGHTS_SECONDS: Final = 3.0
"""How long to wait for the weights of the last step before leaving without them."""


def run(place: PsRank, stop: Stop, console: Console) -> int:
    """Work until the servers are done; return the exit code. Raises PeerRefusedError, InterruptedWorkError."""
    with ExitStack() as holds:
        logged = LoggedConsole(place.log, console)
        holds.callback(logged.close)
        shards = [
            _Shard(number, holds.enter_context(_peer(place, number, logged)), place.shard(number), logged)
            for number in range(len(place.servers))
        ]
        Worker(place, shards, logged).loop(stop)
    return contract.EXIT_DONE


def _peer(place: PsRank, number: int, console: Console) -> LearnerClient[NumpyActor]:
    actor = NumpyActor(place.shard_shape(number))
    return LearnerClient(place.servers[number], actor, place.layout(number), 1, console)


class _Shard:
    """Connection of a worker to one server."""

    def __init__(self, number: int, peer: LearnerClient[NumpyActor], part: slice, console: Console) -> None:
        self.peer, self.part = peer, part
        self.is_over = False
        self._number, self._console = number, console
        self._ended: float | None = None

    @property
    def accepts_gradient(self) -> bool:
        """True if the server accepts a gradient computed with the current weights."""
        peer = self.peer
        return not self.is_over and bool(peer.policy_version) and peer.session.has_credit and not peer.is_too_old

    def exchange(self, seconds: float) -> None:
        """Exchange messages; leave once the server is done and its last weights have arrived."""
        if self.is_over:
            return
        peer = self.peer
        peer.exchange(seconds)
        peer.use_newest_weights()
        if peer.session.done is None:
            return
        self._ended = self._ended or time.monotonic()
        is_late = time.monotonic() - self._ended > LAST_WEIGHTS_SECONDS
        if peer.policy_version >= peer.session.policy_version or is_late:
            peer.leave("the run is done")
            self.is_over = True
            self._console.say(f"server {self._number} is done: {peer.session.done}")


class Worker:
    """State and main loop of one worker."""

    def __init__(self, place: PsRank, shards: list[_Shard], console: Console) -> None:
        self._place, self._shards, self._console = place, shards, console
        self._actor = NumpyActor(place.shape())
        self._train, self._test = digits.load()
        self._pictures = self._train.scaled()
        # The time is part of the seed: a restarted worker must not repeat its first batches.
        self._rng = np.random.default_rng([place.hyper.seed, place.index, time.time_ns()])
        self._local_steps = 0
        self._recorded = time.monotonic()
        self._loss = float("nan")

    def loop(self, stop: Stop) -> None:
        """Compute gradients until every server is done."""
        while not stop.is_set() and not all(shard.is_over for shard in self._shards):
            open_shards = [shard for shard in self._shards if not shard.is_over]
            is_welcome = any(shard.accepts_gradient for shard in open_shards) and all(
                shard.accepts_gradient or shard.is_over or shard.peer.session.done is not None
                for shard in self._shards
            )
            for shard in open_shards:
                shard.exchange(0.0 if is_welcome else WAIT_SECONDS / len(open_shards))
            if is_welcome:
                self._step()
            if time.monotonic() - self._recorded >= RECORD_SECONDS:
                self._record()
        self._record()
        if stop.is_set():
            for shard in self._shards:
                if not shard.is_over:
                    shard.peer.leave(stop.reason or "")
            raise InterruptedWorkError(f"the worker was ended by {stop.reason} at local step {self._local_steps}")
        self._evaluate()

    @property
    def _global_step(self) -> int:
        """Step of the slowest server as last reported, including steps that a crash undid."""
        return max(0, min(shard.peer.session.policy_version for shard in self._shards) - 1)

    def _assemble(self) -> None:
        weights = self._actor.weights
        for shard in self._shards:
            weights[shard.part] = shard.peer.actor.weights

    def _step(self) -> None:
        """Compute one gradient, and send each part to its server."""
        self._assemble()
        drawn = self._rng.integers(0, len(self._pictures), self._place.hyper.batch_size)
        pictures, labels = self._pictures[drawn], self._train.labels[drawn]
        gradient, num_correct, self._loss = cross_entropy_gradient(self._actor, pictures, labels)
        self._local_steps += 1
        for shard in self._shards:
            if shard.accepts_gradient:
                part, version = gradient[shard.part], shard.peer.policy_version
                finished = gradient_segment(part, version, len(labels), float(num_correct))
                shard.peer.env_steps += 1
                shard.peer.session.queue_segment(finished.segment, finished.memory)

    def _record(self) -> None:
        self._recorded = time.monotonic()
        for shard in self._shards:
            shard.peer.steps_per_second()
        fields = {
            "role": "worker",
            "index": self._place.index,
            "global_step": self._global_step,
            "local_step": self._local_steps,
            "loss": self._loss,
        }
        self._console.record(record("ps", fields))
        self._console.say(
            f"worker {self._place.index}: global step {self._global_step} local step {self._local_steps} "
            f"loss {self._loss:.4f}"
        )

    def _evaluate(self) -> None:
        """Report the accuracy of the last weights on the test set."""
        self._assemble()
        named = self._actor.act(self._test.scaled(), None)[:, 0].astype(int)
        labels = self._test.labels
        per_class = {str(n): float((named[labels == n] == n).mean()) for n in range(10)}
        accuracy = float((named == labels).mean())
        fields = {"accuracy": accuracy, "samples": len(labels), "classes": per_class}
        self._console.record(record("evaluation", fields))
        self._console.say(f"accuracy {accuracy:.4f} on {len(labels)} digits after global step {self._global_step}")
