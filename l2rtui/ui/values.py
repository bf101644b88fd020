"""What widgets need to know of values from higher floors: shapes, so that widgets see no service and no backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class LogText(Protocol):
    """One line of a log: ``backends.base.LogLine``, or anything of its shape. Raw: it is sanitised when shown."""

    @property
    def time(self) -> float:
        """When it was written, seconds since the epoch."""
        ...

    @property
    def pod(self) -> str:
        """Name of the pod."""
        ...

    @property
    def text(self) -> str:
        """The line as it was written."""
        ...

    @property
    def is_mark(self) -> bool:
        """The backend wrote it and not the process."""
        ...


class Learning(Protocol):
    """Where the training of a run stands: ``services.metrics.RunMetrics``, or anything of its shape."""

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        ...

    @property
    def policy_version(self) -> int:
        """Version of the newest policy."""
        ...

    @property
    def policy_lag(self) -> float:
        """Mean versions between a sample's policy and the newest."""
        ...

    @property
    def policy_lag_max(self) -> float:
        """The most of these."""
        ...

    @property
    def mean_return(self) -> float | None:
        """Of the latest training episodes."""
        ...

    @property
    def eval_return(self) -> float | None:
        """Of the latest evaluation."""
        ...

    @property
    def eval_progress(self) -> float | None:
        """How far the latest evaluation came, in the environment's own unit."""
        ...

    @property
    def env_steps_per_second(self) -> float:
        """Rate of all workers together."""
        ...

    @property
    def updates_per_second(self) -> float:
        """Rate of the learner."""
        ...

    @property
    def workers(self) -> int:
        """Connected workers."""
        ...

    @property
    def returns(self) -> tuple[float, ...]:
        """History of the return, oldest first."""
        ...

    @property
    def rates(self) -> tuple[float, ...]:
        """History of the steps a second, oldest first."""
        ...

    @property
    def update_rates(self) -> tuple[float, ...]:
        """History of the updates a second, oldest first."""
        ...

    @property
    def lags(self) -> tuple[float, ...]:
        """History of the policy lag, oldest first."""
        ...


class EventText(Protocol):
    """Something that happened to an object: ``backends.base.KubeEvent``, or anything of its shape."""

    @property
    def time(self) -> float:
        """When it happened last, seconds since the epoch."""
        ...

    @property
    def level(self) -> str:
        """Normal or Warning."""
        ...

    @property
    def reason(self) -> str:
        """One word."""
        ...

    @property
    def object(self) -> str:
        """Kind and name of the object."""
        ...

    @property
    def message(self) -> str:
        """A sentence."""
        ...

    @property
    def namespace(self) -> str:
        """Where the object is."""
        ...

    @property
    def count(self) -> int:
        """How often it happened."""
        ...


class LeakText(Protocol):
    """Something that a run has left behind: ``backends.base.Leak``, or anything of its shape."""

    @property
    def run(self) -> str:
        """The run."""
        ...

    @property
    def kind(self) -> str:
        """Kind of the object."""
        ...

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def reason(self) -> str:
        """Why it should not be there."""
        ...


class PodRecord(Protocol):
    """What a pod says of itself: ``services.podnews.PodNews``, or anything of its shape."""

    @property
    def rate(self) -> float | None:
        """Environment steps a second."""
        ...

    @property
    def simulator(self) -> str:
        """State of its worst simulator; empty where it drives none."""
        ...

    @property
    def simulator_restarts(self) -> int:
        """Of all its simulators."""
        ...

    @property
    def simulator_fps(self) -> float:
        """Poses a second, of all its simulators."""
        ...

    @property
    def simulator_error(self) -> str:
        """The newest, a sentence."""
        ...

    @property
    def rank(self) -> int | None:
        """Among the processes that work together now."""
        ...

    @property
    def world_size(self) -> int | None:
        """How many these are."""
        ...

    @property
    def round(self) -> int | None:
        """How often they have met anew."""
        ...

    @property
    def step(self) -> str:
        """What it is at."""
        ...

    @property
    def gpu_percent(self) -> float | None:
        """How busy its GPU is."""
        ...

    @property
    def gpu_memory_bytes(self) -> float | None:
        """In use of its GPU."""
        ...


class SimulatorFacts(Protocol):
    """One simulator: ``services.simulators.Simulator``, or anything of its shape."""

    @property
    def index(self) -> int:
        """Its number at its worker."""
        ...

    @property
    def kind(self) -> str:
        """How it is run."""
        ...

    @property
    def state(self) -> str:
        """One word, or two."""
        ...

    @property
    def restarts(self) -> int:
        """Starts beyond the first."""
        ...

    @property
    def uptime_seconds(self) -> float:
        """Since it was ready."""
        ...

    @property
    def fps(self) -> float:
        """Poses a second."""
        ...

    @property
    def error(self) -> str:
        """Its newest failure."""
        ...


class PictureCell(Protocol):
    """Two pixels, one over the other: ``services.pictures.Cell``, or anything of its shape."""

    @property
    def upper(self) -> tuple[int, int, int]:
        """Red, green and blue."""
        ...

    @property
    def lower(self) -> tuple[int, int, int]:
        """Red, green and blue."""
        ...

    @property
    def shade(self) -> str:
        """One character as light as both."""
        ...


PictureRows = Sequence[Sequence[PictureCell]]
