"""Live metrics for Weights & Biases or MLflow: a separate process that sends the records as they appear.

It reads `metrics.jsonl`, which has the records of learner and evaluator. The learner does not wait for it, nor for
its failures: while the service cannot be reached, the records stay in the file and are sent later, also by the
tracker of the learner's next start. `tracked.json` says up to which time they were sent.

Secrets come only from variables. A sentence about an error repeats none of their values.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from runtime.base import bounded_json, contract, trackers
from runtime.base.atomic_files import write_atomic
from runtime.base.errors import SetupError
from runtime.base.metrics import Console
from runtime.base.signals import Stop
from runtime.base.training import read_object
from runtime.rl.roles.launch_context import Context

_POLL_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = (5.0, 300.0)
"""First and longest pause after a failure."""
_FAREWELL_SECONDS: Final = (5.0, 30.0)
"""Longest wait for the last records of a learner that is stopped, and of one that is done."""
_MAX_RECORDS: Final = 500
"""Records sent in one call."""
_DONE: Final = b"done"
_SENT: Final = "tracked.json"
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.ASCII | re.IGNORECASE)
_LOGIN: Final = re.compile(r"(?<=://)[^/@\s]+@", re.ASCII)
_MAX_REASON: Final = 200


# --- the learner's side ------------------------------------------------------------------------------------------
@contextlib.contextmanager
def tracking(context: Context, folder: Path, stop: Stop, console: Console) -> Iterator[None]:
    """Send the records of the block to the tracker of the settings. Raises SetupError if it is not installed."""
    tracker = context.settings.log_to
    if tracker is None:
        yield
        return
    trackers.check_installed(tracker)
    try:
        process = subprocess.Popen([sys.executable, "-m", "runtime", "track", str(folder)], stdin=subprocess.PIPE)
    except OSError as error:  # training continues, as without memory
        console.say(f"{tracker}: no metrics are sent: {error}")
        yield
        return
    ending = b""
    try:
        yield
        ending = b"" if stop.is_set() else _DONE
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            process.communicate(ending, timeout=_FAREWELL_SECONDS[bool(ending)])
        if process.poll() != contract.EXIT_DONE:
            process.kill()
            process.wait()
            then = f"`l2rtui history export {context.run} --to {tracker}` sends them"
            console.say(f"{tracker}: the last metrics were not sent; {then}")


# --- its process -------------------------------------------------------------------------------------------------
class Figures(NamedTuple):
    """Numbers of a record; the time is in seconds since the epoch."""

    env_steps: int
    time: float
    values: dict[str, float]


class OpenRun(Protocol):
    """Open run of a tracker; every method may raise anything.

    Attributes:
        place: Destination, for display.
    """

    place: str

    def add(self, records: list[Figures]) -> None:
        """Send records."""

    def end(self, *, is_done: bool) -> None:
        """Send what is left; the run goes on later unless it is done."""


def run(folder: Path, context: Context) -> int:
    """Send records until standard input ends; return the exit code."""
    tracker = context.settings.log_to
    if tracker is None:
        raise SetupError("log_to is not set: there is no tracker to send records to")
    # Libraries print to both streams; only our sentences belong in the learner's log.
    log = os.fdopen(os.dup(1), "w", buffering=1)
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    trackers.set_quiet()

    def say(sentence: str) -> None:
        with contextlib.suppress(OSError):
            log.write(f"{time.strftime('%H:%M:%S')} {sentence}\n")

    sender = TrackerSender(tracker, folder, context, say)
    while (ending := _ending(_POLL_SECONDS)) is None:
        sender.send()
    return sender.close(is_done=ending == _DONE)


def _ending(seconds: float) -> bytes | None:
    """Wait; return what the learner wrote at its end, None while it runs."""
    if not select.select([0], [], [], seconds)[0]:
        return None
    return os.read(0, 64)


class TrackerSender:
    """Sends new records; after a failure it waits and sends them again."""

    def __init__(self, tracker: str, folder: Path, context: Context, say: Callable[[str], None]) -> None:
        self._name, self._folder, self._context, self._say = tracker, folder, context, say
        self._sent = self._known = _sent_until(folder)
        self._inode, self._offset = 0, 0
        self._run: OpenRun | None = None
        self._pause, self._next = _RETRY_SECONDS[0], 0.0
        self._is_failing = False

    def send(self) -> bool:
        """Send the new records; return False if that failed or has to wait."""
        if time.monotonic() < self._next:
            return False
        try:
            while self._send_some():
                pass
        # Two libraries have a hundred classes for a service that does not answer.
        except Exception as error:  # noqa: BLE001
            if not self._is_failing:
                self._say(f"{self._name}: metrics are not sent, and training continues: {_reason(error)}")
            self._is_failing, self._run = True, None
            self._next, self._pause = time.monotonic() + self._pause, min(2 * self._pause, _RETRY_SECONDS[1])
            return False
        if self._is_failing:
            self._say(f"{self._name}: metrics are sent again")
        self._is_failing, self._pause = False, _RETRY_SECONDS[0]
        return True

    def close(self, *, is_done: bool) -> int:
        """Send the last records and end the run; return the exit code."""
        self._next = 0.0
        if not self.send() or self._run is None:
            return contract.EXIT_FAILED
        try:
            self._run.end(is_done=is_done)
        except Exception as error:  # noqa: BLE001
            self._say(f"{self._name}: the end of the run was not sent: {_reason(error)}")
            return contract.EXIT_FAILED
        return contract.EXIT_DONE

    def _send_some(self) -> bool:
        """Send records that the file has more; return whether there were any."""
        records: list[Figures] = []
        try:
            file = (self._folder / "metrics.jsonl").open("rb")
        except FileNotFoundError:
            return False
        with file:
            inode, offset = os.fstat(file.fileno()).st_ino, self._offset
            if (
                inode != self._inode
            ):  # the learner has begun a new file; half of the old records are in it once more
                self._known, offset = self._sent, 0
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n") or len(records) == _MAX_RECORDS:
                    break
                offset += len(line)
                if (record := _figures(line)) is not None and record.time > self._known:
                    records.append(record)
        if records:
            if self._run is None:
                self._run = _OPEN[self._name](self._context, self._folder)
                self._say(f"{self._name}: metrics go to {self._run.place}")
            self._run.add(records)
            self._sent = records[-1].time
            sent = json.dumps({"until": self._sent}).encode()
            write_atomic(self._folder / _SENT, sent, is_durable=False)
        self._inode, self._offset = inode, offset
        return bool(records)


def _sent_until(folder: Path) -> float:
    try:
        return bounded_json.decode((folder / _SENT).read_bytes(), dict[str, float])["until"]
    except (OSError, ValueError, KeyError):
        return 0.0


def _figures(line: bytes) -> Figures | None:
    """Return the numbers of a record of the learner or of an evaluator; None for other lines."""
    try:
        record = bounded_json.decode(line, dict[str, Any])
    except ValueError:
        return None
    if record.get("l2r") not in ("learner", "evaluator"):
        return None
    values = {name: float(value) for name, value in record.items() if _is_number(value)}
    lag = record.get("policy_lag")
    if isinstance(lag, list) and len(lag) == 3 and all(map(_is_number, lag)):  # least, mean, most
        values |= {"policy_lag": float(lag[1]), "policy_lag_max": float(lag[2])}
    at = values.pop(trackers.TIME, None)
    steps = values.pop(trackers.STEP, None)
    return None if at is None or steps is None else Figures(int(steps), at, values)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _reason(error: Exception) -> str:
    """Return the first line of an error, without a value of a secret variable or a login of an address."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    for name, value in os.environ.items():
        if len(value) > 5 and _SECRET.search(name):
            text = text.replace(value, "***")
    return _LOGIN.sub("***@", text)[:_MAX_REASON].rstrip(".")


