"""Ranks of a learner: one process for each device, with its share of each batch.

`rank_launcher` starts them. Rank 0 is the learner: it has the exchange, the experience, records and checkpoints,
and tells the others each step. On-policy, with `collect: device`, each rank steps its share of the copies and
learns from its own rollout. Otherwise rank 0 scatters its batches.

All ranks start with rank 0's networks and step by the mean of their gradients, so their networks stay equal (Li et
al. 2020, arXiv:2006.15704). Gloo sums on CPUs and NCCL on GPUs, there inside the captured update.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum
from functools import cached_property
from typing import Final, NoReturn, TypeVar

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]

from runtime.base import bounded_json, contract
from runtime.base.errors import FailedError, SetupError
from runtime.base.methods import PPOConfig
from runtime.base.metrics import Console
from runtime.base.processes import signal_at_end_of
from runtime.base.signals import Stop
from runtime.base.training import Settings
from runtime.rl.algos.algorithm import Algorithm
from runtime.rl.algos.method_config import ReplayConfig, RolloutConfig
from runtime.rl.algos.plan import Plan, assemble
from runtime.rl.buffers.replay import Batch, TensorBatch
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.roles.device_collector import Columns, DeviceCollector
from runtime.rl.roles.launch_context import Context, plan_of

STORE_VARIABLE: Final = "L2R_RANK_STORE"
"""File through which the ranks of one start on one node find each other; set by the launching process."""
EXIT_RANK_LOST: Final = 75
"""Exit code of a rank that lost another one (EX_TEMPFAIL of sysexits.h)."""
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
GROUP_SECONDS: Final = 300.0
"""Longest time of a collective operation: a rank may compile its step first. The end of a rank is noticed at
once.
"""
MEET_SECONDS: Final = 30.0
"""Longest wait for another node's rank at a start. All nodes start theirs at the same time."""
WAIT_SECONDS: Final = 30.0
"""Interval at which rank 0 tells the others that it has no data yet; well below `GROUP_SECONDS`."""
_GENERATOR: Final = "generator"
_EPISODES: Final = "episodes"
_BATCHES: Final = {kind.__name__: kind for kind in (Batch, RolloutBatch)}
_ALIGNED_BYTES: Final = 16
"""Columns of a share begin at multiples of this, which every type of tensor can be read at."""

AnyBatch = TypeVar("AnyBatch", bound=TensorBatch)


class RankLostError(FailedError):
    """Another rank has ended, so this one cannot continue either."""


def collect_apart(plan: Plan, settings: Settings) -> bool:
    """Return True if each rank collects its own experience."""
    return settings.collect == "device" and plan.is_on_policy


