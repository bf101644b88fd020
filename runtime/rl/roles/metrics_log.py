"""What a learner writes down every few seconds: how far it is, how fast, how well, and how long it had to wait."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from runtime.algos.method import Stats
from runtime.counters import Counters
from runtime.messages import Evaluation, to_fields
from runtime.metrics import Console, Curves, Rate, RecordFile, record

RECORD_SECONDS: Final = 2.0
CURVES_EVERY: Final = 5
"""Records to one point in the TensorBoard curves."""


class Logbook:
    """Prints the records, keeps them in `metrics.jsonl` and draws the TensorBoard curves in the learner's folder.

    `evaluations` is filled by another thread; they are written down with the next record.
    """

    def __init__(
        self,
        folder: Path,
        console: Console,
        evaluations: deque[tuple[str, Evaluation]],
        env_steps: int,
        updates: int,
    ) -> None:
        self._console = console
        self._evaluations = evaluations
        self._records = RecordFile(folder / "metrics.jsonl")
        self._curves = Curves(folder / "tensorboard")
        self.evaluation: Evaluation | None = None
        """The latest one."""
        self.idle_share = 0.0
        """Share of the time without data, of the last record."""
        now = time.monotonic()
        self._written = now
        self._waited = 0.0
        """Seconds without data since the last record."""
        self._count = 0
        self._step_rate, self._update_rate = Rate(now, env_steps), Rate(now, updates)

    def waited(self, seconds: float) -> None:
        """Note that the learner had nothing to learn from for so long."""
        self._waited += seconds

    def is_due(self, now: float) -> bool:
        """Say whether it is time for a record; `now` is in seconds, as of `time.monotonic`."""
        return now - self._written >= RECORD_SECONDS

    def write(self, counters: Counters, env_steps: int, figures: Mapping[str, Any], stats: Stats | None) -> None:
        """Write one record: of the exchange its `figures`, of the latest update its `stats`.

        `env_steps` are those in the networks; after a kill they are fewer than the counter's, which never falls.
        """
        now, rest = time.monotonic(), dict(figures)
        while self._evaluations:
            self._keep(*self._evaluations.popleft(), env_steps)
        last = self.evaluation
        self.idle_share = min(1.0, self._waited / max(now - self._written, 1e-9))
        fields: dict[str, Any] = {
            "env_steps": counters.env_steps,
            "updates": counters.updates,
            "policy_version": counters.policy_version,
            "policy_lag": rest.pop("policy_lag"),
            "env_steps_per_second": self._step_rate.look(now, env_steps),
            "updates_per_second": self._update_rate.look(now, counters.updates),
            "mean_return": rest.pop("mean_return"),
            "eval_return": last.eval_return if last else None,
            "eval_progress": last.eval_progress if last else None,
            "workers": rest.pop("workers"),
            "idle_share": self.idle_share,
            **(stats.floats() if stats else {}),
            **rest,
            "lost_updates": counters.lost_updates,
        }
        line = record("learner", fields)
        self._console.record(line)
        self._records.append(line)
        if self._count % CURVES_EVERY == 0:
            self._curves.add("learner", fields, counters.env_steps)
        self._count += 1
        self._written, self._waited = now, 0.0

    def _keep(self, pod: str, evaluation: Evaluation, env_steps: int) -> None:
        self.evaluation = evaluation
        fields = {name: value for name, value in to_fields(evaluation).items() if name not in {"kind", "epoch"}}
        self._records.append(record("evaluator", {**fields, "env_steps": env_steps, "pod": pod}))
        self._curves.add("evaluator", fields, env_steps)

    def close(self) -> None:
        """Close every file."""
        self._records.close()
        self._curves.close()
