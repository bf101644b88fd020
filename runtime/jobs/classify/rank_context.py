"""Rank of a training process, from torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK)."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from runtime.base import contract
from runtime.base.errors import FailedError, SetupError
from runtime.jobs.elastic.newest_state import gather_texts
from runtime.rendezvous.plan import node_name


def device_kind(option: str) -> str:
    """Return cpu or cuda for an option, which may be auto. Raises SetupError if torch does not find the GPU."""
    if option == "cuda" and not torch.cuda.is_available():
        raise SetupError("--device cuda needs a GPU and a CUDA build of torch; neither is seen here")
    return "cuda" if option != "cpu" and torch.cuda.is_available() else "cpu"


def gpu_index(local_rank: int, gpus: int, *, is_shared: bool) -> int:
    """Return the GPU of a process on a node. Raises SetupError if two would share one without permission."""
    if local_rank >= gpus and not is_shared:
        raise SetupError(
            f"process {local_rank} of this node has no GPU of its own: torch sees {gpus} here, and NCCL takes one "
            f"process for each; leave --nproc-per-node out, or share on purpose with --shared-gpu"
        )
    return local_rank % gpus


def shared_gpu(gpus: Sequence[str]) -> str:
    """Return a sentence if two ranks have the same GPU, else an empty text; `gpus` are unique ids by rank."""
    ranks: defaultdict[str, list[str]] = defaultdict(list)
    for rank, gpu in enumerate(gpus):
        ranks[gpu].append(str(rank))
    gpu, sharers = max(ranks.items(), key=lambda item: len(item[1]))
    if len(sharers) == 1:
        return ""
    return (
        f"ranks {' and '.join(sharers)} share the GPU {gpu}, and NCCL takes one process for each; place each node "
        f"on a GPU of its own (placement: {{policy: spread}}), or share on purpose with --shared-gpu"
    )


@dataclass(frozen=True, slots=True)
class TrainingRank:
    """One process of `world_size`; a single process is rank 0 of 1.

    `is_shared` allows ranks on one GPU; gradients are then summed by Gloo.
    """

    rank: int
    world_size: int
    round: int
    device: torch.device
    local_rank: int = 0
    node: str = ""
    is_shared: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], device: str, *, is_shared: bool = False) -> TrainingRank:
        """Return the rank from the variables. Raises SetupError."""
        try:
            rank, world, local, number = (
                int(environ.get(name) or default)
                for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), (contract.ENV_ROUND, 0))
            )
        except ValueError as error:
            raise SetupError(f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers: {error}") from error
        kind = device_kind(device)
        index = gpu_index(local, torch.cuda.device_count(), is_shared=is_shared) if kind == "cuda" else None
        where = torch.device(kind) if index is None else torch.device(kind, index)
        return cls(rank, world, number, where, local, node_name(environ), is_shared)

    @property
    def backend(self) -> str:
        """Backend of the process group. It includes one for CPU tensors, which ranks use to compare GPUs before
        NCCL.
        """
        return "cpu:gloo,cuda:nccl" if self.device.type == "cuda" and not self.is_shared else "gloo"

    @contextlib.contextmanager
    def group(self, timeout: timedelta) -> Iterator[None]:
        """Join the process group of the round; a collective operation that takes longer than `timeout` fails."""
        if self.world_size == 1:
            yield
            return
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        try:
            dist.init_process_group(self.backend, timeout=timeout)
        except (RuntimeError, ValueError) as error:
            raise FailedError(
                f"the processes of round {self.round} do not find each other: "
                f"{self.short_reason(RuntimeError(str(error)))}"
            ) from error
        try:
            self._check_gpus()
            yield
        finally:
            dist.destroy_process_group()

    def _check_gpus(self) -> None:
        """Raise FailedError on all ranks if two have the same GPU: NCCL would only report ``invalid usage``."""
        if "nccl" not in self.backend:
            return
        # NCCL connects at the first operation on a GPU, so this comparison over Gloo comes before that.
        properties = torch.cuda.get_device_properties(self.device)
        unique = str(getattr(properties, "uuid", "")) or f"{self.node}:{self.device.index}"
        if sentence := shared_gpu(gather_texts(unique)):
            raise FailedError(sentence)

    def wait_for_all(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            # Not `barrier`: on a GPU it has to guess the device.
            dist.all_reduce(present := torch.ones(1, device=self.device))
            present.item()

    @staticmethod
    def short_reason(error: RuntimeError) -> str:
        """Return the first sentence of a group error, without its location in the library."""
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        return re.sub(r"^\[[^\]]*\] ?", "", message).split(". ")[0][:200]

    @staticmethod
    def is_group_error(error: RuntimeError) -> bool:
        """Return True for errors of communication with other ranks; Gloo's can be recognised only by their text."""
        return isinstance(error, dist.DistError) or "gloo" in str(error).lower()
