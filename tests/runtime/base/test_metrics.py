"""Metric records, their files and the TensorBoard curves of a learner."""

from __future__ import annotations

import io
import itertools
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.base import contract
from runtime.base.metrics import Console, Rate, RecordFile, record
from runtime.rl.roles.metrics_log import TensorBoardCurves


def test_a_record_is_one_line_that_begins_with_its_kind() -> None:
    line = record("learner", {"env_steps": 12_345_678, "loss": float("nan"), "policy_lag": [0, 1 / 3, 2]})
    assert line.startswith(contract.METRIC_PREFIX)
    assert "\n" not in line
    read = json.loads(line)
    assert read["env_steps"] == 12_345_678
    assert read["loss"] is None
    assert read["policy_lag"] == [0, 0.333333, 2]
    assert isinstance(read["time"], float)


def test_the_record_file_is_bounded(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "metrics.jsonl", limit_bytes=100)
    for number in range(50):
        file.append(f"{number:020d}")
    file.close()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"metrics.jsonl", "metrics.jsonl.1"}
    assert max(sizes.values()) < 150


def test_a_long_run_keeps_its_whole_curve_in_levels_that_grow_coarser_with_age(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "metrics.jsonl", limit_bytes=2_000)
    for number in range(5_000):
        file.append(f"{number:020d}")
    file.close()
    parts = [tmp_path / name for name in ("metrics.jsonl.1", "metrics.jsonl")]
    assert max(path.stat().st_size for path in parts) < 2_200
    numbers = [int(line) for path in parts for line in path.read_text().split()]
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (0, 4_999)
    gaps = [later - earlier for earlier, later in itertools.pairwise(numbers)]
    assert gaps[-1] == 1
    assert gaps[0] > gaps[len(gaps) // 2] > 1


def test_records_go_on_in_the_old_file_where_there_can_be_no_new_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl.1").mkdir()
    file = RecordFile(tmp_path / "metrics.jsonl", limit_bytes=100)
    for number in range(50):
        file.append(f"{number:020d}")
    file.close()
    assert [int(line) for line in (tmp_path / "metrics.jsonl").read_text().split()] == list(range(50))


def points(file: Path) -> list[tuple[int, dict[str, float]]]:
    """Every step of an event file with its scalars; framing and check sums are verified."""
    from tensorboardX.proto.event_pb2 import Event  # imports torch, which other workers need not
    from tensorboardX.record_writer import masked_crc32c

    found, data = [], file.read_bytes()
    while data:
        (length,) = struct.unpack_from("<Q", data)
        assert struct.unpack_from("<I", data, 8) == (masked_crc32c(data[:8]),)
        body, (check,) = data[12 : 12 + length], struct.unpack_from("<I", data, 12 + length)
        assert check == masked_crc32c(body)
        event = Event.FromString(body)
        found.append((event.step, {each.tag: each.simple_value for each in event.summary.value}))
        data = data[16 + length :]
    return found


def test_curves_are_event_files(tmp_path: Path, no_leaks: None) -> None:
    curves = TensorBoardCurves(tmp_path / "tensorboard")
    curves.add("learner", {"updates": 1, "loss": None, "lag": [1, 2], "alpha": float("nan")}, 10)
    curves.add("evaluator", {"clean_lap": True, "laps": 2}, 20)
    curves.close()
    (file,) = tmp_path.glob("tensorboard/events.out.tfevents.*")
    assert points(file) == [
        (0, {}),
        (10, {"learner/updates": 1.0}),
        (20, {"evaluator/clean_lap": 1.0, "evaluator/laps": 2.0}),
    ]


@pytest.mark.slow
@pytest.mark.process
def test_a_full_disk_makes_records_and_curves_silent_and_never_waits(tmp_path: Path) -> None:
    code = f"""
import pathlib, resource
from runtime.rl.roles.metrics_log import TensorBoardCurves
from runtime.base.metrics import RecordFile
folder = pathlib.Path({str(tmp_path)!r})
curves, records = TensorBoardCurves(folder), RecordFile(folder / "metrics.jsonl")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for step in range(200):
    curves.add("learner", {{"updates": step}}, step)
    records.append(f"{{step:020d}}")
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
curves.add("learner", {{"updates": 999}}, 999)
records.append(f"{{999:020d}}")
curves.close()
records.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    (file,) = tmp_path.glob("events.*")
    steps = [step for step, _ in points(file)]
    assert steps == [0, *range(len(steps) - 2), 999]
    lines = [int(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [*range(len(lines) - 1), 999]


def test_a_rate_is_over_the_time_since_the_last_look() -> None:
    rate = Rate(0.0, 0)
    assert rate.update(2.0, 10) == 5.0
    assert rate.update(3.0, 10) == 0.0
    assert rate.update(3.0, 99) == 0.0


@pytest.mark.process
def test_a_log_that_goes_away_or_a_flood_of_sentences_ends_nothing() -> None:
    script = (
        "import os, sys\n"
        "from runtime.base.metrics import Console\n"
        "console = Console()\n"
        "for n in range(1000): console.say(f'sentence {n}')\n"
        "sys.stderr.write('alive')\n"
        "os.close(1); os.closerange(3, 64)\n"
        "for n in range(10): console.record('x')\n"
        "sys.stderr.write(' still'); sys.stderr.flush(); os._exit(0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[4]
    )
    assert ended.stderr == "alive still"
    assert len(ended.stdout.split("\n")) < 130


def test_records_go_on_where_they_began_when_an_environment_replaces_the_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    console.record("a record")
    monkeypatch.undo()
    assert capsys.readouterr().out == "a record\n"
