"""Metric records of a learner, every few seconds: progress, speed, quality, and time without data."""

from __future__ import annotations

import math
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from runtime.base.metrics import AppendFile, Console, Rate, RecordFile, record
from runtime.exchange.protocol.messages import EvaluationReport
from runtime.rl.algos.algorithm import Stats
from runtime.rl.checkpoints.counters import Counters

RECORD_SECONDS: Final = 2.0
RECORDS_PER_POINT: Final = 5
"""Number of records per point of the TensorBoard curves."""
_SATURATED: Final = 0.8
"""Share of a core from which the network thread, of which there is one, holds up the workers."""


def bound_by(idle: float, collecting: float, network: float) -> tuple[str, float]:
    """Return the bottleneck of a learner and its share of the time.

    `describe` says of workers whether they wait for their environment, their policy or the link.

    Args:
        idle: Share of time without data. collecting: of the steps of its own copies. network: CPU share of the
            network thread.
    """
    if network >= _SATURATED:
        return "network thread", network
    shares = {"update": max(0.0, 1.0 - idle - collecting), "workers": idle, "environment": collecting}
    return max(shares.items(), key=lambda item: item[1])


class MetricsLog:
    """Writes records to standard output, `metrics.jsonl` and the TensorBoard curves in the learner's folder.

    Another thread fills `evaluations`; each record empties it.
    """

    def __init__(
        self,
        folder: Path,
        console: Console,
        evaluations: deque[tuple[str, EvaluationReport]],
        env_steps: int,
        updates: int,
        evaluated: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._evaluated = evaluated
        self._console = console
        self._evaluations = evaluations
        self._records = RecordFile(folder / "metrics.jsonl")
        self._curves = _curves_of(folder, console)
        self.evaluation: EvaluationReport | None = None
        """The latest evaluation."""
        self.idle_share = 0.0
        """Share of the time without data, in the last record."""
        now = time.monotonic()
        self._written = now
        self._waited = 0.0
        """Seconds without data since the last record."""
        self._collecting: float | None = 0.0
        """Seconds in which the learner itself collected since then; None if its device tells no time."""
        self._count = 0
        self._step_rate, self._update_rate = Rate(now, env_steps), Rate(now, updates)

    def waited(self, seconds: float) -> None:
        """Add a period in which the learner had no data."""
        self._waited += seconds

    def collected(self, seconds: float | None) -> None:
        """Add a period in which the learner itself collected; None if the time of its device is not known."""
        self._collecting = None if seconds is None or self._collecting is None else self._collecting + seconds

    def is_due(self, now: float) -> bool:
        """Return True if a record is due at `now`, in seconds of `time.monotonic`."""
        return now - self._written >= RECORD_SECONDS

    def write(self, counters: Counters, env_steps: int, figures: Mapping[str, Any], stats: Stats | None) -> None:
        """Write one record with the `figures` of the exchange and the `stats` of the latest update.

        `env_steps` counts the steps that the networks learned from; after a kill it is less than the counter.
        """
        now, rest = time.monotonic(), dict(figures)
        while self._evaluations:
            self._write_evaluation(*self._evaluations.popleft(), env_steps)
        last = self.evaluation
        seconds = max(now - self._written, 1e-9)
        self.idle_share = min(1.0, self._waited / seconds)
        if self._collecting is not None:
            bound = bound_by(self.idle_share, min(1.0, self._collecting / seconds), rest.get("network_share", 0.0))
            rest |= {"bound_by": bound[0], "bound_share": round(bound[1], 4)}
        fields: dict[str, Any] = {
            "env_steps": counters.env_steps,
            "updates": counters.updates,
            "policy_version": counters.policy_version,
            "policy_lag": rest.pop("policy_lag"),
            "env_steps_per_second": self._step_rate.update(now, env_steps),
            "updates_per_second": self._update_rate.update(now, counters.updates),
            "mean_return": rest.pop("mean_return"),
            "eval_return": last.eval_return if last else None,
            "eval_progress": last.eval_progress if last else None,
            "workers": rest.pop("workers"),
            "idle_share": self.idle_share,
            **(stats.floats() if stats else {}),
            # After the known fields, so that their order in a record does not depend on the exchange's fields.
            **rest,
            "lost_updates": counters.lost_updates,
        }
        line = record("learner", fields)
        self._console.record(line)
        self._records.append(line)
        # Fewer points than records: TensorBoard loads whole files, and a run may last for days.
        if self._curves is not None and self._count % RECORDS_PER_POINT == 0:
            self._curves.add("learner", fields, counters.env_steps)
        self._count += 1
        self._written, self._waited, self._collecting = now, 0.0, 0.0

    def _write_evaluation(self, pod: str, evaluation: EvaluationReport, env_steps: int) -> None:
        self.evaluation = evaluation
        fields = evaluation.record_fields()
        self._records.append(record("evaluator", {**fields, "env_steps": env_steps, "pod": pod}))
        if self._curves is not None:
            self._curves.add("evaluator", fields, env_steps)
        self._evaluated(fields)

    def close(self) -> None:
        """Close all files."""
        self._records.close()
        if self._curves is not None:
            self._curves.close()


def _curves_of(folder: Path, console: Console) -> TensorBoardCurves | None:
    """Return the curves; None, after a message, if the package that defines their format is missing."""
    try:
        return TensorBoardCurves(folder / "tensorboard")
    except ImportError as error:
        console.say(f"TensorBoard curves are not written: {error}; metrics.jsonl has every record")
        return None


class TensorBoardCurves:
    """Event file with every number of a record as a scalar over env steps.

    The file (TFRecords of `Event` messages) is written here because tensorboardX's writer uses a thread: when a
    full disk ends that thread, adding further points blocks forever.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ImportError if tensorboardX, which defines the messages, is not installed."""
        from tensorboardX.proto.event_pb2 import Event

        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{now:.6f}.{socket.gethostname()}"  # TensorBoard reads them in this order
        self._file = AppendFile(folder / name)
        self._append(Event(wall_time=now, file_version="brain.Event:2"))

    def add(self, kind: str, fields: Mapping[str, Any], env_steps: int) -> None:
        """Add the numbers of one record."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=f"{kind}/{name}", simple_value=value)
            for name, value in fields.items()
            if isinstance(value, int | float) and math.isfinite(value)
        ]
        self._append(Event(wall_time=time.time(), step=env_steps, summary=Summary(value=values)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, event: Any) -> None:
        """Append an Event as a TFRecord: its length and its bytes, each followed by its masked CRC-32C."""
        from tensorboardX.record_writer import masked_crc32c

        parts = struct.pack("<Q", event.ByteSize()), event.SerializeToString()
        self._file.append(b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in parts))
