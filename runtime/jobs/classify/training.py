"""Image classifier: network, training in one process or many (data parallelism), and evaluation.

The result of a step does not depend on the number of processes: the seed determines the images of each batch, each
process takes its share, and the gradients are summed. A round with more or fewer nodes therefore continues the
same computation from the newest state of any node.

Weights, gradients and momentum are one flat tensor each, so that an all-reduce is one call. torch's
DistributedDataParallel and `torch.optim` classes first import a compiler: in each round that takes seconds of a
core per process, more than a round of an elastic job may cost.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from runtime.base import contract
from runtime.base.atomic_files import lock_folder, write_atomic
from runtime.base.errors import FailedError, InterruptedWorkError, NotFiniteError
from runtime.base.metrics import Console, record
from runtime.base.signals import Stop
from runtime.jobs.classify.rank_context import TrainingRank, device_kind
from runtime.jobs.datasets import cifar
from runtime.jobs.elastic.newest_state import StateOrigin, take_newest
from runtime.rl.algos.optimisers import Momentum
from runtime.rl.checkpoints.checkpoint_files import Checkpoint, Checkpoints

MOMENTUM: Final = 0.9
WEIGHT_DECAY: Final = 5e-4
_LAYERS: Final = ((16, 2), (32, 1), (64, 1))
"""Channels and stride of each convolution; convolutions with stride 1 are followed by pooling."""


class Classifier(nn.Sequential):
    """Maps images (count, 3, 32, 32) in [0, 1] to logits (count, classes)."""

    def __init__(self, classes: int) -> None:
        layers: list[nn.Module] = []
        channels = 3
        for width, stride in _LAYERS:
            # Group norm and not batch norm, whose running means would depend on how many processes share a batch.
            convolution = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
            layers += [convolution, nn.GroupNorm(4, width), nn.ReLU()]
            if stride == 1:
                layers.append(nn.MaxPool2d(2))
            channels = width
        super().__init__(*layers, nn.Flatten(), nn.Linear(channels * 4 * 4, classes))


class FlatSGD:
    """SGD with momentum and weight decay on all weights of a network as one tensor."""

    def __init__(self, network: nn.Module) -> None:
        parameters = list(network.parameters())
        device = parameters[0].device
        self.weights = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.gradients = torch.zeros(self.weights.numel(), device=device)
        """(size,) sum of the gradients since the last step; `Tensor.backward` adds to it."""
        self._optimiser = Momentum(self.weights, 0.0, MOMENTUM, WEIGHT_DECAY)
        self.momentum = self._optimiser.mean
        first = 0
        # Parameters and their gradients become views of the flat tensors; autograd then accumulates in place.
        for parameter in parameters:
            part = slice(first, first + parameter.numel())
            parameter.data = self.weights[part].view_as(parameter)
            parameter.grad = self.gradients[part].view_as(parameter)
            first = part.stop

    def step(self, lr: float) -> None:
        """Take one step of size ``lr`` and set the gradients to 0."""
        self._optimiser.lr = lr
        self._optimiser.step(self.gradients)
        self.gradients.zero_()


def to_images(pixels: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Return byte images (B, 3, 32, 32) as float32 in [0, 1] on ``device``."""
    return torch.from_numpy(pixels).to(device, torch.float32).div_(255.0)


def state(network: Classifier, optimiser: FlatSGD) -> dict[str, NDArray[Any]]:
    """Return copies of everything that a step changes."""
    arrays = {f"network.{name}": _array(tensor) for name, tensor in network.state_dict().items()}
    return {**arrays, "momentum": _array(optimiser.momentum)}


