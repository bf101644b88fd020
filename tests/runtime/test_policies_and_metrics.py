"""Policy versions, the pace of learning beside collecting, metric records and their files."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from runtime import contract, memory
from runtime.memory import SharedMemoryError
from runtime.messages import Current, Get, Refused, Shared, Weights
from runtime.metrics import Curves, Rate, RecordFile, record
from runtime.pacing import Pace
from runtime.policy_store import BF2, F4, LARGE_BYTES, PolicyStore, checksum, load, to_bf2
from runtime.shelf import SHELF_BYTES, ShelfReader


def loaded(codec: str, raw: memoryview, floats: int) -> NDArray[np.float32]:
    found = np.ones(floats, dtype=np.float32)
    load(codec, raw, found)
    return found


def test_weights_are_given_to_whoever_has_older_ones() -> None:
    store = PolicyStore(epoch=5, token="t")
    assert store.answer(Get("t", 0, 0, F4, "")) == (Current(5, 0), None)
    arena = np.arange(4, dtype=np.float32)
    store.publish(3, arena)
    message, raw = store.answer(Get("t", 5, 2, BF2, ""))
    assert message == Weights(5, 3, F4, 4, checksum(arena.data.cast("B")))
    assert raw is not None
    assert bytes(raw) == arena.tobytes()
    assert store.answer(Get("t", 5, 3, F4, "")) == (Current(5, 3), None)


def test_a_higher_version_of_a_learner_that_is_gone_is_not_newer() -> None:
    store = PolicyStore(epoch=6, token="")
    store.publish(10, np.zeros(1, dtype=np.float32))
    assert isinstance(store.answer(Get("", 5, 99, F4, ""))[0], Weights)


def test_weights_are_not_for_strangers() -> None:
    store = PolicyStore(epoch=6, token="t")
    store.publish(1, np.zeros(1, dtype=np.float32))
    assert isinstance(store.answer(Get("guess", 0, 0, F4, ""))[0], Refused)


def test_a_large_policy_comes_as_half_the_bytes_to_whoever_asks_for_that() -> None:
    store = PolicyStore(epoch=6, token="")
    arena = np.random.default_rng(1).standard_normal(LARGE_BYTES // 4).astype(np.float32)
    store.publish(1, arena)
    for codec, size, error in ((F4, LARGE_BYTES, 0.0), (BF2, LARGE_BYTES // 2, 2.0**-8)):
        message, raw = store.answer(Get("", 0, 0, codec, ""))
        assert isinstance(message, Weights)
        assert raw is not None
        raw = memoryview(raw)
        assert (message.codec, raw.nbytes) == (codec, size)
        assert message.checksum == checksum(raw)
        back = loaded(codec, raw, message.floats)
        assert np.all(np.abs(back - arena) <= error * np.abs(arena))


@pytest.mark.skipif(sys.platform != "linux", reason="needs sealed memory files")
def test_peers_on_the_learner_s_host_copy_the_newest_weights_from_its_memory() -> None:
    store = PolicyStore(epoch=6, token="")
    arenas = [np.full(SHELF_BYTES // 4, version, dtype=np.float32) for version in range(1, 9)]
    store.publish(1, arenas[0])
    here = Get("", 0, 0, BF2, memory.place())
    assert isinstance(store.answer(replace(here, place="elsewhere"))[0], Weights)
    shared, raw = store.answer(here)
    assert isinstance(shared, Shared)
    assert (shared.policy_version, shared.floats, raw) == (1, SHELF_BYTES // 4, None)
    reader, mine = ShelfReader(shared, SHELF_BYTES // 4), np.zeros(SHELF_BYTES // 4, dtype=np.float32)
    assert reader.read(mine) == 1
    for version in range(2, 9):
        store.publish(version, arenas[version - 1])
        again, _ = store.answer(replace(here, epoch=6, have=version - 1))
        assert again == replace(shared, policy_version=version)
    assert reader.read(mine) == 8
    assert (mine == 8).all()
    with pytest.raises(SharedMemoryError, match="another process"):
        ShelfReader(replace(shared, nonce="f" * 32), SHELF_BYTES // 4)
    with pytest.raises(SharedMemoryError, match="for a policy of 7"):
        ShelfReader(shared, 7)
    store.close()
    assert reader.read(mine) == 8, "the mapping outlives the learner"
    reader.close()
    assert isinstance(store.answer(here)[0], Weights), "a store without a shelf gives them as ever"


@pytest.mark.skipif(sys.platform != "linux", reason="needs sealed memory files")
def test_who_reads_while_the_learner_writes_gets_one_version_whole() -> None:
    store = PolicyStore(epoch=6, token="")
    size, last = 1_000_000, 60
    store.publish(1, np.full(size, 1, dtype=np.float32))
    shared, _ = store.answer(Get("", 0, 0, F4, memory.place()))
    assert isinstance(shared, Shared)
    reader, mine, seen = ShelfReader(shared, size), np.zeros(size, dtype=np.float32), [0]

    def write() -> None:
        for version in range(2, last + 1):
            store.answer(Get("", 0, 0, F4, memory.place()))
            store.publish(version, np.full(size, version, dtype=np.float32))

    writer = threading.Thread(target=write)
    writer.start()
    while seen[-1] < last:
        version = reader.read(mine)
        assert (mine == version).all()
        assert version >= seen[-1]
        seen.append(version)
    writer.join()
    reader.close()
    store.close()


BF2_MOST = 2.0**127 * (1 + 127 / 128)
"""Larger numbers are rounded to infinity."""


@given(st.lists(st.floats(-BF2_MOST, BF2_MOST, width=32), min_size=1, max_size=40))
def test_bfloat16_is_torch_s_own(values: list[float]) -> None:
    import torch

    arena = np.array(values, dtype=np.float32)
    ours = loaded(BF2, to_bf2(arena).data.cast("B"), len(arena))
    assert np.array_equal(ours, torch.from_numpy(arena).to(torch.bfloat16).float().numpy())


def test_a_checksum_is_the_sum_of_the_words_whatever_the_length() -> None:
    assert checksum(memoryview(b"")) == "0" * 16
    assert checksum(memoryview(bytes([1] + [0] * 7 + [2]))) == f"{3:016x}"
    assert checksum(memoryview(b"\xff" * 16)) == f"{2**64 - 2:016x}"


@pytest.mark.parametrize(("codec", "size", "floats"), [(F4, 4, 2), (BF2, 4, 1), ("zip", 4, 1), (F4, 0, 0)])
def test_weights_of_another_size_or_codec_are_refused(codec: str, size: int, floats: int) -> None:
    with pytest.raises(ValueError, match="are not"):
        loaded(codec, memoryview(bytes(size)), floats)


@pytest.mark.parametrize("codec", [F4, BF2])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_weights_that_are_not_finite_leave_the_old_ones(codec: str, bad: float) -> None:
    given_ = np.zeros(100_000, dtype=np.float32)
    given_[-1] = bad
    mine = np.ones_like(given_)
    with pytest.raises(ValueError, match="not finite"):
        load(codec, (to_bf2(given_) if codec == BF2 else given_).data.cast("B"), mine)
    assert (mine == 1.0).all()


def test_a_version_never_names_two_policies() -> None:
    store = PolicyStore(epoch=6, token="", version=7)
    with pytest.raises(ValueError, match="does not follow"):
        store.publish(7, np.zeros(1, dtype=np.float32))


@given(
    st.integers(0, 100),
    st.floats(0.01, 4.0),
    st.integers(1, 500),
    st.lists(st.tuples(st.booleans(), st.integers(1, 64)), max_size=200),
)
def test_neither_side_runs_away_and_one_of_them_can_always_go(
    warmup: int, ratio: float, band: int, turns: list[tuple[bool, int]]
) -> None:
    pace = Pace(warmup, ratio, band)
    steps = updates = 0
    for learns, count in turns:
        assert pace.allows_update(steps, updates) or steps < pace.ceiling(updates)
        if learns and pace.allows_update(steps, updates):
            updates += 1
        elif steps < pace.ceiling(updates):
            steps += min(count, pace.ceiling(updates) - steps)
        assert updates <= max(0.0, (steps - warmup) * ratio)
        assert steps <= warmup + (updates + 1) / ratio + 1 + band


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


def test_records_go_on_in_the_old_file_where_there_can_be_no_new_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl.1").mkdir()
    file = RecordFile(tmp_path / "metrics.jsonl", limit_bytes=100)
    for number in range(50):
        file.append(f"{number:020d}")
    file.close()
    assert [int(line) for line in (tmp_path / "metrics.jsonl").read_text().split()] == list(range(50))


def points(file: Path) -> list[tuple[int, dict[str, float]]]:
    """Every step of an event file with its scalars; the framing and its check sums are looked at."""
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
    curves = Curves(tmp_path / "tensorboard")
    curves.add("learner", {"updates": 1, "loss": None, "lag": [1, 2], "alpha": float("nan")}, 10)
    curves.add("evaluator", {"clean_lap": True, "laps": 2}, 20)
    curves.close()
    (file,) = tmp_path.glob("tensorboard/events.out.tfevents.*")
    assert points(file) == [
        (0, {}),
        (10, {"learner/updates": 1.0}),
        (20, {"evaluator/clean_lap": 1.0, "evaluator/laps": 2.0}),
    ]


def test_a_full_disk_makes_records_and_curves_silent_and_never_waits(tmp_path: Path) -> None:
    code = f"""
import pathlib, resource
from runtime.metrics import Curves, RecordFile
folder = pathlib.Path({str(tmp_path)!r})
curves, records = Curves(folder), RecordFile(folder / "metrics.jsonl")
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
    assert rate.look(2.0, 10) == 5.0
    assert rate.look(3.0, 10) == 0.0
    assert rate.look(3.0, 99) == 0.0


def test_a_log_that_goes_away_or_a_flood_of_sentences_ends_nothing() -> None:
    script = (
        "import os, sys\n"
        "from runtime.metrics import Console\n"
        "console = Console()\n"
        "for n in range(1000): console.say(f'sentence {n}')\n"
        "sys.stderr.write('alive')\n"
        "os.close(1)\n"
        "for n in range(10): console.record('x')\n"
        "sys.stderr.write(' still'); sys.stderr.flush(); os._exit(0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert ended.stderr == "alive still"
    assert len(ended.stdout.split("\n")) < 130