def share_of(plan: Plan, settings: Settings, count: int) -> tuple[Plan, Settings]:
    """Return plan and settings of one of ``count`` ranks: an equal share of minibatches and, if each collects, of
    copies and batch.
    """
    config = plan.config
    if isinstance(config, PPOConfig):
        config = replace(config, minibatch_size=config.minibatch_size // count)
    if isinstance(config, RolloutConfig) and collect_apart(plan, settings):
        config = replace(config, batch_steps=config.batch_steps // count)
        settings = replace(settings, num_envs=settings.num_envs // count)
    return replace(plan, config=config), settings


# --- a rank ------------------------------------------------------------------------------------------------
class RankCommand(IntEnum):
    """Next step of all ranks, told by rank 0."""

    END = 0
    UPDATE = 1
    """Collect a rollout and learn from it."""
    SAVE = 2
    REPORT = 3
    WAIT = 4
    """There is no data yet."""
    FORM = 5
    """The form of the next shares follows."""
    LEARN = 6
    """A share of a batch follows; learn from it."""


class RankGroup:
    """Connection of one rank to the others. Every method raises RankLostError if another rank has ended."""

    def __init__(self, rank: int, size: int, device: str, own_ranks: int = 1) -> None:
        self.rank, self.size, self.device, self._own_ranks = rank, size, device, own_ranks
        self._form: ShareForm | None = None
        """Of the latest share."""
        self._told = time.monotonic()
        self.is_over = False
        """Ranks may end from now on."""

    @property
    def devices(self) -> list[str]:
        """The devices of all ranks of this node."""
        kind = self.device.partition(":")[0]
        return [f"{kind}:{rank}" for rank in range(self._own_ranks)] if kind == "cuda" else [kind]

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of a tensor over all ranks; ``value`` may be overwritten."""
        # A view belongs to a tensor that is used further; gradients are tensors of their own.
        total = value.clone() if value._base is not None else value  # noqa: SLF001
        with _lost_ranks():
            dist.all_reduce(total)
        return total.div_(self.size)

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks."""
        with _lost_ranks():
            dist.all_reduce(total := value.clone())
        return total

    def tell(self, command: RankCommand) -> None:
        """Rank 0: tell the others what to do."""
        self._told = time.monotonic()
        with _lost_ranks():
            dist.broadcast(torch.tensor(int(command)), 0)

    def wait(self) -> None:
        """Rank 0: tell the others now and then that there is no data."""
        if time.monotonic() - self._told >= WAIT_SECONDS:
            self.tell(RankCommand.WAIT)

    def told(self) -> RankCommand:
        """Other ranks: wait for the next command."""
        with _lost_ranks():
            dist.broadcast(command := torch.tensor(0), 0)
        return RankCommand(int(command))

    def share_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return rank 0's state on all ranks, on the CPU; ``state`` of the others is ignored."""
        return _decoded(self._spread(_encoded(state if self.rank == 0 else {})))

    def _spread(self, text: Tensor) -> Tensor:
        """Return rank 0's bytes on all ranks."""
        with _lost_ranks():
            dist.broadcast(count := torch.tensor(len(text)), 0)
            text = text if self.rank == 0 else torch.empty(int(count), dtype=torch.uint8)
            dist.broadcast(text, 0)
        return text

    def scatter(self, batch: AnyBatch) -> AnyBatch:
        """Rank 0: give each rank an equal share of a batch, to learn from; return its own, on its device."""
        shares = batch.to(self.device).shares(self.size)
        form = ShareForm.of(shares[0])
        if form != self._form:
            self._form = form
            self.tell(RankCommand.FORM)
            self._spread(form.encoded())
        self.tell(RankCommand.LEARN)
        packed = [form.pack(share) for share in shares]
        with _lost_ranks():
            dist.scatter(torch.empty_like(packed[0]), packed, 0)
        return shares[0]

    def learn_form(self) -> None:
        """Other ranks: take the form of the next shares."""
        self._form = ShareForm.decoded(self._spread(torch.empty(0, dtype=torch.uint8)))

    def share_of_batch(self) -> TensorBatch:
        """Other ranks: return this rank's share of rank 0's batch."""
        assert self._form is not None  # noqa: S101  (rank 0 tells it first)
        packed = torch.empty(self._form.nbytes, dtype=torch.uint8, device=self.device)
        with _lost_ranks():
            dist.scatter(packed, None, 0)
        return self._form.unpack(packed)

    def errors(self, method: Algorithm) -> Tensor:
        """Return at rank 0 the TD errors of all shares in order, at other ranks their own."""
        own = method.td_error.contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)] if self.rank == 0 else None
        with _lost_ranks():
            dist.gather(own, parts, 0)
        return torch.cat(parts) if parts else own

    def gather(self, state: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Return the states of all ranks at rank 0, on the CPU; an empty list elsewhere."""
        text = _encoded(state)
        counts = [torch.tensor(0) for _ in range(self.size)]
        with _lost_ranks():
            dist.all_gather(counts, torch.tensor(len(text)))
            padded = torch.zeros(max(map(int, counts)), dtype=torch.uint8)
            padded[: len(text)] = text
            texts = [torch.empty_like(padded) for _ in counts] if self.rank == 0 else None
            dist.gather(padded, texts, 0)
        return [_decoded(sent[: int(count)]) for sent, count in zip(texts or (), counts, strict=False)]

    def share(self, plan: Plan, settings: Settings) -> tuple[Plan, Settings]:
        """Return plan and settings of one rank."""
        return share_of(plan, settings, self.size)

    def leading_collector(
        self, context: Context, settings: Settings, plan: Plan, method: Algorithm, console: Console
    ) -> DeviceCollector:
        """Return rank 0's collector."""
        return LeadingCollector(self, context, settings, plan, method, console)

    def end(self) -> None:
        """End together: rank 0 tells the others, and none ends before all know."""
        self.is_over = True
        if self.rank == 0:
            self.tell(RankCommand.END)
        self.sum(torch.tensor(0))

    def align(self, method: Algorithm, collector: DeviceCollector | None) -> None:
        """Give all ranks the networks of rank 0, and if they collect their part of the copies in its checkpoint."""
        copies = self.share_state(collector.copies if isinstance(collector, LeadingCollector) else {})
        state = self.share_state(method.state())
        if self.rank:
            method.load_state(state)
            if copies and collector is not None:
                collector.load_state(part(copies, self.rank, self.size, collector.live_state()))
            for generator in method.generators().values():
                # A function of rank and update: a resumed run draws other numbers than its first part did.
                generator.manual_seed(((generator.initial_seed() + self.rank) * 1_000_003 + method.updates) % 2**63)
        method.mean, method.ranks = self.mean, self.size


@dataclass(frozen=True)
class ShareForm:
    """Kind of a batch's share, and type and shape of its columns."""

    kind: str
    columns: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Name, type and shape of each."""

    @classmethod
    def of(cls, share: TensorBatch) -> ShareForm:
        """Return the form of a share."""
        columns = share.columns().items()
        return cls(
            type(share).__name__,
            tuple((name, str(part.dtype).removeprefix("torch."), tuple(part.shape)) for name, part in columns),
        )

    def encoded(self) -> Tensor:
        """Return this form as bytes."""
        return torch.frombuffer(bytearray(json.dumps([self.kind, self.columns]).encode()), dtype=torch.uint8)

    @classmethod
    def decoded(cls, text: Tensor) -> ShareForm:
        """Return the form in bytes."""
        kind, columns = bounded_json.loads(text.numpy().tobytes())
        return cls(kind, tuple((name, dtype, tuple(shape)) for name, dtype, shape in columns))

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        """First byte and bytes of each column."""
        places, first = [], 0
        for _, dtype, shape in self.columns:
            count = math.prod(shape) * getattr(torch, dtype).itemsize
            places.append((first, count))
            first += -(-count // _ALIGNED_BYTES) * _ALIGNED_BYTES
        return places

    @property
    def nbytes(self) -> int:
        """Bytes of a share."""
        first, count = self._places[-1]
        return first + count

    def pack(self, share: TensorBatch) -> Tensor:
        """Return a share of this form as bytes on its device."""
        parts = share.tensors
        packed = torch.empty(self.nbytes, dtype=torch.uint8, device=parts[0].device)
        for part, (first, count) in zip(parts, self._places, strict=True):
            packed[first : first + count] = part.contiguous().view(-1).view(torch.uint8)
        return packed

    def unpack(self, packed: Tensor) -> TensorBatch:
        """Return the share in ``packed``, whose memory it uses."""
        columns = {
            name: packed[first : first + count].view(getattr(torch, dtype)).view(shape)
            for (name, dtype, shape), (first, count) in zip(self.columns, self._places, strict=True)
        }
        return _BATCHES[self.kind](**columns)


# Not torch's object collectives: they send pickles, which run code when they are read.
def _encoded(state: Mapping[str, Tensor]) -> Tensor:
    own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}
    return torch.frombuffer(bytearray(save(own)), dtype=torch.uint8)


def _decoded(text: Tensor) -> dict[str, Tensor]:
    """Return the state in bytes. Raises RankLostError if they hold none."""
    try:
        return load(text.numpy().tobytes())
    except SafetensorError as error:
        raise RankLostError(f"another rank sent a state that cannot be read: {error}") from error


@contextmanager
def _lost_ranks() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankLostError("another rank has ended or does not answer") from error


def _end_with_others(group: RankGroup, pids: Sequence[int], console: Console) -> None:
    """End this process as soon as another rank has ended, whatever it computes.

    NCCL does not notice the end of a rank for minutes, and gloo notices it at the next collective operation. When
    a rank of another node ends, this node's launching process ends its own.
    """
    others = select.poll()
    try:
        for pid in pids:
            others.register(os.pidfd_open(pid), select.POLLIN)
    except ProcessLookupError:
        pass
    except (OSError, AttributeError):  # an older kernel, or no Linux
        return
    else:
        others.poll()
    if not group.is_over:
        end_after_loss(console, "another rank has ended")


def end_after_loss(console: Console, sentence: str) -> NoReturn:
    """End this process at once: the other ranks wait for the new start."""
    console.say(sentence)
    sys.stdout.flush()
    os._exit(EXIT_RANK_LOST)


def _end_at_signals(stop: Stop) -> None:
    """End this rank at SIGTERM from now on, even if it waits for others in native code: it has nothing to save."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_DFL)
    if stop.is_set():
        sys.stdout.flush()
        os._exit(contract.EXIT_DONE)


@contextmanager
def joined(device: str, stop: Stop, console: Console) -> Iterator[RankGroup | None]:
    """Join the group of the launching process; None if this process is not a rank."""
    if (path := os.environ.get(STORE_VARIABLE)) is None:
        yield None
        return
    signal_at_end_of(os.getppid(), signal.SIGKILL)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local, own_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    is_gpu = device == "cuda"
    if is_gpu:
        if local >= torch.cuda.device_count():
            raise SetupError(f"{own_ranks} ranks start here, and torch sees {torch.cuda.device_count()} GPUs")
        if not dist.is_nccl_available():
            raise SetupError(f"devices is {size}, and torch {torch.__version__} has no NCCL, which joins GPUs")
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    group = RankGroup(rank, size, device, own_ranks)
    _end_at_signals(stop)
    with _lost_ranks():
        store = FileStore(path, size) if own_ranks == size else _store_of_nodes(size)
        store.set(f"pid of {rank}", str(os.getpid()))
        others = (other for other in range(rank - local, rank - local + own_ranks) if other != rank)
        pids = [int(store.get(f"pid of {other}")) for other in others]
        threading.Thread(target=_end_with_others, args=(group, pids, console), daemon=True).start()
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if is_gpu else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=GROUP_SECONDS),
        )
    stop.install()
    yield group
    # Not after an error: with a rank lost this would wait for it.
    dist.destroy_process_group()
    # A rank waits for the launcher's word that all have ended. After a signal, or if another is lost, none comes.
    _end_at_signals(stop)


