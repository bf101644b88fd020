"""Faults of a run that learns, and the sentence that names each; the same on every backend."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

RUN = "faults"
SPEC = """\
kind: learner-workers
name: faults
{image}
learner: {{resources: {{cpu: 0.2}}}}
workers: [{{name: w, replicas: 2, resources: {{cpu: 0.1}}}}]
evaluator: {{name: eval, resources: {{cpu: 0.1}}}}
train:
  environment: l2r
  environment_options: {{track: harbour, simulator: {{kind: reference, fast: true}}}}
  num_envs: 1
  segment_steps: 64
  updates_per_step: 0.125
  warmup_steps: 200
  checkpoint_seconds: 5
  eval_episodes: 1
  eval_seconds: 5
{more}
"""
DIVERGES = """\
kind: learner-workers
name: nan
{image}
learner: {{resources: {{cpu: 0.2}}}}
workers: [{{name: w, replicas: 1, resources: {{cpu: 0.1}}}}]
train: {{environment: CartPole-v1, algorithm: ppo, num_envs: 4, segment_steps: 64, ppo: {{lr: 1.0e+30}}}}
{more}
"""
ON_VOLUME = "pod: {mounts: [{path: /l2r, claim: l2r-data}]}"
"""Part of a spec: checkpoints are on a volume of this name."""
BEGIN_SECONDS = 300.0
NAMED_SECONDS = 90.0
"""Longest wait for a fault's name on a loaded machine; a test prints the time it took, and its slowest look."""
Stop = tuple[str, int | None, str, tuple[str, ...]]


def _stops(word: str) -> tuple[Stop, ...]:
    return (
        ("learner", None, "", ("stalled", word)),
        ("worker", 1, "", ("1 of 2 workers sends nothing", word)),
        # The learner continues with its replay: it is slow before it is starved.
        ("worker", None, "", ("2 of 2 workers send nothing", word)),
        ("evaluator", None, "", ("its evaluator", "does not answer its learner")),
        ("worker", 1, "simulator", ("the simulator of faults-w-", "was restarted", "hangs")),
    )


STOPS = _stops("has had no output for")
"""Role, number of its pods, the program in them (empty for all), and parts of the sentence."""
SEEN_STOPS = _stops("it was stopped")
"""The same where the state of a process is seen."""

DISK_MEGABYTES = 64
CUT_BYTES = 200_000
FULL = "No space left on device"
Json = Callable[..., Any]
Wait = Callable[[str, Callable[[], Any], float], Any]


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a file system of ``DISK_MEGABYTES`` at the folder. Raises CalledProcessError if that is not
    permitted.
    """
    options = ("-o", f"size={DISK_MEGABYTES}m,mode=777")
    subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", folder], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True, capture_output=True)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Fill the file system of the folder to its last byte, and free it again."""
    filler = folder / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):  # it is full
                    while file.write(bytes(size)):
                        pass
        yield
    finally:
        filler.unlink()


class Faults:
    """Causes faults in the processes of a run, and waits until ``runs`` names them and until it learns again."""

    def __init__(self, verb: Json, wait: Wait, processes: Callable[[dict[str, Any]], list[psutil.Process]]) -> None:
        """``verb`` runs a verb with JSON; ``processes`` returns the processes of a pod as seen by this machine."""
        self._verb = verb
        self._wait = wait
        self._processes = processes

    def begin(self, folder: Path, spec: str, **parts: str) -> None:
        """Launch a spec."""
        path = folder / "spec.yaml"
        path.write_text(spec.format(**{"image": "", "more": "", **parts}))
        self._verb("launch", "-f", str(path), "--yes")

    def state(self, run: str = RUN) -> dict[str, Any]:
        """Return the row of the run."""
        rows = {row["run"]: row for row in self._verb("runs")}
        assert run in rows, rows
        return rows[run]

    def pods(self, role: str) -> list[dict[str, Any]]:
        """Return the pods of a role, by name."""
        return sorted((pod for pod in self._verb("pods") if pod["role"] == role), key=lambda pod: pod["pod"])

    def send(self, role: str, number: signal.Signals, count: int | None = None, program: str = "") -> None:
        """Signal the processes of the first ``count`` pods of a role; ``program`` selects by a word of argv."""
        for pod in self.pods(role)[:count]:
            for process in self._processes(pod):
                with suppress(psutil.NoSuchProcess):  # it has ended in the meantime
                    if not program or program in process.cmdline():
                        process.send_signal(number)

    def _have_simulators(self) -> bool:
        """Return True if every simulator serves: a run learns with one worker while another may still start."""
        rows = self._verb("simulator", "status", RUN)
        return len(rows) >= len(self.pods("worker")) and all(row["state"] == "ready" and row["fps"] for row in rows)

    def named(self, *parts: str, run: str = RUN) -> float:
        """Wait for a reason with these parts; return the seconds that took."""
        began, seen, looks = time.monotonic(), [], []

        def has_parts() -> bool:
            at = time.monotonic()
            row = self.state(run)
            looks.append(time.monotonic() - at)
            seen.append(f"{row['learning']}: {row['learning_reason']}")
            return all(part in seen[-1] for part in parts)

        try:
            self._wait(f"a reason with {parts}", has_parts, NAMED_SECONDS)
        finally:
            seconds = time.monotonic() - began
            figures = {"seconds": round(seconds, 1), "slowest_look": round(max(looks, default=0.0), 1)}
            print(json.dumps({"fault": parts, **figures, "reasons": list(dict.fromkeys(seen))}))
        return seconds

    def learns(self) -> None:
        """Wait until the run learns and names no fault."""
        self._wait("learning without faults", lambda: self.state()["learning_reason"] == "learns", BEGIN_SECONDS)

    def check_stopped_processes(self, stops: Sequence[Stop]) -> None:
        """Stop processes in turn; each stop must be named, and then end."""
        self.learns()
        self._wait("a simulator that drives for each worker", self._have_simulators, BEGIN_SECONDS)
        for role, count, program, parts in stops:
            self.send(role, signal.SIGSTOP, count, program)
            self.named(*parts)
            if not program:  # a hanging simulator is replaced
                self.send(role, signal.SIGCONT, count)
            self.learns()

    @contextmanager
    def files_cut_short(self) -> Iterator[None]:
        """Prevent the learner from writing files as long as a checkpoint, if no file system may be mounted."""
        (learner,) = self.pods("learner")
        process = self._processes(learner)[0]
        before = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (CUT_BYTES, before[1]))
        yield
        process.rlimit(psutil.RLIMIT_FSIZE, before)

    def check_full_disk(self, full: Callable[[], AbstractContextManager[None]], part: str) -> None:
        """Keep the disk of a learning run full for a while; ``part`` is the system's word for it."""
        self.learns()
        with full():
            self.named("its last checkpoint could not be written", part)
        self.learns()

    def check_not_finite(self, log: Callable[[str], str]) -> None:
        """Wait until the learner of ``DIVERGES`` reports non-finite numbers, then until the run names that.

        ``log`` returns the log of a pod.
        """

        def has_not_finite() -> bool:
            learners = self.pods("learner")
            return bool(learners) and "not finite" in log(learners[0]["pod"])

        self._wait("numbers that are not finite", has_not_finite, BEGIN_SECONDS)
        self.named("diverged", "lower the learning rate", run="nan")
