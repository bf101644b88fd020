"""Limits (``wall``, ``idle``, …) and alerts of a run, watched by its learner: tracks usage, ends the run at a
limit, and sends alerts.

The loop calls ``update`` with each record. Slow work runs in separate threads, so that a hanging alert target
delays nothing, and a hanging loop is reported as stalled.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from runtime.base import bounded_json, contract
from runtime.base.alert_delivery import AlertSender, Sender
from runtime.base.alert_rules import (
    FALLEN_SECONDS,
    AlertLedger,
    AlertMessage,
    AlertRule,
    Facts,
    ReturnTrend,
    parse_rules,
)
from runtime.base.atomic_files import write_atomic
from runtime.base.durations import duration_text
from runtime.base.errors import NotFiniteError, SetupError, unexpected_reason
from runtime.base.launch_context import LaunchContext
from runtime.base.limits import LimitNotice, Limits, Usage, worst_notice
from runtime.base.metrics import record

STATE_FILE: Final = "watch.json"
TERMINATION_LOG: Final = Path("/dev/termination-log")
"""File whose text Kubernetes shows as the message of a terminated container."""
FAREWELL_SECONDS: Final = 5.0
"""Longest wait of an ending learner for the delivery of its last alerts."""
TICK_SECONDS: Final = 5.0
"""Interval of the watch's own checks, which detect a hanging loop."""
HANG_SECONDS: Final = 60.0
"""How long a loop over a limit may be silent; until then it may be writing a checkpoint."""
DIED: Final = "its learner ended without a word and begins again"


@dataclass(slots=True)
class WatchState:
    """State of a watch that outlives its process: ``watch.json``.

    Attributes:
        used: Usage of each limit, in the limit's unit.
        best_return: Highest so far; None before the first.
        is_running: A learner has started and has not ended normally.
    """

    run_id: str
    used: Usage
    best_return: float | None
    is_running: bool
    ledger: AlertLedger

    def write(self, folder: Path) -> None:
        """Replace the file. A full disk does not end a run: a restart then counts from the last written state."""
        usage = {name: round(getattr(self.used, name), 6) for name in ("wall", "idle", "no_progress", "gpu_hours")}
        fields = {
            "run_id": self.run_id,
            "used": usage,
            "best_return": self.best_return,
            "is_running": self.is_running,
            "alerts": self.ledger.facts(),
        }
        with contextlib.suppress(OSError):
            write_atomic(folder / STATE_FILE, json.dumps(fields).encode(), is_durable=False)

    @classmethod
    def read(cls, folder: Path, run_id: str) -> WatchState:
        """Return the state of this launch; a new one if the file is from another launch or cannot be read."""
        fresh = cls(run_id, Usage(), None, is_running=False, ledger=AlertLedger())
        try:
            fields: dict[str, Any] = bounded_json.loads((folder / STATE_FILE).read_bytes())
            if fields["run_id"] != run_id:
                return fresh
            used = Usage(**{name: float(value) for name, value in fields["used"].items()})
            best = fields["best_return"]
            ledger = AlertLedger.from_facts(fields["alerts"])
            return cls(run_id, used, None if best is None else float(best), bool(fields["is_running"]), ledger)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return fresh