def _store_of_nodes(size: int) -> Store:
    """Return the store that node 0 serves for the ranks of all nodes."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, size, is_master=False, timeout=timedelta(seconds=MEET_SECONDS))


def follow(context: Context, group: RankGroup, console: Console) -> None:
    """Learn as rank 0 tells, until the end; only rank 0 reacts to a signal, and writes the last checkpoint."""
    plan, settings = share_of(plan_of(context.settings), context.settings, group.size)
    torch.set_num_threads(context.threads)
    torch.manual_seed(context.seed + group.rank)
    method = assemble(plan, settings, context.seed, group.device)
    collector: DeviceCollector | None = None
    if collect_apart(plan, settings):
        seed, weights = _seed(context, group), method.policy_weights
        collector = DeviceCollector(settings, plan, seed, group.device, weights, console.say)
    has_priorities = isinstance(plan.config, ReplayConfig) and plan.config.prioritised
    group.align(method, collector)
    while (command := group.told()) is not RankCommand.END:
        if command is RankCommand.FORM:
            group.learn_form()
        elif command is RankCommand.LEARN:
            method.update(group.share_of_batch())
            if has_priorities:
                group.errors(method)
        elif collector is not None:
            _collect(group, method, collector, command)
    group.end()


def _collect(group: RankGroup, method: Algorithm, collector: DeviceCollector, command: RankCommand) -> None:
    match command:
        case RankCommand.UPDATE:
            method.update(RolloutBatch(**collector.collect()))
        case RankCommand.SAVE:
            group.gather(collector.live_state())
        case RankCommand.REPORT:
            group.sum(collector.taken_sums())


def _seed(context: Context, group: RankGroup) -> int:
    return context.seed + 1_000_003 * group.rank


class LeadingCollector(DeviceCollector):
    """Collector of rank 0, which combines the collectors of all ranks: steps, states and figures."""

    def __init__(
        self,
        group: RankGroup,
        context: Context,
        settings: Settings,
        plan: Plan,
        method: Algorithm,
        console: Console,
    ) -> None:
        super().__init__(settings, plan, _seed(context, group), group.device, method.policy_weights, console.say)
        self._group = group
        self.copies: Mapping[str, Tensor] = {}
        """State of all copies in the checkpoint from which the run resumed."""

    @property
    def transitions(self) -> int:
        """Number of env steps of one rollout of all ranks."""
        return super().transitions * self._group.size

    def collect(self, *, at_random: bool = False) -> Columns:
        """Let all ranks take a rollout and learn from it; return this rank's."""
        self._group.tell(RankCommand.UPDATE)
        return super().collect(at_random=at_random)

    def live_state(self) -> dict[str, Tensor]:
        """Return the state of the copies of all ranks."""
        self._group.tell(RankCommand.SAVE)
        return whole(self._group.gather(super().live_state()), self._count)

    def load_state(self, state: Mapping[str, Tensor]) -> list[str]:
        """Continue with this rank's part of a whole state."""
        self.copies = state
        return super().load_state(part(state, 0, self._group.size, super().live_state()))

    def taken_sums(self) -> Tensor:
        """Return the sums of all ranks, and begin again."""
        self._group.tell(RankCommand.REPORT)
        return self._group.sum(super().taken_sums())


