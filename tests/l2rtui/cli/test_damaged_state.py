"""Files of the state that are garbled, cut, emptied or of another version: no verb crashes, `destroy` works."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from tests.l2rtui.cli.conftest import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1200)]

SPEC = "kind: job\nname: t\njob: {command: [sh, -c, 'echo ready; exec sleep 600'], slots: 1}\n"
VERBS = (
    ("runs", "-o", "wide"),
    ("pods",),
    ("slots",),
    ("nodes",),
    ("check",),
    ("queue",),
    ("reservations",),
    ("history",),
    ("logs", "t"),
    ("describe", "t"),
)
DAMAGES = {
    "garbled": lambda data: bytes(byte ^ 0x5A for byte in data) or b"\xff",
    "truncated": lambda data: data[: len(data) // 2],
    "emptied": lambda _: b"",
    "of another version": lambda data: data.replace(b'"format":', b'"format":9').replace(
        b'"version":', b'"version":9'
    ),
}


def files_of(state: Path) -> list[Path]:
    """Return the files of a run and of its user; sockets, pipes and locks hold no state."""
    return sorted(
        path
        for path in state.rglob("*")
        if path.is_file() and path.suffix != ".log" and not path.name.endswith("lock")
    )


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damaged_file_ends_a_verb_with_a_traceback_or_keeps_a_run_alive(local, damage):
    spec = local.home / "t.yaml"
    spec.write_text(SPEC)
    state = local.home / "state" / "l2rtui"
    assert local.run("launch", "-f", str(spec), "--yes").returncode == 0
    names = [path.relative_to(state) for path in files_of(state)]
    assert len(names) >= 5
    for name in names:
        run_folder = state / "local" / "runs" / "t"
        if not run_folder.exists():
            launched = local.run("launch", "-f", str(spec), "--yes")
            assert launched.returncode == 0, (name, launched.stderr)
        eventually(lambda: all(pod["pid"] for pod in local.json("pods")), "its process")
        (pod,) = local.json("pods")
        path = state / name
        if not path.exists():
            continue  # a folder with the id of an earlier launch in its name
        data = path.read_bytes()
        path.write_bytes(DAMAGES[damage](data))
        os.utime(path, (0, 0))
        for words in VERBS:
            done = local.run(*words)
            assert "Traceback" not in done.stdout + done.stderr, (name, words, done.stderr)
            assert done.returncode in (0, 1, 2, 3), (name, words, done.stderr)
        destroyed = local.run("destroy", "t", "--yes")
        assert destroyed.returncode == 0, (name, destroyed.stdout, destroyed.stderr)
        assert "Traceback" not in destroyed.stderr
        assert not psutil.pid_exists(pod["pid"]), name
        if path.exists():  # of the user, not of the run
            path.write_bytes(data)
