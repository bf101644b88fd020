"""Rank of a training process: torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK) as one value."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from runtime.base import contract
from runtime.base.errors import FailedError, SetupError


def device_kind(option: str) -> str:
    """Return cpu or cuda for an option, which may be auto. Raises SetupError for a GPU that torch does not find."""
    if option == "cuda" and not torch.cuda.is_available():
        raise SetupError("--device cuda needs a GPU and a CUDA build of torch; neither is seen here")
    return "cuda" if option != "cpu" and torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, slots=True)
class TrainingRank:
    """One process of `world_size`; alone it is rank 0 of 1."""

    rank: int
    world_size: int
    round: int
    device: torch.device

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], device: str) -> TrainingRank:
        """Return the rank that the variables state. Raises SetupError."""
        try:
            rank, world, local, number = (
                int(environ.get(name) or default)
                for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), (contract.ENV_ROUND, 0))
            )
        except ValueError as error:
            raise SetupError(f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers: {error}") from error
        kind = device_kind(device)
        gpu = f":{local % torch.cuda.device_count()}" if kind == "cuda" else ""
        return cls(rank, world, number, torch.device(kind + gpu))

    @contextlib.contextmanager
    def group(self, timeout: timedelta) -> Iterator[None]:
        """Join the process group of the round; a collective operation that takes `timeout` fails."""
        if self.world_size == 1:
            yield
            return
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        try:
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo", timeout=timeout)
        except (RuntimeError, ValueError) as error:
            raise FailedError(
                f"the processes of round {self.round} do not find each other: "
                f"{self.short_reason(RuntimeError(str(error)))}"
            ) from error
        try:
            yield
        finally:
            dist.destroy_process_group()

    def wait_for_all(self) -> None:
        """Wait for all ranks at a barrier."""
        if self.world_size > 1:
            dist.barrier()

    @staticmethod
    def short_reason(error: RuntimeError) -> str:
        """Return the first sentence of an error of the group, without its place in the library."""
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        return re.sub(r"^\[[^\]]*\] ?", "", message).split(". ")[0][:200]

    @staticmethod
    def is_group_error(error: RuntimeError) -> bool:
        """Return True for errors of communication with other ranks; Gloo's have only a text, no type."""
        return isinstance(error, dist.DistError) or "gloo" in str(error).lower()
