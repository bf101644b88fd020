"""Files that are replaced, folders that are locked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runtime.base import atomic_files
from runtime.base.atomic_files import copy_atomic, lock_folder, replacement, try_lock, write_atomic, write_private


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("is_durable", [False, True])
def test_the_new_content_takes_the_place_of_the_old(tmp_path: Path, *, is_shared: bool, is_durable: bool) -> None:
    path = tmp_path / "state.json"
    for content in (b"old", b"new"):
        write_atomic(path, content, is_shared=is_shared, is_durable=is_durable)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_content_and_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")

    def write_half() -> None:
        with replacement(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".tmp-state.json").write_text("of a process that was killed, and longer than the new one")
    write_atomic(tmp_path / "state.json", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]
    assert (tmp_path / "state.json").read_bytes() == b"new"


def test_several_writers_of_a_shared_file_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    contents = {bytes([65 + number]) * 50_000 for number in range(8)}
    write_atomic(path, min(contents), is_shared=True)
    stop = threading.Event()

    def write(content: bytes) -> None:
        while not stop.is_set():
            write_atomic(path, content, is_shared=True, is_durable=False)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    try:
        assert all(path.read_bytes() in contents for _ in range(300))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_a_mode_holds_whatever_the_umask_says(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        write_atomic(tmp_path / "file", b"x", mode=mode)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_a_private_file_keeps_its_link_and_makes_its_folder(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles" / "login.json", tmp_path / "login.json"
    link.symlink_to(real)
    write_private(link, '{"user": "ada"}')
    assert link.is_symlink()
    assert real.read_text() == '{"user": "ada"}'
    assert (real.stat().st_mode & 0o777, real.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_copy_has_the_mode_of_its_source_and_tells_its_progress(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(os.urandom(9 * 1024 * 1024))  # two chunks
    source.chmod(0o640)
    moved: list[int] = []
    copy_atomic(source, target, moved.append)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_mode & 0o777 == 0o640
    assert (len(moved), sum(moved)) == (2, source.stat().st_size)


def test_a_copy_of_what_is_missing_leaves_the_target(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("old")
    with pytest.raises(FileNotFoundError):
        copy_atomic(tmp_path / "a", tmp_path / "b")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("b", "old")]


def test_a_lock_is_exclusive_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as first, path.open("w") as second:
        assert try_lock(first.fileno())
        assert not try_lock(second.fileno())
        first.close()
        assert try_lock(second.fileno())


@pytest.mark.process
def test_a_folder_is_free_again_when_its_process_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from runtime.base.atomic_files import lock_folder\n"
        "with lock_folder(Path(sys.argv[1]), 0.0): print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "locked\n"
        with pytest.raises(BlockingIOError, match=f"the folder {tmp_path} is in use"), lock_folder(tmp_path, 0.0):
            pass
        owner.kill()
    with lock_folder(tmp_path, 0.0):
        pass


def test_a_folder_is_waited_for(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as other:
        assert try_lock(other.fileno())
        calls = 0

        def is_cancelled() -> bool:
            nonlocal calls
            calls += 1
            if calls == 3:
                other.close()  # the replaced process has ended
            return False

        with lock_folder(tmp_path, 60.0, is_cancelled):
            assert calls == 3


def test_cancelled_waiting_runs_the_block_without_the_lock(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as other:
        assert try_lock(other.fileno())
        with lock_folder(tmp_path, 60.0, lambda: True):
            pass


def test_a_file_system_without_locks_is_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(atomic_files.fcntl, "flock", refuse)
    with lock_folder(tmp_path, 0.0):
        pass
