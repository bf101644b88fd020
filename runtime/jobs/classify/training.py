"""Training: alone, or as one of many processes that share each batch and come and go from round to round.

What a step computes does not depend on how many processes there are: the pictures of each batch follow from the
seed, each process takes its share, and the slopes are summed. So a round with more or fewer nodes goes on where the
last snapshot was, on the same course. The first process reads and writes snapshots; the others get what it read, so
that only one volume has to be right.
"""

from __future__ import annotations

import math
import os
import signal
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn import functional

from runtime import contract
from runtime.checkpoints import Checkpoints
from runtime.classify import network as net
from runtime.classify.place import Place
from runtime.commands import FailedError, InterruptedWorkError
from runtime.datasets import cifar
from runtime.files import held
from runtime.metrics import Console, record
from runtime.process import NotFiniteError
from runtime.stopping import Stop

RECORD_SECONDS: Final = 1.0
SNAPSHOTS_KEPT: Final = 3
LOCK_SECONDS: Final = 20.0
"""How long the first process of a round waits for that of the round before to let go of the snapshots."""
_MARGIN: Final = 2
"""Pixels by which a picture is shifted at most."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the command line says; see `runtime.classify.options`."""

    epochs: int
    batch: int
    lr: float
    augment: str
    snapshot_steps: int
    step_seconds: float
    timeout_seconds: float
    threads: int
    device: str


def train(plan: Plan, data: Path | None, folder: Path, stop: Stop, console: Console) -> int:
    """Train to the end of the last epoch and return the exit code.

    Raises FailedError, InterruptedWorkError, NotFiniteError and OSError with a sentence.
    """
    torch.set_num_threads(plan.threads)
    place = Place.from_environment(os.environ, plan.device)
    if place.world_size > 1:
        # The node that started this process ends it without notice, and a process that hangs in a collective
        # operation could not heed one. What is lost is what came after the last snapshot.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    seed = int(os.environ.get(contract.ENV_SEED) or 0)
    keeps: AbstractContextManager[Any] = nullcontext()
    if place.rank == 0:
        keeps = held(folder / "checkpoints", "the folder", LOCK_SECONDS, stop.is_set)
    with keeps, place.group(timedelta(seconds=plan.timeout_seconds)):
        try:
            _Training(plan, data, folder, place, seed, console).run(stop)
        except RuntimeError as error:
            if place.world_size > 1 and place.is_of_the_group(error):
                raise FailedError(f"round {place.round} ends: {place.why(error)}") from error
            raise
    return contract.EXIT_DONE


