"""Runs: a learner and its workers as processes."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.bench.gpu.measuring import Bench, BusyMeter, show
from tests.bench.run_processes import RunProcesses

MANIFESTS = Path(__file__).parents[3] / "manifests"
START_SECONDS = 60.0
COUNTED_SECONDS = 8.0
LOOK_SECONDS = 0.1
PIXELS: dict[str, Any] = {
    "environment": "tests.bench.gpu.pixels:Pixels-v0",
    "num_envs": 8,
    "segment_steps": 8,
    "warmup_steps": 2_000,
    "replay_capacity": 30_000,
    "updates_per_step": 0.125,
    "band_steps": 4_096,
    "hidden": [256, 256],
}


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    title: str
    settings: dict[str, Any]


def manifest(name: str) -> dict[str, Any]:
    """Return the settings of a manifest without its limits."""
    train = yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text())["train"]
    return {key: value for key, value in train.items() if key not in {"total_env_steps", "eval_seconds"}}


def cases(workers: int) -> tuple[Case, ...]:
    racing, view, cartpole = manifest("racing-sac"), manifest("racing-view"), manifest("cartpole-ppo")
    batch = {"batch_steps": 1_024 * workers, "minibatch_size": 256 * workers, "is_synchronous": False}
    wide = {**cartpole, "num_envs": 64, "segment_steps": 16, "ppo": {**batch, "queue_batches": 2, "epochs": 4}}
    return (
        Case("racing-sac", racing),
        Case("SAC 84x84x4", PIXELS),
        Case("racing-view", view),
        Case("SAC 84x84x4, bfloat16", {**PIXELS, "precision": "bfloat16"}),
        Case("SAC 84x84x4, remote inference", {**PIXELS, "remote_inference": True}),
        Case("cartpole-ppo, batch x workers, asynchronous", wide),
    )


def measure(bench: Bench) -> None:
    workers = 2 if bench.is_tiny else max(2, min(12, (os.cpu_count() or 2) - 4))
    chosen = cases(workers)
    if bench.is_tiny:
        chosen = chosen[:1]
    lap(bench)
    for case in chosen:
        if bench.has_time(COUNTED_SECONDS + 12.0, title := f"{case.title}, {workers} workers, {bench.device}"):
            try:
                show(title, run(case, workers, bench.device))
            except RuntimeError as error:
                bench.fail(title, error)


def run(case: Case, workers: int, device: str) -> dict[str, Any]:
    """Run until updates arrive, then count for a while."""
    settings = {**case.settings, "device": device, "checkpoint_seconds": 3_600}
    with (
        tempfile.TemporaryDirectory(prefix="l2r-") as folder,
        RunProcesses(Path(folder), settings, cpus=4) as processes,
    ):
        learner = processes.start("learner")
        for index in range(workers):
            processes.start("worker", index)
        end = time.monotonic() + START_SECONDS
        while (
            not (records := processes.records()) or records[-1]["updates"] < 4 or records[-1]["workers"] < workers
        ):
            if learner.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"it never learned: {processes.output('learner')[-500:]}")
            time.sleep(LOOK_SECONDS)
        busy = BusyMeter(device).start()
        time.sleep(COUNTED_SECONDS)
        percent = busy.stop()
        counted = processes.records()[len(records) :]
    if len(counted) < 2:
        raise RuntimeError(
            f"{len(counted)} records in {COUNTED_SECONDS:.0f} s: {processes.output('learner')[-500:]}"
        )
    first, last = counted[0], counted[-1]
    span = last["time"] - first["time"]
    return {
        "updates/s": (last["updates"] - first["updates"]) / span,
        "env steps/s": (last["env_steps"] - first["env_steps"]) / span,
        "idle share": statistics.mean(record["idle_share"] for record in counted[1:]),
        "GPU busy %": percent,
    }


def lap(bench: Bench) -> None:
    """Print the seconds from the start of `racing-device` to a clean lap, or with small sizes to an evaluation."""
    title, limit = "racing-device, start to a clean lap", 45.0
    if bench.is_tiny:
        title, limit = "racing-device, start to an evaluation", 2 * START_SECONDS
    if not bench.has_time(limit, title):
        return
    settings = {**manifest("racing-device"), "device": bench.device, "eval_seconds": 1}
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="l2r-") as folder,
        RunProcesses(Path(folder), settings, cpus=4) as processes,
    ):
        learner = processes.start("learner")
        processes.start("evaluator")
        while time.monotonic() < began + limit and learner.poll() is None:
            evaluations, records = processes.records("evaluator"), processes.records()
            if records and any(record.get("clean_lap") or bench.is_tiny for record in evaluations):
                seconds, env_steps = time.monotonic() - began, records[-1]["env_steps"]
                show(title, {"seconds": seconds, "env steps": env_steps})
                return
            time.sleep(LOOK_SECONDS)
        evaluations, said = processes.records("evaluator"), processes.output("learner")[-500:]
        bench.fail(title, f"not in {limit:.0f} s; {len(evaluations)} evaluations; the learner said: {said}")
