"""A worker of parameter servers: fetch the shards, compute a gradient, send each part to its server, and so on.

The shards of one gradient may be of different steps; each is marked with the version that it was computed at, and
each server judges for itself whether that is too old.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime import contract
from runtime.algos.actor import NumpyActor
from runtime.commands import InterruptedWorkError
from runtime.datasets import digits
from runtime.framing import Arena
from runtime.gradient_work import cross_entropy_gradient
from runtime.messages import Trajectory
from runtime.metrics import Console, record
from runtime.peer import Peer
from runtime.ps.log import LoggedConsole
from runtime.ps.place import Place
from runtime.stopping import Stop

RECORD_SECONDS: Final = 1.0
WAIT_SECONDS: Final = 0.02
LAST_WEIGHTS_SECONDS: Final = 3.0
"""How long a worker waits for the weights of the last step, which nobody else gets any more."""


def run(place: Place, stop: Stop, console: Console) -> int:
    """Work until the servers have enough; return the exit code. Raises RefusedError and InterruptedWorkError."""
    with ExitStack() as holds:
        logged = LoggedConsole(place.log, console)
        holds.callback(logged.close)
        shards = [
            _Shard(number, holds.enter_context(_peer(place, number, logged)), place.shard(number), logged)
            for number in range(len(place.servers))
        ]
        Worker(place, shards, logged).loop(stop)
    return contract.EXIT_DONE


def _peer(place: Place, number: int, console: Console) -> Peer:
    return Peer(place.servers[number], place.shard_shape(number), place.layout(number), 1, console)


class _Shard:
    """One server as this worker sees it."""

    def __init__(self, number: int, peer: Peer, part: slice, console: Console) -> None:
        self.peer, self.part = peer, part
        self.is_over = False
        self._number, self._console = number, console
        self._ended: float | None = None

    @property
    def takes(self) -> bool:
        """Whether a gradient at the weights that are here is welcome."""
        peer = self.peer
        return not self.is_over and bool(peer.policy_version) and peer.session.has_credit and not peer.is_too_old

    def exchange(self, seconds: float) -> None:
        """Talk to the server; take leave when it is done and its last weights are here."""
        if self.is_over:
            return
        peer = self.peer
        peer.exchange(seconds)
        peer.adopt()
        if peer.finished is None:
            return
        self._ended = self._ended or time.monotonic()
        is_late = time.monotonic() - self._ended > LAST_WEIGHTS_SECONDS
        if peer.policy_version >= peer.session.policy_version or is_late:
            peer.leave("the run is done")
            self.is_over = True
            self._console.say(f"server {self._number} is done: {peer.finished}")


class Worker:
    """State and loop of one worker."""

    def __init__(self, place: Place, shards: list[_Shard], console: Console) -> None:
        self._place, self._shards, self._console = place, shards, console
        self._actor = NumpyActor(place.shape())
        self._train, self._test = digits.load()
        self._pictures = self._train.scaled()
        self._rng = np.random.default_rng([place.hyper.seed, place.index, time.time_ns()])
        self._local_steps = 0
        self._recorded = time.monotonic()
        self._loss = float("nan")

    def loop(self, stop: Stop) -> None:
        """Compute gradients until every server is done."""
        while not stop.is_set() and not all(each.is_over for each in self._shards):
            open_shards = [each for each in self._shards if not each.is_over]
            is_welcome = any(each.takes for each in open_shards) and all(
                each.takes or each.is_over or each.peer.finished is not None for each in self._shards
            )
            for each in open_shards:
                each.exchange(0.0 if is_welcome else WAIT_SECONDS / len(open_shards))
            if is_welcome:
                self._step()
            if time.monotonic() - self._recorded >= RECORD_SECONDS:
                self._record()
        self._record()
        if stop.is_set():
            for each in self._shards:
                if not each.is_over:
                    each.peer.leave(stop.reason or "")
            raise InterruptedWorkError(f"the worker was ended by {stop.reason} at local step {self._local_steps}")
        self._evaluate()

    @property
    def _global_step(self) -> int:
        """Steps that the servers have taken, as far as this worker has heard, those that a crash undid included."""
        return max(0, min(each.peer.session.policy_version for each in self._shards) - 1)

    def _assemble(self) -> None:
        weights = self._actor.weights
        for each in self._shards:
            weights[each.part] = each.peer.actor.weights

    def _step(self) -> None:
        """Compute one gradient, and send each part of it to its server."""
        self._assemble()
        drawn = self._rng.integers(0, len(self._pictures), self._place.hyper.batch_size)
        pictures, right = self._pictures[drawn], self._train.right[drawn]
        gradient, hits = cross_entropy_gradient(self._actor, pictures, right)
        self._loss = _cross_entropy(self._actor, pictures, right)
        self._local_steps += 1
        for each in self._shards:
            if each.takes:
                version = each.peer.policy_version
                segment = Trajectory(
                    transitions=1,
                    policy_version_min=version,
                    policy_version_max=version,
                    episodes=len(right),
                    return_sum=float(hits),
                    progress_sum=0.0,
                )
                each.peer.env_steps += 1
                each.peer.offer(segment, Arena.of(np.ascontiguousarray(gradient[each.part]).data))

    def _record(self) -> None:
        self._recorded = time.monotonic()
        for each in self._shards:
            each.peer.steps_per_second()
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
        """Say how many digits the last weights name rightly that nobody trained on."""
        self._assemble()
        named = self._actor.act(self._test.scaled(), None)[:, 0].astype(int)
        right = self._test.right
        per_class = {str(n): float((named[right == n] == n).mean()) for n in range(10)}
        accuracy = float((named == right).mean())
        fields = {"accuracy": accuracy, "samples": len(right), "classes": per_class}
        self._console.record(record("evaluation", fields))
        self._console.say(f"accuracy {accuracy:.4f} on {len(right)} digits after global step {self._global_step}")


def _cross_entropy(actor: NumpyActor, pictures: NDArray[np.float32], right: NDArray[np.intp]) -> float:
    """Return the mean cross entropy of the right digits."""
    seen = pictures
    for weight, bias in actor.layers[:-1]:
        seen = np.maximum(seen @ weight + bias, 0.0)
    weight, bias = actor.layers[-1]
    logits = seen @ weight + bias
    logits -= logits.max(axis=1, keepdims=True)
    chosen = logits[np.arange(len(right)), right]
    return float((np.log(np.exp(logits).sum(axis=1)) - chosen).mean())
