"""Metrics of runs and pods, decoded from metric records (``runtime.base.contract``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OLD_SECONDS: Final = 15.0
"""Age from which a record says nothing of the present, unless its writer is slower than that."""
_OLD_INTERVALS: Final = 3.0


def is_old(age_seconds: float, interval_seconds: float = 0.0) -> bool:
    """Return True where a record is older than three of its writer's intervals, and than ``OLD_SECONDS``."""
    return age_seconds > max(OLD_SECONDS, _OLD_INTERVALS * interval_seconds)


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """Learning state of one run, with the history that charts draw.

    Attributes:
        policy_lag, policy_lag_max: Versions between the policy that collected a sample and the newest one.
        mean_return, eval_return, eval_progress: None until an episode, or an evaluation, has ended.
        time: Of the record, seconds since the epoch. interval_seconds: since the record before; 0 for the first.
        device: Where it computes (``cpu``, ``cuda:0 NVIDIA H100 80GB HBM3``); empty if unknown.
        gpu_percent, gpu_memory_bytes: Utilisation of that GPU and its memory in use by all; None if unknown.
        gpu_reserved_bytes: Memory of that GPU that the learner itself has reserved; None if unknown.
        returns, rates: The latest points of eval (or training) return and of env steps a second, oldest first.
        update_rates, lags: The same of updates a second and of the policy lag.
    """

    run: str
    env_steps: int = 0
    updates: int = 0
    policy_version: int = 0
    policy_lag: float = 0.0
    policy_lag_max: float = 0.0
    mean_return: float | None = None
    eval_return: float | None = None
    eval_progress: float | None = None
    env_steps_per_second: float = 0.0
    updates_per_second: float = 0.0
    workers: int = 0
    time: float = 0.0
    interval_seconds: float = 0.0
    device: str = ""
    gpu_percent: float | None = None
    gpu_memory_bytes: float | None = None
    gpu_reserved_bytes: float | None = None
    returns: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    update_rates: tuple[float, ...] = ()
    lags: tuple[float, ...] = ()

    @property
    def reported_return(self) -> float | None:
        """Evaluation return where there is one, else the mean return of training episodes."""
        return self.mean_return if self.eval_return is None else self.eval_return


@dataclass(frozen=True, slots=True)
class PodMetrics:
    """Newest metric record of one pod.

    Attributes:
        kind: Of the record: ``worker``, ``evaluator``, ``elastic``, ``ps``, ``step``, ``fetch``, or another.
        rate: Environment steps a second; None where the record has no rate.
        simulator: State of its worst simulator; empty where it drives none.
        simulator_restarts, simulator_fps, simulator_error: Over all its simulators.
        rank, world_size: Of the process group, as ``torch.distributed`` counts; None outside of one.
        gpu_percent: Utilisation of its GPU, None if unknown. gpu_memory_bytes: memory in use on that GPU.
        step: Current activity: the state of a job's step, or of an elastic process; empty if unknown.
        round: Number of the rendezvous round of an elastic job; None elsewhere.
    """

    kind: str
    time: float = 0.0
    rate: float | None = None
    simulator: str = ""
    simulator_restarts: int = 0
    simulator_fps: float = 0.0
    simulator_error: str = ""
    rank: int | None = None
    world_size: int | None = None
    step: str = ""
    gpu_percent: float | None = None
    gpu_memory_bytes: float | None = None
    round: int | None = None

    @property
    def is_worth_following(self) -> bool:
        """True where screens display later records of this pod, so that an open log stream pays."""
        return bool(self.simulator or self.step) or self.rank is not None or self.gpu_percent is not None