class RunWatch:
    """Watch of one learner process; without limits and alerts it does nothing and writes nothing.

    Args:
        say: Prints to the process's console; from any thread.
        clock: Seconds that changes of the date do not affect.
        end_process: Ends the process at once with an exit code.
    """

    def __init__(
        self,
        context: LaunchContext,
        environ: Mapping[str, str],
        folder: Path,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        end_process: Callable[[int], object] = os._exit,
    ) -> None:
        self._folder, self._say, self._clock, self._end_process = folder, say, clock, end_process
        self._limits, self._gpus, self._rules = from_environment(environ)
        self._lock = threading.Lock()
        self._state = WatchState.read(folder, context.run_id)
        self._facts = Facts(best_return=self._state.best_return)
        self._trend: ReturnTrend | None = None
        self._counts = (-1, -1)
        self._now = self._updated_at = clock()
        self._notice: LimitNotice | None = None
        self._spoken: set[tuple[str, bool]] = set()
        self._problems: set[str] = set()
        """Sentences about errors of the watch itself that were already printed."""
        sender = Sender(context.run, context.run_id, context.seed)
        # One thread per rule: a webhook that hangs must not delay an e-mail.
        self._senders = {rule: AlertSender(sender, environ, say) for rule in dict.fromkeys(self._rules)}
        self._closing = threading.Event()
        self._ticker: threading.Thread | None = None
        if self.is_idle:
            return
        if self._state.is_running:
            self._facts = replace(self._facts, failed=DIED)
        self._state.is_running = True
        self._tell()
        self._facts = replace(self._facts, failed="")
        if not self.is_idle:
            self._ticker = threading.Thread(target=self._tick, name="run-watch", daemon=True)
            self._ticker.start()

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to watch."""
        return self._limits == Limits() and not self._rules

    @property
    def ended(self) -> str | None:
        """Reason why a limit ended the run; None if none did."""
        notice = self._notice
        return notice.label if notice is not None and notice.is_reached else None

    def record_fields(self) -> dict[str, Any]:
        """Return the fields of a metric record."""
        return {} if self._notice is None else {"limit": self._notice.sentence}

    def update(self, env_steps: int, updates: int, value: float | None) -> None:
        """Record the learner's progress.

        Args:
            value: Its latest return: of evaluations if there are any, else of training episodes.
        """
        if self.is_idle:
            return
        with self._lock:
            now = self._clock()
            passed, self._now = now - self._now, now
            steps_before, updates_before = self._counts
            self._counts = (env_steps, updates)
            if updates != updates_before:
                self._updated_at = now
            used, best = self._state.used, self._state.best_return
            is_better = value is not None and math.isfinite(value) and (best is None or value > best)
            self._state.best_return = value if is_better else best
            used = used.after(passed, self._gpus)
            has_data = steps_before not in (-1, env_steps)
            idle, no_progress = 0.0 if has_data else used.idle, 0.0 if is_better else used.no_progress
            self._state.used = replace(used, idle=idle, no_progress=no_progress)
            self._notice = worst_notice(self._limits, self._state.used)
            diverged = self._divergence(value, now)
            self._facts = replace(
                self._facts, diverged=diverged, best_return=self._state.best_return, limit=self._notice
            )
        self._warn()
        self._tell()

    def _divergence(self, value: float | None, now: float) -> str:
        if value is None or not math.isfinite(value):
            return ""
        trend = self._trend = self._trend.after(value, now) if self._trend else ReturnTrend(value, now, now)
        if not trend.fallen_since or now - trend.fallen_since < FALLEN_SECONDS:
            return ""
        return f"its return fell from {trend.best or 0.0:.4g} to {trend.level:.4g}"

    def _warn(self) -> None:
        """Warn once that a limit is near."""
        notice = self._notice
        if notice is not None and (key := (notice.name, notice.is_reached)) not in self._spoken:
            self._spoken.add(key)
            self._say(notice.sentence)

    def finish(self, reason: str, facts: Mapping[str, Any]) -> str:
        """Record that the run is complete, and return the metric record of the end.

        Args:
            facts: Counters and figures at the end.
        """
        by_limit = f"ended by {reason}" if reason == self.ended else ""
        fields = {"run_id": self._state.run_id, "reason": by_limit or reason, "limit": bool(by_limit)}
        line = record("end", fields | dict(facts))
        with contextlib.suppress(OSError):
            write_atomic(self._folder / contract.END_FILE, line.encode() + b"\n", is_durable=False)
        # Only if the kubelet created it: elsewhere this program must not write to /dev.
        if by_limit and TERMINATION_LOG.is_file():
            with contextlib.suppress(OSError):
                TERMINATION_LOG.write_text(by_limit)
        with self._lock:
            self._facts = replace(self._facts, done=by_limit or reason)
        self._tell()
        return line

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Report an error that ends the block, and re-raise it."""
        try:
            yield
        except Exception as error:
            with self._lock:
                diverged = str(error) if isinstance(error, NotFiniteError) else self._facts.diverged
                self._facts = replace(self._facts, failed=str(error) or type(error).__name__, diverged=diverged)
            self._tell()
            raise

    def close(self) -> None:
        """Stop the threads; wait briefly for deliveries in progress."""
        self._closing.set()
        if self._ticker is not None:
            self._ticker.join(FAREWELL_SECONDS)
        deadline = time.monotonic() + FAREWELL_SECONDS
        for sender in self._senders.values():
            sender.close(max(0.0, deadline - time.monotonic()))
        if not self.is_idle:
            self._state.is_running = False
            self._state.write(self._folder)

    def _tell(self) -> None:
        """Send due alerts, and record that they were sent."""
        if self.is_idle:
            return
        with self._lock:
            facts = self._facts
            if self._counts[1] > 0 and not facts.done:
                facts = replace(facts, stalled_seconds=self._clock() - self._updated_at)
            messages: list[AlertMessage] = self._state.ledger.due(self._rules, facts, time.time())
            # Recorded before they are sent: a crash in between loses a message; the other order would send it
            # twice.
            self._state.write(self._folder)
        for message in messages:
            self._senders[message.rule].send(message)

    def _tick(self) -> None:
        """Check repeatedly, so that a hanging loop is reported as stalled."""
        while not self._closing.wait(TICK_SECONDS):
            self.look()

    def look(self) -> None:
        """Send due alerts, and end a process whose loop hangs past a limit; print errors."""
        with self._going_on("could not send its alerts"):
            self._tell()
        with self._going_on("could not see whether its loop hangs"):
            self._end_if_hung()

    @contextlib.contextmanager
    def _going_on(
        self, problem: str, next_step: str = f"it tries again every {TICK_SECONDS:g} s"
    ) -> Iterator[None]:
        """Print once that the block failed and continue: without the watch nothing would end a hanging loop."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            sentence = f"the watch of this run {problem} ({unexpected_reason(error)}); {next_step}"
            if sentence not in self._problems:
                self._problems.add(sentence)
                self._say(sentence)

    def _end_if_hung(self) -> None:
        with self._lock:
            silent = self._clock() - self._now
            notice = worst_notice(self._limits, self._state.used.after(silent, self._gpus))
            if notice is None or not notice.is_reached or self.ended or silent < HANG_SECONDS:
                return
            # The next process finds the limit reached: it loads the checkpoint and ends the run normally.
            self._state.used = self._state.used.after(silent, self._gpus)
            self._state.is_running = False
            self._notice = notice
            self._facts = replace(self._facts, done=notice.sentence, limit=notice)
            self._state.write(self._folder)
        # Kill it whatever fails here: the limit now counts as reached, so no later check would do it.
        with self._going_on("could not send its last alerts", "it is killed all the same"):
            self._say(f"{notice.sentence}; its loop has not moved for {duration_text(silent)}, so it is killed")
            self._tell()
            deadline = time.monotonic() + FAREWELL_SECONDS
            for sender in self._senders.values():
                sender.close(max(0.0, deadline - time.monotonic()))
        self._end_process(contract.EXIT_FAILED)


def from_environment(environ: Mapping[str, str]) -> tuple[Limits, int, tuple[AlertRule, ...]]:
    """Return limits, number of GPUs and rules. Raises SetupError."""
    try:
        limits, gpus = Limits.parse(environ.get(contract.ENV_LIMITS, ""))
    except ValueError as error:
        raise SetupError(f"{contract.ENV_LIMITS}: {error}") from error
    try:
        rules = parse_rules(environ.get(contract.ENV_ALERTS, ""))
    except ValueError as error:
        raise SetupError(f"{contract.ENV_ALERTS}: {error}") from error
    return limits, gpus, rules


def watch_of(context: LaunchContext, folder: Path, say: Callable[[str], None]) -> RunWatch:
    """Return the watch configured by this process's variables. Raises SetupError."""
    return RunWatch(context, os.environ, folder, say)
