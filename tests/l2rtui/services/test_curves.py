"""Curves are read back from real files of a learner: rotated files, long files, logs of two processes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.curves.run_curve import Axis
from l2rtui.domain.log import LogLine
from l2rtui.domain.workload import Role
from l2rtui.errors import NotFoundError
from l2rtui.services import curves
from runtime.base.metrics import RecordFile

BEGAN = 1.7e9


def line(number, kind="learner", **fields):
    record = {
        "l2r": kind,
        "time": BEGAN + number,
        "env_steps": 100 * number,
        "updates": 10 * number,
        "policy_lag": [0, 1.5, 4],
        "env_steps_per_second": 100.0,
        "mean_return": float(number),
        "eval_return": None,
        **fields,
    }
    return json.dumps(record, separators=(",", ":"))


class Folder(FakeBackend):
    """The in-memory cluster, whose runs leave their results in a folder of this machine."""

    folder = None

    async def _results(self, run):
        if self.folder is None:
            raise NotFoundError(f"There is no run {run}.")
        return self.folder

    results = property(lambda self: self._results)


@pytest.fixture
def backend(tmp_path):
    backend = Folder(owner="me")
    backend.folder = tmp_path
    return backend


async def one_run(backend, *, created=BEGAN):
    snapshot = await backend.snapshot()
    run = next(iter(snapshot.runs.values()))
    learner = next(pod for pod in snapshot.pods_of(run.name) if pod.role is Role.LEARNER)
    return replace(run, created=created), learner


async def read(backend, run, learner):
    async with aclosing(curves.read_back(backend, run, learner)) as stream:
        return [curve async for curve in stream]


async def test_both_files_of_a_rotation_are_one_curve(backend, tmp_path):
    file = RecordFile(tmp_path / "metrics.jsonl", limit_bytes=20_000)
    for number in range(150):
        file.append(line(number))
        file.append(line(number, "evaluator", eval_return=1e6))
    file.close()
    assert (tmp_path / "metrics.jsonl.1").exists()
    kept = sum(path.read_text().count('"learner"') for path in tmp_path.iterdir())
    (curve,) = await read(backend, *await one_run(backend))
    assert curve.num_records == kept
    assert curve.is_complete
    assert curve.last[Axis.ENV_STEPS] == 14_900.0
    assert max(curve.buckets("return").highs) == 149.0
    assert set(curve.figures) == {"return", "policy_lag", "env_steps_per_second"}
    assert set(curve.buckets("policy_lag").sums) == {1.5}


async def test_a_long_file_gives_a_sample_at_once_and_then_every_record(backend, tmp_path):
    number = 4 * curves.SAMPLES
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line(at, padding='x' * 300)}\n" for at in range(number)))
    sample, whole = await read(backend, *await one_run(backend))
    assert 0.9 * curves.SAMPLES <= sample.num_records <= curves.SAMPLES
    assert sample.first[Axis.ENV_STEPS] < 0.02 * 100 * number
    assert sample.last[Axis.ENV_STEPS] > 0.98 * 100 * number
    assert not sample.is_complete
    assert whole.num_records == number
    assert whole.is_complete


async def test_what_is_no_record_or_has_a_field_of_another_type_spoils_nothing(backend, tmp_path):
    lines = (
        line(0),
        "garbage",
        line(1)[:40],
        '{"l2r":"learner"',
        line(2, mean_return="high", policy_lag=[1, "x"], env_steps_per_second=True),
        line(3, mean_return=float("inf")),
        line(4, policy_lag=7, mean_return=1e39),
        line(5, eval_return=50.0),
        '{"l2r":"learner","time":"now"}',
    )
    (tmp_path / "metrics.jsonl").write_bytes("\n".join(lines).encode() + b"\n\xff\xfe\n")
    (curve,) = await read(backend, *await one_run(backend))
    assert curve.num_records == 5
    returns = curve.buckets("return")
    assert [high for high, count in zip(returns.highs, returns.counts, strict=True) if count] == [0.0, 50.0]
    assert sum(curve.buckets("policy_lag").counts) == 3


async def test_records_of_a_volume_from_before_the_launch_are_another_runs(backend, tmp_path):
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line(at)}\n" for at in range(400)))
    run, learner = await one_run(backend, created=BEGAN + 300)
    (curve,) = await read(backend, run, learner)
    assert curve.first[Axis.TIME] == BEGAN + 240  # clocks may differ by a minute
    (everything,) = await read(backend, replace(run, created=0.0), learner)
    assert everything.num_records == 400


async def test_without_a_file_the_log_is_read_from_its_beginning(backend, tmp_path):
    run, learner = await one_run(backend)
    expected = [entry async for entry in backend.logs(learner, curves.LogQuery()) if '"learner"' in entry.text]
    assert len(expected) > 500
    (curve,) = await read(backend, run, learner)
    assert curve.num_records == len(expected)
    backend.folder = None
    (curve,) = await read(backend, run, learner)
    assert curve.num_records == len(expected)
    assert await read(backend, run, None) == []


class Restarted(Folder):
    """A learner that was restarted: its first process has a separate log."""

    async def logs(self, pod, query):
        if query.previous:
            for number in range(10):
                yield LogLine(BEGAN + number, pod.name, line(number))
            raise NotFoundError("the rest of that log is gone")
        for number in range(8, 20):
            yield LogLine(BEGAN + number, pod.name, line(number))


async def test_the_log_of_the_process_before_belongs_to_the_curve():
    backend = Restarted(owner="me")
    run, learner = await one_run(backend)
    (curve,) = await read(backend, run, replace(learner, restarts=1))
    assert curve.num_records == 20
    (curve,) = await read(backend, run, learner)
    assert curve.num_records == 12


async def test_a_command_gets_the_complete_curve_and_an_empty_one_of_a_run_that_left_nothing(backend, tmp_path):
    snapshot = await backend.snapshot()
    run, _ = await one_run(backend)
    (tmp_path / "metrics.jsonl").write_text(line(7) + "\n")
    seed = await curves.seed_curve(backend, snapshot, replace(run, seed=3))
    assert (seed.name, seed.seed, seed.curve.num_records) == (run.name, 3, 1)
    (tmp_path / "metrics.jsonl").unlink()
    gone = dataclasses.replace(snapshot, pods={})
    assert (await curves.seed_curve(backend, gone, run)).curve.num_records == 0


def test_the_store_is_bounded_and_keeps_what_is_looked_at():
    store = curves.CurveStore()
    for number in range(curves.MAX_RUNS + 5):
        store.add(f"run{number}", json.loads(line(0)))
    assert store.of("run0").num_records == 1
    late = f"run{curves.MAX_RUNS + 1}"
    assert store.of(late).num_records == 0  # viewed only now: it gets a place, and another one has lost it
    store.add(late, json.loads(line(1)))
    assert store.of(late).num_records == 1
    assert store.of("run0").num_records == 1
    assert store.of("run1").num_records == 0


def test_a_curve_that_was_read_back_goes_before_what_came_meanwhile():
    store, older = curves.CurveStore(), curves.RunCurve()
    for number in range(30):
        older.add(curves.curve_record(json.loads(line(number))))
    for number in range(25, 35):
        store.add("run", json.loads(line(number)))
    store.put_before("run", older)
    store.add("run", json.loads(line(35)))
    assert store.of("run").num_records == 36
    assert list(store.of("run").positions(Axis.UPDATES))[-1] == 350.0


async def test_reading_back_yields_to_others(backend):
    run, learner = await one_run(backend)
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(count())
    await read(backend, run, learner)
    other.cancel()
    assert turns > 5
