"""Data parallelism: each device computes an update on its share of the batch, and all step by the mean gradient.

The scheme is DistributedDataParallel's (Li et al. 2020, arXiv:2006.15704): replicas that start equal and step
equally stay equal. The replicas are threads of one process: the batch is already in its memory, a single replica
cannot be lost, and the interpreter lock is only held while kernels are launched.

With bfloat16 precision, matrix products and convolutions are computed in bfloat16, and everything else (losses,
weights, moments) in float32. bfloat16 has float32's range, so losses need not be scaled (Kalamkar et al. 2019,
arXiv:1905.12322).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from runtime.rl.algos.algorithm import Algorithm, Stats
from runtime.rl.algos.configs import PPOConfig
from runtime.rl.algos.method_config import ReplayConfig, RolloutConfig
from runtime.rl.algos.numerics import not_finite_names, report
from runtime.rl.algos.plan import Plan, build
from runtime.rl.buffers.tensor_batch import TensorBatch
from runtime.rl.device.precision import chosen_precision, set_float32_products
from runtime.rl.settings import Settings


class MeanBarrier:
    """Barrier at which each thread passes a tensor and receives the mean of all (an all-reduce within a
    process).
    """

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)
        self._values: list[Tensor] = [torch.empty(0)] * count

    def mean(self, rank: int, value: Tensor) -> Tensor:
        """Return the mean of the values of all ranks, on the device of ``value``.

        Every rank adds in the same order, so that replicas stay equal to the last bit. Raises BrokenBarrierError if
        another rank failed.
        """
        self._values[rank] = value
        self._barrier.wait()
        mean = torch.stack([tensor.to(value.device) for tensor in self._values]).mean(dim=0)
        self._barrier.wait()  # the next value may replace this one only after all ranks have read it
        return mean

    def fail(self) -> None:
        """Release all waiting ranks with BrokenBarrierError."""
        self._barrier.abort()


class DataParallel:
    """Replicas of an algorithm, one per device. The first is published and stored in checkpoints."""

    def __init__(self, members: Sequence[Algorithm], devices: Sequence[str]) -> None:
        self.members = tuple(members)
        self._devices = tuple(devices)
        self._barrier = MeanBarrier(len(members))
        self._batch: TensorBatch | None = None
        self._threads: ThreadPoolExecutor | None = None
        if len(members) > 1:
            self._threads = ThreadPoolExecutor(len(members) - 1, "device")
            for rank, member in enumerate(members):
                member.mean = partial(self._barrier.mean, rank)
            self.align()

    def align(self) -> None:
        """Copy the first replica's state to the others; each draws its own random numbers."""
        first, *others = self.members
        for rank, other in enumerate(others, 1):
            for tensor, source in zip(other.tensors().values(), first.tensors().values(), strict=True):
                tensor.detach().copy_(source.detach())
            for generator in other.generators().values():
                # A function of rank and update, so that a resumed run draws other noise than its first part did.
                generator.manual_seed(((generator.initial_seed() + rank) * 1_000_003 + first.updates) % 2**63)
            other.updates = first.updates

    def update(self, batch: TensorBatch) -> Stats:
        """Learn from a batch with an equal share for each device; statistics are the first replica's."""
        self._batch = batch
        if self._threads is None:
            return self._compute(0, batch)
        # Rank 0 runs in the calling thread: one thread fewer, and its exceptions surface in the learner.
        mine, *shares = batch.shares(len(self.members))
        rest = [self._threads.submit(self._compute, rank, share) for rank, share in enumerate(shares, 1)]
        try:
            stats = self._compute(0, mine)
        except threading.BrokenBarrierError:
            for future in rest:  # another rank failed first: raise its error
                error = future.exception()
                if error is not None and not isinstance(error, threading.BrokenBarrierError):
                    raise error from None
            raise
        for future in rest:
            future.result()
        return stats

    def _compute(self, rank: int, share: TensorBatch) -> Stats:
        try:
            return self.members[rank].update(share.to(self._devices[rank]))
        # After any failure, ranks at the barrier must not wait for this one forever.
        except BaseException:
            self._barrier.fail()
            raise

    def not_finite_report(self, updates: int, stats: Stats | None) -> str:
        """Return a sentence that names the non-finite statistics, tensors, and columns of the latest batch."""
        columns = {} if self._batch is None else self._batch.columns()
        networks = {name: tensor.detach().cpu().numpy() for name, tensor in self.members[0].tensors().items()}
        batch = {name: column.cpu().numpy() for name, column in columns.items()}
        figures = {} if stats is None else stats.floats()
        return report(updates, figures, not_finite_names(networks), batch or None)

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown()


def assemble(plan: Plan, settings: Settings, seed: int, devices: Sequence[str]) -> DataParallel:
    """Return replicas on ``devices``. Raises ValueError if a batch cannot be split into equal parts for them."""
    count = len(devices)
    if count > 1:
        if plan.sends_gradients:
            raise ValueError("devices: gradients that workers send are applied on one device; set it to 1")
        for name, size in _sizes(plan, settings).items():
            if size % count:
                raise ValueError(f"devices is {count} and {name} {size}, which has not so many equal parts")
        if isinstance(plan.config, PPOConfig):
            plan = replace(plan, config=replace(plan.config, minibatch_size=plan.config.minibatch_size // count))
    precision = chosen_precision(settings.precision, devices[0], has_images=bool(plan.shape.images))
    set_float32_products(precision)
    # Several devices synchronise in the middle of an update to average their gradients: code that waits for another
    # thread cannot be in a CUDA graph.
    capture = None if settings.cuda_graphs and count == 1 else False
    make = partial(build, plan, seed, precision=precision, capture=capture)
    return DataParallel([make(device) for device in devices], devices)


def _sizes(plan: Plan, settings: Settings) -> dict[str, int]:
    """Return the sizes that are divided among devices, by the name of their setting."""
    match plan.config:
        case ReplayConfig(batch_size=size) if plan.shape.memory is not None:
            return {"batch_size / segment_steps": size // settings.segment_steps}
        case ReplayConfig(batch_size=size):
            return {"batch_size": size}
        case PPOConfig(batch_steps=steps, minibatch_size=size):
            return {"batch_steps / segment_steps": steps // settings.segment_steps, "minibatch_size": size}
        case RolloutConfig(batch_steps=steps):
            return {"batch_steps / segment_steps": steps // settings.segment_steps}
        case _:
            return {}