def whole(states: list[dict[str, Tensor]], count: int) -> dict[str, Tensor]:
    """Return one state of the parts of all ranks, each of ``count`` copies.

    It is the state of a single rank with all copies, plus the generators of the other ranks.
    """
    first = states[0]
    result = dict(first)
    for name in first:
        if name == _EPISODES:
            result[name] = torch.stack([state[name] for state in states]).sum(dim=0)
        elif name.startswith(_GENERATOR):
            result |= {f"{name}@{rank}": state[name] for rank, state in enumerate(states[1:], 1)}
        elif first[name].dim() and first[name].shape[_copies_axis(name)] == count:
            result[name] = torch.cat([state[name] for state in states], dim=_copies_axis(name))
    return result


def part(state: Mapping[str, Tensor], rank: int, size: int, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return one rank's part of a whole state, whatever number of ranks has saved it.

    ``own`` is the rank's present state, whose shapes it takes.
    """
    result = {}
    for name, tensor in state.items():
        if "@" in name:
            continue
        if name == _EPISODES:
            result[name] = tensor if rank == 0 else torch.zeros_like(tensor)
        elif name.startswith(_GENERATOR):
            result[name] = state.get(f"{name}@{rank}", tensor)
        else:
            axis = _copies_axis(name)
            is_shared = tensor.dim() and name in own and tensor.shape[axis] == size * own[name].shape[axis]
            result[name] = tensor.chunk(size, dim=axis)[rank] if is_shared else tensor
    if rank and f"{_GENERATOR}@{rank}" not in state and _GENERATOR in result:
        fresh = torch.Generator().manual_seed(int(result[_GENERATOR].long().sum()) * 1_000_003 + rank)
        result[_GENERATOR] = fresh.get_state()
        result[f"{_GENERATOR}.device"] = torch.tensor(list(b"cpu"), dtype=torch.uint8)
    return result


def _copies_axis(name: str) -> int:
    """Return the dimension of the copies in a state: the first in an environment of the user's, else the last."""
    return 0 if name.startswith("env.") else -1