class _Wandb:
    """Run of Weights & Biases, whose records the library sends."""

    def __init__(self, context: Context, folder: Path) -> None:
        import wandb

        self._wandb_run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or trackers.WANDB_PROJECT,
            id=context.run_id or None,
            name=context.run,
            group=_experiment(context),
            resume="allow",
            dir=str(folder),
            config={f"train.{name}": value for name, value in _train().items()},
            settings=wandb.Settings(**trackers.WANDB_QUIET, init_timeout=60.0),
        )
        self._wandb_run.define_metric("*", step_metric=trackers.STEP)
        self.place = f"project {self._wandb_run.project}"

    def add(self, records: list[Figures]) -> None:
        for record in records:
            figures = {trackers.STEP: record.env_steps, trackers.TIME: record.time, **record.values}
            self._wandb_run.log(figures, step=record.env_steps)

    def end(self, *, is_done: bool) -> None:
        # Preempted by its owner, a run may be resumed under its id.
        self._wandb_run.finish(exit_code=0 if is_done else 143)


class _Mlflow:
    """Run of MLflow, found by its tag after a new start of the learner."""

    def __init__(self, context: Context, folder: Path) -> None:
        import mlflow

        if not os.environ.get("MLFLOW_TRACKING_URI"):
            mlflow.set_tracking_uri(f"sqlite:///{folder.absolute()}/mlflow.db")
        self._entities, self._client = mlflow.entities, mlflow.MlflowClient()
        self.place = _LOGIN.sub("***@", str(mlflow.get_tracking_uri()))
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _experiment(context)
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        earlier = self._client.search_runs([number], f"tags.`{trackers.RUN_ID_TAG}` = '{context.run_id}'")
        if earlier:
            self._key = earlier[0].info.run_id
            self._client.update_run(self._key, status="RUNNING")
            return
        tags = {trackers.RUN_ID_TAG: context.run_id, trackers.LIVE_TAG: "true", "l2rtui.seed": str(context.seed)}
        self._key = self._client.create_run(number, run_name=context.run, tags=tags).info.run_id
        parameters = [self._entities.Param(f"train.{name}", str(value)[:6_000]) for name, value in _train().items()]
        for start in range(0, len(parameters), 100):
            self._client.log_batch(self._key, params=parameters[start : start + 100])

    def add(self, records: list[Figures]) -> None:
        metrics = [
            self._entities.Metric(name, value, round(record.time * 1e3), record.env_steps)
            for record in records
            for name, value in {trackers.STEP: float(record.env_steps), **record.values}.items()
        ]
        for start in range(0, len(metrics), 1_000):  # the limit of a request
            self._client.log_batch(self._key, metrics=metrics[start : start + 1_000])

    def end(self, *, is_done: bool) -> None:
        self._client.set_terminated(self._key, "FINISHED" if is_done else "KILLED")


_OPEN: Final[Mapping[str, Callable[[Context, Path], OpenRun]]] = MappingProxyType(
    {"wandb": _Wandb, "mlflow": _Mlflow}
)


def _experiment(context: Context) -> str:
    """Return the experiment of a run: its name without its seed."""
    return context.run.removesuffix(f"-s{context.seed}")


def _train() -> dict[str, Any]:
    return read_object(os.environ.get(contract.ENV_CONFIG, ""))