def load_network(network: Classifier, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Load the network's part of a result of `state`. Raises ValueError with a sentence if the network differs."""
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    own = {name: tensor for name, tensor in arrays.items() if name.startswith("network.")}
    tensors = {name.removeprefix("network."): tensor for name, tensor in own.items()}
    if shapes != {name: tensor.shape for name, tensor in tensors.items()}:
        raise ValueError("it is of another network, or for another number of classes")
    network.load_state_dict({name: torch.from_numpy(np.array(tensor)) for name, tensor in tensors.items()})


def load_momentum(optimiser: FlatSGD, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Load the momentum of a result of `state`, after `load_network` has checked that it fits."""
    optimiser.momentum.copy_(torch.from_numpy(np.array(arrays["momentum"])))


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy().copy()
    return array


KEPT: Final = 3
NODE_KEPT: Final = 2


class Snapshots:
    """Snapshots that one rank reads and writes; only the first process of a node has any."""

    def __init__(self, folder: Path, rank: TrainingRank, environ: Mapping[str, str]) -> None:
        self._sources: list[Checkpoints] = []
        self._target: Checkpoints | None = None
        if rank.local_rank:
            return
        # One process writes to the run's folder; the others must not clean up there meanwhile.
        run = Checkpoints(folder / "checkpoints", KEPT, is_read_only=rank.rank > 0)
        self._sources.append(run)
        self._target = run if rank.rank == 0 else None
        if own := environ.get(contract.ENV_NODE_DIR):
            node = Checkpoints(Path(own) / "checkpoints", NODE_KEPT)
            self._sources.append(node)
            self._target = self._target or node

    @property
    def is_writer(self) -> bool:
        """Return whether this process writes snapshots."""
        return self._target is not None

    def load(self, network: Classifier, optimiser: FlatSGD, say: Callable[[str], None]) -> int:
        """Load the newest snapshot of this process and return its step; 0 if there is none.

        Raises FailedError if it belongs to another network.
        """
        candidates = []
        for source in self._sources:
            checkpoint, aside = source.load()
            for sentence in aside:
                say(sentence)
            if checkpoint is not None:
                candidates.append((_step(checkpoint), checkpoint))
        if not candidates:
            return 0
        step, newest = max(candidates, key=lambda candidate: candidate[0])
        try:
            load_network(network, newest.tensors)
            load_momentum(optimiser, newest.tensors)
        except (ValueError, KeyError) as error:
            raise FailedError(_unfit(newest, error)) from error
        return step

    def save(self, step: int, samples: int, arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Write a snapshot; does nothing in a process that writes none."""
        if self._target is not None:
            self._target.save(step, samples, arrays, facts)


def _step(checkpoint: Checkpoint) -> int:
    try:
        return int(checkpoint.facts["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise FailedError(_unfit(checkpoint, error)) from error


def _unfit(checkpoint: Checkpoint, error: Exception) -> str:
    return f"{checkpoint.name} does not fit: {error}; use the previous options, or another folder"


RECORD_SECONDS: Final = 1.0
LOCK_SECONDS: Final = 20.0
"""How long rank 0 waits for the lock on the snapshots, which the previous round's rank 0 may still hold."""
_MARGIN: Final = 2
"""Largest shift of an image, pixels."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Options of `l2r-runtime classify train`; see `runtime.jobs.classify`."""

    epochs: int
    batch: int
    lr: float
    augment: str
    snapshot_steps: int
    step_seconds: float
    timeout_seconds: float
    threads: int
    device: str
    shared_gpu: bool = False


def train(plan: TrainingPlan, data: Path | None, folder: Path, stop: Stop, console: Console) -> int:
    """Train to the end of the last epoch and return the exit code.

    Raises FailedError, InterruptedWorkError, NotFiniteError and OSError with a sentence.
    """
    torch.set_num_threads(plan.threads)
    place = TrainingRank.from_environment(os.environ, plan.device, is_shared=plan.shared_gpu)
    if place.world_size > 1:
        # A process that hangs in a collective operation cannot run a Python signal handler, so the signal itself
        # has to end it. Steps after the last snapshot are lost.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    seed = int(os.environ.get(contract.ENV_SEED) or 0)
    keeps: AbstractContextManager[Any] = nullcontext()
    if place.rank == 0:
        # Two rounds may overlap briefly: only one process at a time writes snapshots.
        keeps = lock_folder(folder / "checkpoints", LOCK_SECONDS, stop.is_set)
    with keeps, place.group(timedelta(seconds=plan.timeout_seconds)):
        try:
            _Training(plan, data, folder, place, seed, console).run(stop)
        except RuntimeError as error:
            if place.world_size > 1 and place.is_group_error(error):
                raise FailedError(f"round {place.round} ends: {place.short_reason(error)}") from error
            raise
    return contract.EXIT_DONE


class _Training:
    """State and main loop of one process in one round."""

    def __init__(
        self, plan: TrainingPlan, data: Path | None, folder: Path, place: TrainingRank, seed: int, console: Console
    ) -> None:
        self._plan, self._place, self._seed, self._console = plan, place, seed, console
        self._pictures = cifar.training(data)
        names = cifar.classes(data)
        self._batch = min(plan.batch, len(self._pictures))
        self._steps_each = len(self._pictures) // self._batch
        """Steps per epoch. The images left over after the last full batch differ in each epoch."""
        self._end = plan.epochs * self._steps_each
        # The same seed in every process: all start with the same weights, even before the first broadcast.
        torch.manual_seed(seed)
        self._network = Classifier(len(names)).to(place.device)
        self._optimiser = FlatSGD(self._network)
        self._snapshots = Snapshots(folder, place, os.environ)
        self._origin = self._resume()
        self._step = self._origin.step
        self._loss, self._num_correct, self._num_seen = 0.0, 0, 0

    def run(self, stop: Stop) -> None:
        """Train to the end of the last epoch."""
        place, plan = self._place, self._plan
        self._console.say(
            f"training on {len(self._pictures)} pictures from step {self._step} of {self._end}: "
            f"process {place.rank} of {place.world_size} on {place.device}, round {place.round}"
        )
        last_record = float("-inf")
        while self._step < self._end:
            began = time.monotonic()
            self._learn()
            if self._step % plan.snapshot_steps == 0 and self._step < self._end:
                self._snapshot()
            if time.monotonic() - last_record >= RECORD_SECONDS:
                last_record = time.monotonic()
                self._tell()
            if stop.is_set():
                self._snapshot()
                raise InterruptedWorkError(f"training was ended by {stop.reason} at step {self._step}")
            time.sleep(max(0.0, plan.step_seconds - (time.monotonic() - began)))
        self._tell()
        self._snapshot()
        place.wait_for_all()  # no rank reports the end before the last snapshot is on disk
        self._console.say(f"trained to the end: {plan.epochs} epochs, {self._end} steps")

    def _resume(self) -> StateOrigin:
        """Load the newest state of all ranks into each, and return its origin."""
        place = self._place
        step = self._snapshots.load(self._network, self._optimiser, self._console.say)
        origin = StateOrigin(step, place.rank, place.node)
        if place.world_size > 1:
            origin = take_newest(step, place.node, (self._optimiser.weights, self._optimiser.momentum))
        if place.local_rank == 0:
            self._console.say(self._beginning(origin))
        return origin

    def _beginning(self, origin: StateOrigin) -> str:
        """Return the sentence about where training starts: lost progress must not go unnoticed."""
        if origin.step:
            epoch = origin.step / self._steps_each
            return f"continues from epoch {epoch:.2f}, step {origin.step}, of node {origin.node}"
        if self._place.round:
            return f"begins again at epoch 0: no node of round {self._place.round} has state"
        return "begins at epoch 0: no node has state"

    def _learn(self) -> None:
        """Take one step with the gradient of the batch, summed over all processes."""
        pixels, labels, weight = self._share_of_batch()
        logits = self._network(to_images(pixels, self._place.device))
        target = torch.from_numpy(labels).to(self._place.device)
        total = functional.cross_entropy(logits, target, reduction="sum")
        # Sum divided by the batch size of all processes, not a mean of means: shares may differ by one image.
        (total * (weight / self._batch)).backward()  # type: ignore[no-untyped-call]
        if self._place.world_size > 1:
            dist.all_reduce(self._optimiser.gradients)
        self._optimiser.step(0.5 * self._plan.lr * (1.0 + math.cos(math.pi * self._step / self._end)))
        self._step += 1
        self._loss += float(total.item()) * weight
        self._num_correct += int((logits.argmax(dim=1) == target).sum().item() * weight)
        self._num_seen += int(len(labels) * weight)
        if not math.isfinite(self._loss):
            raise NotFiniteError(f"the loss is not finite at step {self._step}; lower --lr")

    def _share_of_batch(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], float]:
        """Return images, labels and weight 1; weight 0 if the batch has fewer images than there are processes."""
        epoch, at = divmod(self._step, self._steps_each)
        # The permutation depends only on seed and epoch: processes need not tell each other which images come next.
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._pictures))
        batch = order[at * self._batch : (at + 1) * self._batch]
        mine = batch[self._place.rank :: self._place.world_size]
        weight = 1.0
        if not len(mine):
            # A process without images still joins the all-reduce; otherwise the others would wait for it.
            mine, weight = batch[:1], 0.0
        pixels, labels = self._pictures.rows_at(mine)
        if self._plan.augment != "none":
            rng = np.random.default_rng([self._seed, self._step, self._place.rank])
            pixels = _shifted(pixels, rng, flips=self._plan.augment == "flip")
        return pixels, labels, weight

    def _snapshot(self) -> None:
        """Write a snapshot on rank 0, and on one process of each other node."""
        if not self._snapshots.is_writer:
            return
        progress = {"step": self._step, "epoch": self._step / self._steps_each}
        facts = {"kind": "classifier", **progress, "world_size": self._place.world_size}
        arrays = state(self._network, self._optimiser)
        # A snapshot with NaN would be resumed forever; no snapshot is better.
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise NotFiniteError(f"the network holds values that are not finite at step {self._step}; lower --lr")
        self._snapshots.save(self._step, self._step * self._batch, arrays, facts)

    def _tell(self) -> None:
        fields = {
            "rank": self._place.rank,
            "world_size": self._place.world_size,
            "round": self._place.round,
            "epoch": self._step / self._steps_each,
            "step": self._step,
            "loss": self._loss / self._num_seen if self._num_seen else None,
            "accuracy": self._num_correct / self._num_seen if self._num_seen else None,
            "resumed_step": self._origin.step,
            "resumed_from": self._origin.node if self._origin.step else None,
        }
        self._loss, self._num_correct, self._num_seen = 0.0, 0, 0
        self._console.record(record("elastic", fields))


def _shifted(pixels: NDArray[np.uint8], rng: np.random.Generator, *, flips: bool) -> NDArray[np.uint8]:
    """Move each image by up to two pixels; with ``flips``, mirror a random half of them."""
    side = pixels.shape[-1]
    wide = np.pad(pixels, ((0, 0), (0, 0), (_MARGIN, _MARGIN), (_MARGIN, _MARGIN)))
    moved = np.empty_like(pixels)
    places = rng.integers(0, 2 * _MARGIN + 1, (len(pixels), 2))
    mirrored = rng.random(len(pixels)) < 0.5
    for number, (top, left) in enumerate(places):
        picture = wide[number, :, top : top + side, left : left + side]
        moved[number] = picture[:, :, ::-1] if flips and mirrored[number] else picture
    return moved


RESULT: Final = "evaluation.json"
_AT_ONCE: Final = 500


def evaluate(data: Path | None, folder: Path, device: str, console: Console) -> int:
    """Print a table and a record, and write the record's values to the run's folder.

    Raises SetupError, FailedError and OSError with a sentence.
    """
    where = torch.device(device_kind(device))
    if not (folder / "checkpoints").is_dir():
        raise FailedError(f"{folder} holds no snapshot; `l2r-runtime classify train` makes some")
    checkpoint, _ = Checkpoints(folder / "checkpoints", keep=1, is_read_only=True).load()
    if checkpoint is None:
        raise FailedError(
            f"{folder / 'checkpoints'} holds no whole snapshot; `l2r-runtime classify train` makes some"
        )
    names = cifar.classes(data)
    network = Classifier(len(names)).to(where)
    try:
        load_network(network, checkpoint.tensors)
    except ValueError as error:
        raise FailedError(f"{checkpoint.name} does not fit the data in {data or 'the digits'}: {error}") from error
    labels, named = _predictions(network, cifar.testing(data), where)
    counts = np.bincount(labels, minlength=len(names))
    num_correct = np.bincount(labels[labels == named], minlength=len(names))
    accuracy = float(num_correct.sum() / counts.sum())
    per_class = {name: float(num_correct[n] / counts[n]) if counts[n] else None for n, name in enumerate(names)}
    fields = {
        "accuracy": accuracy,
        "samples": int(counts.sum()),
        "classes": per_class,
        "checkpoint": checkpoint.name,
        "step": checkpoint.facts.get("step"),
    }
    for line in _table(names, counts, num_correct):
        print(line)
    console.record(record("evaluation", fields))
    write_atomic(folder / RESULT, json.dumps(fields, indent=1).encode())
    return contract.EXIT_DONE


@torch.no_grad()
def _predictions(
    network: Classifier, pictures: cifar.Pictures, device: torch.device
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    network.eval()
    labels, named = [], []
    for first in range(0, len(pictures), _AT_ONCE):
        pixels, classes = pictures.rows_at(np.arange(first, min(first + _AT_ONCE, len(pictures))))
        labels.append(classes)
        named.append(network(to_images(pixels, device)).argmax(dim=1).cpu().numpy())
    return np.concatenate(labels), np.concatenate(named)


def _table(names: tuple[str, ...], counts: NDArray[np.intp], num_correct: NDArray[np.intp]) -> list[str]:
    width = max(map(len, (*names, "class")))
    lines = [f"{'class':{width}}  pictures  right  accuracy"]
    rows = [*zip(names, counts, num_correct, strict=True), ("all", counts.sum(), num_correct.sum())]
    for name, count, hit in rows:
        share = f"{100 * hit / count:7.1f}%" if count else "       -"
        lines.append(f"{name:{width}}  {count:8d}  {hit:5d}  {share}")
    return lines
