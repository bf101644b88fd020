"""Where a training process stands among those of its round: what torchrun's variables say, as one value."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from runtime import contract
from runtime.commands import FailedError
from runtime.process import UsageError


@dataclass(frozen=True, slots=True)
class Place:
    """One process of `world_size`; alone it is rank 0 of 1."""

    rank: int
    world_size: int
    round: int
    device: torch.device

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], device: str) -> Place:
        """Return the place that the variables state. Raises UsageError."""
        try:
            rank, world, local, number = (
                int(environ.get(name) or default)
                for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), (contract.ENV_ROUND, 0))
            )
        except ValueError as error:
            raise UsageError(f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers: {error}") from error
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda" and not torch.cuda.is_available():
            raise UsageError("--device cuda needs a GPU and a CUDA build of torch; neither is seen here")
        if device == "cuda":
            return cls(rank, world, number, torch.device("cuda", local % torch.cuda.device_count()))
        return cls(rank, world, number, torch.device("cpu"))

    @contextlib.contextmanager
    def group(self, timeout: timedelta) -> Iterator[None]:
        """Be in the process group of the round; a peer that is silent for `timeout` ends it."""
        if self.world_size == 1:
            yield
            return
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        try:
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo", timeout=timeout)
        except (RuntimeError, ValueError) as error:
            raise FailedError(
                f"the processes of round {self.round} do not find each other: {self.why(RuntimeError(str(error)))}"
            ) from error
        try:
            yield
        finally:
            dist.destroy_process_group()

    def wait_for_all(self) -> None:
        """Wait until every process is here."""
        if self.world_size > 1:
            dist.barrier()

    @staticmethod
    def why(error: RuntimeError) -> str:
        """Return what an error of the group says, without where in the library it says so."""
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        return re.sub(r"^\[[^\]]*\] ?", "", said).split(". ")[0][:200]

    @staticmethod
    def is_of_the_group(error: RuntimeError) -> bool:
        """Say whether an error comes from talking to the other processes: Gloo's have no type of their own."""
        return isinstance(error, dist.DistError) or "gloo" in str(error).lower()
