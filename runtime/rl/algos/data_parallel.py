"""An update on one device or several: each computes it on a share of the batch, all step by the mean gradient.

That is data parallelism as DistributedDataParallel has it (Li et al. 2020, arXiv:2006.15704): replicas that begin
alike and step alike stay alike. Here they are threads of one process and not processes: the batch is in its memory
already, none of them can be lost alone, and Python's lock is held for no longer than it takes to start kernels.

With a precision of bfloat16 the products of matrices and the convolutions are computed in it, and everything else
(sums, losses, weights, moments) in float32; it has float32's range, so losses need not be scaled (Kalamkar et al.
2019, arXiv:1905.12322).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Protocol, Self

import torch
from torch import Tensor

from runtime.algos.configs import ImpalaConfig, PPOConfig, SACConfig
from runtime.algos.method import Method, Stats
from runtime.algos.plan import Plan, build
from runtime.settings import Settings


class Shareable(Protocol):
    """A batch."""

    def shares(self, count: int) -> list[Self]:
        """Return equal parts, one behind the other."""
        ...

    def to(self, device: str) -> Self:
        """Copy to another device."""
        ...


class Meeting:
    """Where threads bring one value each and take the mean of all home."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)
        self._brought: list[Tensor] = [torch.empty(0)] * count

    def mean(self, place: int, value: Tensor) -> Tensor:
        """Return the mean of what all bring, on the device of ``value``. BrokenBarrierError if one of them failed.

        Everybody sums up in the same order, so that all get the same to the last bit.
        """
        self._brought[place] = value
        self._barrier.wait()
        mean = torch.stack([each.to(value.device) for each in self._brought]).mean(dim=0)
        self._barrier.wait()  # nobody brings the next before all have seen this
        return mean

    def fail(self) -> None:
        """Let nobody wait for one who will not come."""
        self._barrier.abort()


class Team:
    """Replicas of a method, each on a device. The first is the one that is published and kept in checkpoints."""

    def __init__(self, members: Sequence[Method], devices: Sequence[str], precision: str = "float32") -> None:
        self.members = tuple(members)
        self._devices = tuple(devices)
        self._is_half = precision == "bfloat16"
        self._meeting = Meeting(len(members))
        self._threads: ThreadPoolExecutor | None = None
        if len(members) > 1:
            self._threads = ThreadPoolExecutor(len(members) - 1, "device")
            for place, member in enumerate(members):
                member.mean = partial(self._meeting.mean, place)
            self.align()

    def align(self) -> None:
        """Make all replicas as the first is; each draws random numbers of its own."""
        first, *others = self.members
        for place, other in enumerate(others, 1):
            for tensor, wanted in zip(other.tensors().values(), first.tensors().values(), strict=True):
                tensor.detach().copy_(wanted.detach())
            for generator in other.generators().values():
                generator.manual_seed(((generator.initial_seed() + place) * 1_000_003 + first.updates) % 2**63)
            other.updates = first.updates

    def update(self, batch: Shareable) -> Stats:
        """Learn from a batch, which has as many equal shares as there are devices; statistics are of the first."""
        if self._threads is None:
            return self._compute(0, batch)
        mine, *shares = batch.shares(len(self.members))
        rest = [self._threads.submit(self._compute, place, share) for place, share in enumerate(shares, 1)]
        try:
            stats = self._compute(0, mine)
        except threading.BrokenBarrierError:
            for each in rest:  # it was one of them: say why
                error = each.exception()
                if error is not None and not isinstance(error, threading.BrokenBarrierError):
                    raise error from None
            raise
        for each in rest:
            each.result()
        return stats

    def _compute(self, place: int, share: Shareable) -> Stats:
        device = self._devices[place]
        try:
            if not self._is_half:
                return self.members[place].update(share.to(device))
            # Weights change within an update, so no copy of them in the other precision may be kept.
            with torch.autocast(torch.device(device).type, torch.bfloat16, cache_enabled=False):
                return self.members[place].update(share.to(device))
        except BaseException:
            self._meeting.fail()
            raise

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown()


def assemble(plan: Plan, settings: Settings, seed: int, devices: Sequence[str]) -> Team:
    """Make a method's replicas. ValueError if its batches have not as many equal parts as there are devices."""
    count = len(devices)
    if count > 1:
        if plan.sends_gradients:
            raise ValueError("devices: gradients that workers send are applied on one device; set it to 1")
        for name, size in _sizes(plan, settings).items():
            if size % count:
                raise ValueError(f"devices is {count} and {name} {size}, which has not so many equal parts")
        if isinstance(plan.config, PPOConfig):
            plan = replace(plan, config=replace(plan.config, minibatch_size=plan.config.minibatch_size // count))
    return Team([build(plan, seed, each) for each in devices], devices, settings.precision)


def _sizes(plan: Plan, settings: Settings) -> dict[str, int]:
    """What is shared among devices, by name."""
    match plan.config:
        case SACConfig(batch_size=size):
            return {"batch_size": size}
        case PPOConfig(batch_steps=steps, minibatch_size=size):
            return {"batch_steps / segment_steps": steps // settings.segment_steps, "minibatch_size": size}
        case ImpalaConfig(batch_steps=steps):
            return {"batch_steps / segment_steps": steps // settings.segment_steps}
        case _:
            return {}
