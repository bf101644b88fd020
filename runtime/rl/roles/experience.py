"""Experience of a learner: its memory, its store, its batches, a dataset, and the data that a resumed run collects
first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from runtime.base import contract
from runtime.base.errors import SetupError
from runtime.base.methods import PPOConfig
from runtime.base.replay_memory import DataMemory, Place, choose_place, data_memory, size_text, update_bytes
from runtime.base.training import Settings
from runtime.exchange.learner_server import LearnerServer
from runtime.exchange.machines.member_state import window_of
from runtime.rl.algos.method_config import ReplayConfig, RolloutConfig
from runtime.rl.algos.plan import Plan, make_store
from runtime.rl.buffers.batch_source import BatchSource
from runtime.rl.buffers.replay import Draw, Replay
from runtime.rl.buffers.ring_index import GOES_ON, TERMINATED, TRUNCATED
from runtime.rl.checkpoints.counters import Counters
from runtime.rl.class_names import load_class
from runtime.rl.datasets.episode_files import Episode, dataset_files, open_episodes
from runtime.rl.device.accelerator import device_free_bytes, host_free_bytes
from runtime.rl.device.staging import DeviceCopier
from runtime.rl.roles.rate_limiter import RateLimiter, delay_after_resume, warmup_after_resume

if TYPE_CHECKING:
    from runtime.rl.algos.algorithm import Algorithm
    from runtime.rl.algos.off_policy.graph_updates import GraphUpdates, Locked


INFLIGHT_BYTES: Final = 128 * 1024 * 1024
"""Bytes of segments in transit for all workers: memory for segments that arrived but are not stored yet."""


def memory_of(plan: Plan, settings: Settings) -> DataMemory:
    """Return the sizes of a run's data."""
    sizes: dict[str, Any] = {}
    memory = plan.shape.memory
    match plan.config:
        case ReplayConfig(batch_size=batch_size, prioritised=prioritised):
            sizes = {
                "replay_capacity": settings.replay_capacity,
                "batch_size": batch_size,
                "prioritised": prioritised,
            }
            sizes["update_bytes"] = _update_bytes(plan, settings, batch_size)
        case RolloutConfig(batch_steps=count) if not plan.sends_gradients:
            sizes = {"batch_steps": count, "queue_batches": plan.config.queue_batches}
            rows = (plan.config.minibatch_size, count) if isinstance(plan.config, PPOConfig) else (count, 0)
            sizes["update_bytes"] = _update_bytes(plan, settings, *rows)
    return data_memory(
        observation_bytes=plan.layout.tail_bytes,
        action_bytes=plan.action_space.dtype.itemsize * plan.action_space.size,
        num_envs=settings.num_envs,
        segment_steps=settings.segment_steps,
        total_env_steps=settings.total_env_steps,
        state_floats=0 if memory is None else memory.column_width(settings.segment_steps),
        **sizes,
    )


def _update_bytes(plan: Plan, settings: Settings, gradient_rows: int, other_rows: int = 0) -> int:
    shape = plan.shape
    return update_bytes(
        numbers=shape.obs_space.vector if shape.network is None else shape.network.size,
        pictures=shape.images if shape.network is None else (),
        convolutions=shape.convolutions,
        hidden=shape.hidden,
        gradient_rows=gradient_rows,
        other_rows=other_rows,
        precision=settings.precision,
    )