class _Training:
    """State and loop of one process in one round."""

    def __init__(
        self, plan: Plan, data: Path | None, folder: Path, place: Place, seed: int, console: Console
    ) -> None:
        self._plan, self._place, self._seed, self._console = plan, place, seed, console
        self._pictures = cifar.training(data)
        names = cifar.classes(data)
        self._batch = min(plan.batch, len(self._pictures))
        self._steps_each = len(self._pictures) // self._batch
        """Steps to an epoch; the pictures that are left over are others in each."""
        self._end = plan.epochs * self._steps_each
        torch.manual_seed(seed)
        self._network = net.Classifier(len(names)).to(place.device)
        self._descent = net.Descent(self._network)
        self._checkpoints = Checkpoints(folder / "checkpoints", SNAPSHOTS_KEPT) if place.rank == 0 else None
        self._step = self._resume()
        self._loss, self._hits, self._seen = 0.0, 0, 0

    def run(self, stop: Stop) -> None:
        """Train until the last epoch is over."""
        place, plan = self._place, self._plan
        self._console.say(
            f"training on {len(self._pictures)} pictures from step {self._step} of {self._end}: "
            f"process {place.rank} of {place.world_size} on {place.device}, round {place.round}"
        )
        told = float("-inf")
        while self._step < self._end:
            began = time.monotonic()
            self._learn()
            if self._step % plan.snapshot_steps == 0 and self._step < self._end:
                self._snapshot()
            if time.monotonic() - told >= RECORD_SECONDS:
                told = time.monotonic()
                self._tell()
            if stop.is_set():
                self._snapshot()
                raise InterruptedWorkError(f"training was ended by {stop.reason} at step {self._step}")
            time.sleep(max(0.0, plan.step_seconds - (time.monotonic() - began)))
        self._tell()
        self._snapshot()
        place.wait_for_all()  # nobody says that it is done before the last snapshot is on the disk
        self._console.say(f"trained to the end: {plan.epochs} epochs, {self._end} steps")

    def _resume(self) -> int:
        """Take the newest snapshot over, here and in all processes, and return its step."""
        arrays: Any = {}
        step = 0
        if self._checkpoints is not None:
            found, aside = self._checkpoints.load()
            for sentence in aside:
                self._console.say(sentence)
            if found is not None:
                arrays = found.tensors
                try:
                    net.load_network(self._network, arrays)
                    net.load_momentum(self._descent, arrays)
                    step = int(found.facts["step"])
                except (ValueError, KeyError, TypeError) as error:
                    raise FailedError(
                        f"{found.name} does not fit: {error}; take the options of before, or another folder"
                    ) from error
                self._console.say(f"resumed {found.name}: epoch {step / self._steps_each:.2f}, step {step}")
        if self._place.world_size > 1:
            step = self._share(step)
        return step

    def _share(self, step: int) -> int:
        """Give every process the first one's network, momentum and step."""
        steps = torch.tensor([step], device=self._place.device)
        for each in (steps, self._descent.weights, self._descent.momentum):
            dist.broadcast(each, 0)
        return int(steps.item())

    def _learn(self) -> None:
        """Take one step: the slopes of this process's share of the batch, summed with those of the others."""
        pixels, right, weight = self._share_of_batch()
        logits = self._network(net.to_images(pixels, self._place.device))
        target = torch.from_numpy(right).to(self._place.device)
        total = functional.cross_entropy(logits, target, reduction="sum")
        (total * (weight / self._batch)).backward()  # type: ignore[no-untyped-call]
        if self._place.world_size > 1:
            dist.all_reduce(self._descent.slopes)
        self._descent.step(0.5 * self._plan.lr * (1.0 + math.cos(math.pi * self._step / self._end)))
        self._step += 1
        self._loss += float(total.item()) * weight
        self._hits += int((logits.argmax(dim=1) == target).sum().item() * weight)
        self._seen += int(len(right) * weight)
        if not math.isfinite(self._loss):
            raise NotFiniteError(f"the loss is not finite at step {self._step}; lower --lr")

    def _share_of_batch(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], float]:
        """Return pictures, their classes, and 1; or 0 where there are more processes than pictures."""
        epoch, at = divmod(self._step, self._steps_each)
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._pictures))
        batch = order[at * self._batch : (at + 1) * self._batch]
        mine = batch[self._place.rank :: self._place.world_size]
        weight = 1.0
        if not len(mine):
            mine, weight = batch[:1], 0.0
        pixels, right = self._pictures.take(mine)
        if self._plan.augment != "none":
            rng = np.random.default_rng([self._seed, self._step, self._place.rank])
            pixels = _shifted(pixels, rng, flips=self._plan.augment == "flip")
        return pixels, right, weight

    def _snapshot(self) -> None:
        """Write a snapshot, where this is the process that does."""
        if self._checkpoints is None:
            return
        facts = {
            "kind": "classifier",
            "step": self._step,
            "epoch": self._step / self._steps_each,
            "world_size": self._place.world_size,
        }
        arrays = net.state(self._network, self._descent)
        if not all(np.isfinite(each).all() for each in arrays.values()):
            raise NotFiniteError(f"the network holds values that are not finite at step {self._step}; lower --lr")
        self._checkpoints.save(self._step, self._step * self._batch, arrays, facts)

    def _tell(self) -> None:
        fields = {
            "rank": self._place.rank,
            "world_size": self._place.world_size,
            "round": self._place.round,
            "epoch": self._step / self._steps_each,
            "step": self._step,
            "loss": self._loss / self._seen if self._seen else None,
            "accuracy": self._hits / self._seen if self._seen else None,
        }
        self._loss, self._hits, self._seen = 0.0, 0, 0
        self._console.record(record("elastic", fields))


def _shifted(pixels: NDArray[np.uint8], rng: np.random.Generator, *, flips: bool) -> NDArray[np.uint8]:
    """Move each picture by up to two pixels, and mirror every other one."""
    side = pixels.shape[-1]
    wide = np.pad(pixels, ((0, 0), (0, 0), (_MARGIN, _MARGIN), (_MARGIN, _MARGIN)))
    moved = np.empty_like(pixels)
    places = rng.integers(0, 2 * _MARGIN + 1, (len(pixels), 2))
    mirrored = rng.random(len(pixels)) < 0.5
    for number, (top, left) in enumerate(places):
        picture = wide[number, :, top : top + side, left : left + side]
        moved[number] = picture[:, :, ::-1] if flips and mirrored[number] else picture
    return moved
