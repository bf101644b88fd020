"""Files of the state that are garbled, cut, emptied or of another version.

No verb crashes, no record is lost, and `destroy` works.
"""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.l2rtui.cli.conftest import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1200)]

SPEC = "kind: job\nname: {}\njob: {{command: [sh, -c, 'echo ready; exec sleep 100000'], slots: {}}}\n"
SLOTS = "3"
VERBS = (
    ("runs", "-o", "wide"),
    ("pods",),
    ("slots",),
    ("nodes",),
    ("check",),
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


LISTS = {("runs",): "run", ("queue",): "run", ("reserve",): "id", ("history",): "run", ("secret", "ls"): "secret"}
"""What lists the records of a user, and the field that names one."""


def files_of(state: Path) -> list[Path]:
    """Return the files of a run and of its user; what ends in `.log` holds no state."""
    return sorted(path for path in state.rglob("*") if path.is_file() and path.suffix != ".log")


def launch(local, name: str, slots: int = 1, *options: str) -> None:
    spec = local.home / f"{name}.yaml"
    spec.write_text(SPEC.format(name, slots))
    launched = local.run("launch", "-f", str(spec), "--yes", *options)
    assert launched.returncode == 0, (name, launched.stderr)


def at_once(local, *commands: tuple[str, ...]) -> dict[tuple[str, ...], subprocess.CompletedProcess[str]]:
    """Run commands at the same time; none crashes."""
    with ThreadPoolExecutor(max_workers=len(commands)) as pool:
        all_done = dict(zip(commands, pool.map(lambda words: local.run(*words), commands), strict=True))
    for words, done in all_done.items():
        assert "Traceback" not in done.stdout + done.stderr, (words, done.stderr)
        assert done.returncode in (0, 1), (words, done.stderr)
    return all_done


def records(local) -> tuple[dict[str, set[str]], str]:
    """Return what each list shows, except the run that is destroyed again and again, and what they say beside."""
    all_done = at_once(local, *((*words, "-o", "json") for words in LISTS))
    shown = {
        words[0]: {row[field] for row in json.loads(done.stdout or "[]")} - {"t"}
        for (words, field), done in zip(LISTS.items(), all_done.values(), strict=True)
    }
    return shown, "".join(done.stderr for done in all_done.values())


def restore(path: Path, data: bytes) -> None:
    """Put a file back as from a backup: another file, without the log of a database that began anew."""
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    backup = path.with_name("backup")
    backup.write_bytes(data)
    backup.replace(path)


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damaged_file_ends_a_verb_with_a_traceback_or_keeps_a_run_alive(local, damage):
    local.env["L2RTUI_MAX_CPU_SLOTS"] = SLOTS
    launch(local, "past")
    assert local.run("destroy", "past", "--yes", "--grace", "0").returncode == 0
    assert local.run("secret", "create", "key", "--from-env", "KEY", KEY="value").returncode == 0
    node = local.json("nodes")[0]["node"]
    assert local.run("reserve", f"{node}/cpu.2", "--for", "2h").returncode == 0
    launch(local, "u")
    launch(local, "waiting", int(SLOTS), "--queue")
    launch(local, "t")
    before, said = records(local)
    assert all(before.values()), (before, said)
    state = local.home / "state" / "l2rtui"
    names = [path.relative_to(state) for path in files_of(state) if not path.is_relative_to(state / "local/runs/u")]
    assert len(names) >= 12
    for name in names:
        if not (state / "local" / "runs" / "t").exists():
            launch(local, "t")
        eventually(lambda: all(pod["pid"] for pod in local.json("pods") if pod["run"] == "t"), "its process")
        (pod,) = (pod for pod in local.json("pods") if pod["run"] == "t")
        path = state / name
        if not path.exists():
            continue  # a folder with the id of an earlier launch in its name
        data = path.read_bytes()
        damaged = DAMAGES[damage](data)
        if damaged == data:
            continue  # it names no version
        path.write_bytes(damaged)
        os.utime(path, (0, 0))
        shown, said = records(local)
        said += "".join(done.stderr + done.stdout for done in at_once(local, *VERBS).values())
        for words, expected in before.items():
            assert expected <= shown[words] or name.name in said, (name, words, shown[words], said)
        destroyed = local.run("destroy", "t", "--yes")
        assert destroyed.returncode == 0, (name, destroyed.stdout, destroyed.stderr)
        assert "Traceback" not in destroyed.stderr
        assert not psutil.pid_exists(pod["pid"]), name
        if not name.is_relative_to("local/runs"):  # of the user: the damaged bytes are there, here or set aside
            kept = [file.read_bytes() for file in path.parent.glob(f"{path.name}*")]
            assert any(content.startswith(damaged) for content in kept), name
            asides = [
                file for file in path.parent.glob(f"{path.name}.*-*") if file.suffix[1:8] in ("damaged", "corrupt")
            ]
            assert all(str(file) in local.run("check").stdout for file in asides), name
            restore(path, data)
            assert records(local)[0] == before, name
