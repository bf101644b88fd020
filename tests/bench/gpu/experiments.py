"""Sharing a card: several learners, and a learner with remote inference, by time slicing and under NVIDIA's MPS.

Processes on one GPU take turns; under the Multi-Process Service their kernels run in parallel (NVIDIA,
*Multi-Process Service*). The rows show the gain for networks that do not fill the card, and the kernels of an
update show where its time is spent.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from runtime.rl.algos.method_config import ReplayConfig
from tests.bench.exchange import inference_learning
from tests.bench.gpu import updates
from tests.bench.gpu.measuring import Bench, await_device, show

CONTROL: Final = "nvidia-cuda-mps-control"
COUNTED_SECONDS: Final = 2.0
PROFILED: Final = 5
KERNELS_SHOWN: Final = 12


def measure(bench: Bench) -> None:
    rows = {
        "kernels of an update": kernels,
        "learners on one card": sharing,
        "inference beside a learner": answers,
    }
    for title, row in rows.items():
        if bench.has_time(10.0, title):
            try:
                row(bench, title)
            except (EOFError, OSError, RuntimeError, subprocess.SubprocessError) as error:
                bench.fail(title, error)


def cases(bench: Bench) -> tuple[updates.Case, ...]:
    return updates.TINY[::3] if bench.is_tiny else (updates.CASES[0], updates.CASES[3], updates.CASES[8])


def turns(bench: Bench, case: updates.Case) -> tuple[Callable[[], object], int]:
    """Return one launch of a method's updates, and how many updates it contains."""
    torch.set_num_threads(1)
    learner = updates.learner_of(case, {}, bench.device)
    plan, settings = updates.planned(case)
    if isinstance(plan.config, ReplayConfig):
        turn, count = updates.loop(bench, case, learner, "device")
    else:
        batch = updates.batch_of(case, plan, settings, bench.device)
        turn, count = lambda: learner.update(batch), 1
    for _ in range(3):
        turn()
    await_device(bench.device)
    return turn, count


def kernels(bench: Bench, title: str) -> None:
    """Print the kernels of one update by their total time."""
    from torch.profiler import ProfilerActivity, profile

    kind = ProfilerActivity.CUDA if bench.is_gpu else ProfilerActivity.CPU
    for case in cases(bench):
        turn, count = turns(bench, case)
        with profile(activities=[kind]) as measured:
            for _ in range(PROFILED):
                turn()
            await_device(bench.device)
        taken = [
            (event.self_device_time_total if bench.is_gpu else event.self_cpu_time_total, event.count, event.key)
            for event in measured.key_averages()
        ]
        share = PROFILED * count
        show(
            f"{title}, {case.title}",
            {
                "kernels": sum(number for _, number, _ in taken) / share,
                "us": sum(time for time, _, _ in taken) / share,
            },
        )
        for microseconds, number, name in sorted(taken, reverse=True)[:KERNELS_SHOWN]:
            print(f"    {microseconds / share:8.1f} us {number / share:6.1f} x  {name[:110]}", flush=True)


def sharing(bench: Bench, title: str) -> None:
    """Print the updates a second of learners that share the device."""
    for service in services(bench):
        with service as name:
            for count in (1, 2) if bench.is_tiny else (1, 4, 8):
                rates = rates_of(bench, count)
                show(f"{title}, {name}", {"learners": count, "updates/s together": sum(rates), "least": min(rates)})


def rates_of(bench: Bench, count: int) -> list[float]:
    """Return the updates a second of ``count`` learners, counted while all of them learn."""
    command = [sys.executable, "-c", "from tests.bench.gpu import experiments; experiments.learner()"]
    command += [bench.device, "tiny" if bench.is_tiny else ""]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError(f"a learner ended with {process.wait()} before it was ready")
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [float(process.communicate(timeout=60)[0]) for process in started]
    finally:
        for process in started:
            process.kill()


def learner() -> None:
    """Act as one learner of `rates_of`: learn for a while from the moment set by the other end."""
    bench = Bench(sys.argv[1], time.monotonic() + 60, is_tiny=bool(sys.argv[2]))
    turn, count = turns(bench, cases(bench)[0])
    print("ready", flush=True)
    sys.stdin.readline()
    began, done = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < COUNTED_SECONDS:
        turn()
        done += count
        await_device(bench.device)
    print(done / passed)


def answers(bench: Bench, title: str) -> None:
    """Print the duration of answers to observations under the service; step `inference` measures them with time
    slicing.
    """
    sizes = ["--askers", "12", "--seconds", "2", "--cases", "84x84x4"]
    if bench.is_tiny:
        sizes = ["--askers", "2", "--seconds", "1", "--cases", "vector"]
    arguments = [*sizes, "--rows", "16", "--rounds", "1", "--device", bench.device.partition(":")[0]]
    for service in services(bench)[1:]:
        with service as name:
            for row, figures in inference_learning.rows(arguments):
                show(f"{title}, {name}: {row}", figures)


def services(bench: Bench) -> list[Any]:
    """Return contexts in which processes share the device, each with its name."""
    has_service = bench.is_gpu and shutil.which(CONTROL) is not None
    return [by_turns(), multi_process_service()] if has_service else [by_turns()]


@contextmanager
def by_turns() -> Iterator[str]:
    """Let processes take turns."""
    yield "by turns"


@contextmanager
def multi_process_service() -> Iterator[str]:
    """Run a separate control daemon, which changes no setting of the card."""
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ |= places
        try:
            subprocess.run([CONTROL, "-d"], check=True, timeout=20)
            yield "MPS"
        finally:
            subprocess.run([CONTROL], input="quit\n", text=True, check=False, timeout=20)
            for name in places:
                del os.environ[name]
