"""Checkpoints, the journal of counters, and the lock of a run's folder: after any damage the newest intact one."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from runtime.base.atomic_files import lock_folder, write_atomic
from runtime.rl.checkpoints.checkpoint_files import Checkpoints
from runtime.rl.checkpoints.counters import JOURNAL, Counters, next_epoch, read_journal, write_journal

pytestmark = pytest.mark.process

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(7, dtype=np.int64)}


def save(checkpoints: Checkpoints, count: int) -> list[str]:
    return [checkpoints.save(n, 10 * n, {**ARRAYS, "n": np.array(n)}, {"n": n}) for n in range(1, count + 1)]


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 2)
    loaded, aside = Checkpoints(tmp_path, keep=3).load()
    assert loaded is not None
    assert loaded.facts == {"n": 2}
    assert aside == []
    np.testing.assert_array_equal(loaded.tensors["a"], ARRAYS["a"])
    assert (loaded.tensors["b"].dtype, loaded.tensors["b"].shape) == (np.int64, ())


def test_a_system_that_cannot_read_now_costs_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = save(Checkpoints(tmp_path, keep=3), 3)

    def read_bytes(path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", read_bytes)
        with pytest.raises(OSError, match="open files"):
            Checkpoints(tmp_path, keep=3).load()
    checkpoints = Checkpoints(tmp_path, keep=3)
    assert checkpoints.names() == names
    assert checkpoints.load()[1] == []


def test_an_empty_folder_holds_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "new", keep=3).load() == (None, [])


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    names = save(Checkpoints(tmp_path, keep=2), 5)
    assert sorted(path.stem for path in tmp_path.glob("*.safetensors")) == names[-2:]
    assert sorted(path.stem for path in tmp_path.glob("*.json")) == names[-2:]


def test_the_same_moment_is_not_written_twice(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert save(checkpoints, 1) == save(checkpoints, 1)
    assert len(checkpoints.names()) == 1


@pytest.mark.parametrize(
    "what",
    ["truncated", "flipped", "emptied", "data gone", "manifest torn", "manifest foreign", "manifest flipped"],
)
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(tmp_path: Path, what: str) -> None:
    name = save(Checkpoints(tmp_path, keep=3), 3)[-1]
    data, manifest = tmp_path / f"{name}.safetensors", tmp_path / f"{name}.json"
    raw = bytearray(data.read_bytes())
    match what:
        case "truncated":
            data.write_bytes(raw[:-1])
        case "flipped":
            raw[-1] ^= 1
            data.write_bytes(raw)
        case "emptied":
            data.write_bytes(b"")
        case "data gone":
            data.unlink()
        case "manifest flipped":
            manifest.write_bytes(manifest.read_bytes().replace(b'"n": 3', b'"n": 2'))
        case "manifest torn":
            manifest.write_bytes(manifest.read_bytes()[:20])
        case _:
            manifest.write_text(json.dumps({"format": 99}))
    loaded, aside = Checkpoints(tmp_path, keep=3).load()
    assert loaded is not None
    assert loaded.facts == {"n": 2}
    assert len(aside) == 1
    assert name in aside[0]
    assert (tmp_path / f"{name}.json.damaged").exists()


def test_when_all_are_damaged_there_is_none_and_each_is_told(tmp_path: Path) -> None:
    for name in save(Checkpoints(tmp_path, keep=3), 3):
        (tmp_path / f"{name}.safetensors").write_bytes(b"x")
    loaded, aside = Checkpoints(tmp_path, keep=3).load()
    assert loaded is None
    assert len(aside) == 3


def test_a_disk_that_refuses_leaves_the_old_ones(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 1)
    blocker = tmp_path / ".tmp-ckpt-0000000002-000000000020.safetensors"
    blocker.mkdir()
    with pytest.raises(OSError, match="directory"):
        checkpoints.save(2, 20, ARRAYS, {})
    blocker.rmdir()
    loaded, aside = Checkpoints(tmp_path, keep=3).load()
    assert loaded is not None
    assert (loaded.facts, aside) == ({"n": 1}, [])


FULL = """
import resource, signal, sys, numpy as np
from pathlib import Path
from runtime.rl.checkpoints.checkpoint_files import Checkpoints
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
checkpoints = Checkpoints(Path(sys.argv[1]), keep=3)
checkpoints.save(1, 1, {"n": np.full(200_000, 1)}, {"n": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for _ in range(3):
    try:
        checkpoints.save(2, 2, {"n": np.full(200_000, 2)}, {"n": 2})
    except OSError as error:
        print("refused", error.errno)
"""


def test_a_disk_that_takes_only_a_part_leaves_no_part_and_the_old_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        cwd=Path(__file__).parents[4],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [f"refused {errno.EFBIG}"] * 3
    assert len(list(tmp_path.iterdir())) == 2
    loaded, aside = Checkpoints(tmp_path, keep=3).load()
    assert loaded is not None
    assert (loaded.facts, aside) == ({"n": 1}, [])


def test_any_flipped_bit_and_any_cut_of_the_newest_is_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for turn in range(60):
        folder = tmp_path / str(turn)
        name = save(Checkpoints(folder, keep=3), 2)[-1]
        path = folder / f"{name}{rng.choice(['.json', '.safetensors'])}"
        raw = bytearray(path.read_bytes())
        if rng.random() < 0.5:
            raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
        else:
            del raw[rng.integers(len(raw)) :]
        path.write_bytes(raw)
        loaded, aside = Checkpoints(folder, keep=3).load()
        assert loaded is not None
        # White space of a manifest may change: its meaning is then the same, and it is intact.
        assert (loaded.facts["n"], len(aside)) in {(1, 1), (2, 0)}
        if loaded.facts["n"] == 2:
            assert path.suffix == ".json"
            np.testing.assert_array_equal(loaded.tensors["n"], 2)


SAVER = """
import sys, numpy as np
from pathlib import Path
from runtime.rl.checkpoints.checkpoint_files import Checkpoints
checkpoints = Checkpoints(Path(sys.argv[1]), keep=2)
for n in range(1, 10_000):
    checkpoints.save(n, n, {"n": np.full(200_000, n)}, {"n": n})
    print(n, flush=True)
"""


def test_a_kill_at_any_moment_leaves_the_newest_whole_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for turn in range(20):
        folder = tmp_path / str(turn)
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(folder)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[4]
        )
        assert process.stdout is not None
        said = 0
        for line in process.stdout:
            said = int(line)
            if said > rng.integers(1, 8):
                break
        os.kill(process.pid, signal.SIGKILL)
        said = max([said, *(int(line) for line in process.stdout.read().split(b"\n")[:-1])])
        process.wait()
        process.stdout.close()
        loaded, aside = Checkpoints(folder, keep=2).load()
        assert loaded is not None
        assert aside == []
        assert loaded.facts["n"] >= said
        assert (loaded.tensors["n"] == loaded.facts["n"]).all()
        assert not list(folder.glob(".tmp-*"))


def test_counters_go_on_from_the_journal_and_say_what_was_lost() -> None:
    saved = Counters(epoch=100, env_steps=1_000, updates=200, lost_updates=5, policy_version=20)
    journal = Counters(epoch=100, env_steps=1_500, updates=300, lost_updates=5, policy_version=31)
    resumed = next_epoch(saved, journal, now_seconds=0.0)
    assert resumed == Counters(epoch=101, env_steps=1_500, updates=300, lost_updates=105, policy_version=31)
    assert resumed.kept_updates == saved.kept_updates


def test_without_a_checkpoint_everything_was_lost_but_nothing_falls() -> None:
    resumed = next_epoch(None, Counters(7, 90, 40, 0, 3), now_seconds=0.0)
    assert (resumed.updates, resumed.kept_updates, resumed.policy_version) == (40, 0, 3)


def test_an_epoch_rises_even_if_the_journal_is_lost() -> None:
    assert next_epoch(None, Counters(), 2.0).epoch == 2_000
    assert next_epoch(None, Counters(epoch=5_000), 2.0).epoch == 5_001


def test_the_journal_is_read_back_and_a_torn_one_counts_as_none(tmp_path: Path) -> None:
    counters = Counters(1, 2, 3, 0, 5)
    write_journal(tmp_path, counters)
    assert read_journal(tmp_path) == counters
    for torn in (b"", b"{", b"[]", b'{"epoch": "1"}'):
        (tmp_path / JOURNAL).write_bytes(torn)
        assert read_journal(tmp_path) == Counters()
    write_journal(tmp_path / "missing", counters)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomic(path, b"one")
    write_atomic(path, b"two", is_durable=False)
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_held_by_one_process_until_it_ends(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path, 0.0),
        pytest.raises(BlockingIOError, match="in use by another process"),
        lock_folder(tmp_path, 0.0),
    ):
        pass
    with lock_folder(tmp_path, 0.0):
        pass


def test_a_reader_leaves_a_folder_that_another_process_writes_as_it_is(tmp_path):
    name = save(Checkpoints(tmp_path, keep=3), 2)[-1]
    (tmp_path / f"{name}.safetensors").write_bytes(b"being replaced")
    (tmp_path / "ckpt-0000000009-0000000009.safetensors").write_bytes(b"its manifest comes next")
    before = sorted(path.name for path in tmp_path.iterdir())
    loaded, aside = Checkpoints(tmp_path, keep=1, is_read_only=True).load()
    assert loaded is not None
    assert loaded.name != name
    assert aside == []
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert Checkpoints(tmp_path / "none", keep=1, is_read_only=True).load() == (None, [])
    assert not (tmp_path / "none").exists()