class Experience:
    """Store of a run's data, on the learner's device if it fits there. Raises SetupError if it fits nowhere."""

    def __init__(self, plan: Plan, settings: Settings, seed: int, device: str, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._settings = settings
        self._device = device
        self._memory = memory_of(plan, settings)
        free = device_free_bytes(device)
        try:
            self.place: Place = choose_place(settings.replay_device, self._memory, free, host_free_bytes())
        except ValueError as error:
            raise SetupError(f"{contract.ENV_CONFIG}: {error}") from error
        # On a CPU, NumPy in host memory is as fast, and a large ring costs only what it contains.
        try:
            self.store = make_store(
                plan,
                settings,
                seed,
                device=device if self.place == "device" else None,
                pinned=free is not None,
                draws_on_device=self._gathers,
            )
        except MemoryError as error:
            raise SetupError(f"{contract.ENV_CONFIG}: {error}; lower replay_capacity") from error
        if (sentence := self._sentence()) is not None:
            say(sentence)

    def _sentence(self) -> str | None:
        """Return where the data is stored and its size; None if that is not worth a line."""
        where = "in the host's memory"
        if self.place == "device":
            where = f"on {self._device} beside {size_text(self._memory.reserve_bytes)} for networks and updates"
        if isinstance(self.store, Replay):
            size = size_text(self._memory.replay_bytes)
            return f"replay of {self._settings.replay_capacity} transitions, {size}, {where}"
        if self._memory.rollout_bytes:
            return f"rollouts, {size_text(self._memory.rollout_bytes)}, {where}"
        return None

    def batches(self, locked: Callable[[Callable[[], Draw]], Draw]) -> BatchSource | None:
        """Return the source of a replay's batches; ``locked`` runs a function while no segment is put in."""
        if not isinstance(self.store, Replay) or not isinstance(self._plan.config, ReplayConfig):
            return None
        is_copied = self.place == "host" and self._device.startswith("cuda")
        copier = DeviceCopier(self._device) if is_copied else None
        return BatchSource(
            self.store, self._plan.config.batch_size, locked, copier, ahead=not self._settings.lockstep
        )

    @property
    def _gathers(self) -> bool:
        """True if updates gather their own batches, and also draw them if they draw by priority.

        This requires learner and replay on one GPU without other ranks, and batches of single transitions.
        """
        plan, settings = self._plan, self._settings
        is_alone = self.place == "device" and self._device.startswith("cuda") and settings.devices == 1
        if not is_alone or not isinstance(plan.config, ReplayConfig) or plan.shape.memory is not None:
            return False
        from runtime.rl.algos.off_policy.critics import ReplayMethod

        method = load_class(plan.method)
        return issubclass(method, ReplayMethod) and (settings.cuda_graphs or plan.config.prioritised)

    def graph_updates(self, method: Algorithm, locked: Locked) -> GraphUpdates | None:
        """Return launches of several updates that gather their own batches; None if not used."""
        if not self._gathers:
            return None
        from runtime.rl.algos.off_policy.critics import ReplayMethod
        from runtime.rl.algos.off_policy.graph_updates import GraphUpdates

        store, config = self.store, self._plan.config
        assert isinstance(method, ReplayMethod) and isinstance(store, Replay)  # noqa: S101, PT018
        assert isinstance(config, ReplayConfig)  # noqa: S101
        return GraphUpdates(method, store, config.batch_size, locked, enabled=self._settings.cuda_graphs)

    def missing_after_resume(self) -> int:
        """Return how many transitions a resumed run collects before it learns from the replay again."""
        if not isinstance(self.store, Replay):
            return 0
        return warmup_after_resume(self._settings.warmup_steps, self.store.capacity, len(self.store))

    def delay_steps(self, missing: int, env_steps: int, updates: int) -> int:
        """Return the number of env steps by which a resumed run delays its updates, to collect missing data."""
        balance = self._plan.balance
        return delay_after_resume(missing, env_steps, updates, balance.warmup_steps, balance.updates_per_step)

    def limiter(self, counters: Counters) -> RateLimiter:
        """Return the rate limiter of a run with these counters."""
        balance = self._plan.balance
        warmup_steps = balance.warmup_steps + counters.delay_steps
        limiter = RateLimiter(warmup_steps, balance.updates_per_step, balance.band_steps)
        return limiter if self._settings.collect == "workers" else limiter.without_workers()

    def flow_terms(self) -> dict[str, int]:
        """Return the session's terms that depend on the segment size."""
        layout, count = self._plan.layout, self._plan.segment_transitions
        # For a usual segment: the last observation of each copy after the transitions, and no truncation.
        segment_bytes = layout.segment_bytes(count, max(1, count // self._settings.segment_steps))
        return {
            "transition_bytes": layout.item_bytes,
            "tail_bytes": layout.tail_bytes,
            "segment_transitions": count,
            "window": window_of(segment_bytes),
            "inflight_transitions": max(1, INFLIGHT_BYTES * count // segment_bytes),
        }


# --- a dataset: everything is put into the replay before the first update --------------------------------------
def fill_replay(replay: Replay, plan: Plan, folder: str, say: Callable[[str], None]) -> None:
    """Put all recorded episodes of ``folder`` into ``replay``.

    Skips an unreadable file with a sentence. Raises SetupError if nothing is left, if the spaces differ from the
    environment's, or if the replay is too small.
    """
    episodes = 0
    for path in dataset_files(folder):
        try:
            file = open_episodes(path)
        except ValueError as error:
            say(f"left out: {error}")
            continue
        try:
            if (file.facts.obs, file.facts.action) != (plan.shape.obs_space, plan.action_space):
                raise SetupError(
                    f"{path} was recorded in {file.facts.environment}, whose observations or actions are not those "
                    "of this run's environment"
                )
            if len(replay) + file.steps > replay.capacity:
                raise SetupError(
                    f"{folder} has more than replay_capacity = {replay.capacity} transitions; raise it, or take "
                    "fewer files"
                )
            for episode in file.read():
                replay.put(_columns(episode))
                episodes += 1
        except ValueError as error:
            say(f"left out the rest: {error}")
        finally:
            file.close()
    if not episodes:
        raise SetupError(f"no episode in {folder} can be read")
    say(f"dataset {folder}: {episodes} episodes, {len(replay)} transitions")


def _columns(episode: Episode) -> tuple[np.ndarray, ...]:
    """Return an episode as a segment of one copy; see `runtime.rl.buffers.ring_index`."""
    ended = np.full(len(episode), GOES_ON, dtype=np.uint8)
    ended[-1] = TERMINATED if episode.terminated else TRUNCATED
    tail = episode.obs[-1:] if episode.terminated else episode.obs[[-1, -1]]
    return episode.obs[:-1], episode.action, episode.reward, ended, tail


class DatasetSource:
    """Data source without workers: an update never waits."""

    def __init__(self, exchange: LearnerServer) -> None:
        self._exchange = exchange

    def await_data(self, updates: int, timeout_seconds: float) -> bool:  # noqa: ARG002  (nothing to wait for)
        """Return True. Raises RuntimeError if the exchange with the evaluators has failed."""
        self._exchange.await_data(updates, 0.0)
        return True
