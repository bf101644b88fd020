"""Other parts of the local backend: the watch and its cost, exec, environments."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from l2rtui.backends.local.environment import clean_environ, find_command
from l2rtui.backends.local.supervision.supervised_process import backoff, is_forgotten
from l2rtui.domain.change import PodChanged, apply
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, PodView
from l2rtui.errors import BackendError, NotFoundError


async def test_the_watch_tells_what_the_snapshot_shows(lab):
    latest = EMPTY_SNAPSHOT
    batches = 0

    async def watch():
        nonlocal latest, batches
        async for changes in lab.backend.watch():
            batches += 1
            latest = apply(latest, changes)

    watching = asyncio.ensure_future(watch())
    await lab.launch(lab.set("sleep", "600", replicas=2))
    async with asyncio.timeout(60):
        while sum(pod.ready for pod in latest.pods.values()) < 2:
            await asyncio.sleep(0.02)
    snapshot = await lab.backend.snapshot()
    assert (latest.pods, latest.runs) == (snapshot.pods, snapshot.runs)
    await lab.destroy()
    async with asyncio.timeout(60):
        while latest.runs:
            await asyncio.sleep(0.02)
    watching.cancel()
    assert batches < 12


async def test_a_watch_of_idle_runs_tells_nothing_of_pods_and_costs_little(lab):
    await lab.launch(lab.set("sleep", "600", replicas=4))
    watch = lab.backend.watch()
    await anext(watch)
    supervisor = lab.supervisor()
    began, ours, theirs = time.monotonic(), time.process_time(), sum(supervisor.cpu_times()[:2])
    while time.monotonic() < began + 1.0:
        try:
            async with asyncio.timeout(began + 1.0 - time.monotonic()):
                changes = await anext(watch)
        except (TimeoutError, StopAsyncIteration):
            break
        assert not [change for change in changes if isinstance(change, PodChanged)]
    # The limit is half a percent of a core; on a busy machine the measurement is not more precise than this.
    assert time.process_time() - ours < 0.05
    assert sum(supervisor.cpu_times()[:2]) - theirs <= 0.02


async def test_exec_runs_beside_the_pod_on_our_terminal(lab, capfd):
    await lab.launch(lab.set("sleep", "600"))
    pod = await lab.pod(lambda pod: pod.ready)
    code = await lab.backend.exec(pod, ["sh", "-c", "echo $L2R_POD in $PWD; exit 7"])
    assert code == 7
    assert capfd.readouterr().out == f"run-w-0 in {Path.cwd()}\n"
    assert await lab.backend.exec(pod, ["sh", "-c", "kill -9 $$"]) == 137
    with pytest.raises(BackendError, match="no-such-command is not found in run-w-0"):
        await lab.backend.exec(pod, ["no-such-command"])
    with pytest.raises(NotFoundError):
        await lab.backend.exec(PodView("other", "run-w-9", run="run"), ["true"])


async def test_a_cancelled_exec_ends_its_command(lab):
    await lab.launch(lab.set("sleep", "600"))
    pod = await lab.pod(lambda pod: pod.ready)
    running = asyncio.ensure_future(lab.backend.exec(pod, ["sleep", "600"]))
    await lab.until(lambda _: len(lab.processes()) == 5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(lab.processes()) == 4


async def test_an_exec_ends_with_its_run(lab):
    await lab.launch(lab.set("sleep", "600"))
    pod = await lab.pod(lambda pod: pod.ready)
    running = asyncio.ensure_future(lab.backend.exec(pod, ["sleep", "600"]))
    await lab.until(lambda _: len(lab.processes()) == 5)
    assert not (await lab.destroy()).left
    assert await running == 137


def test_children_get_the_users_environment_without_ours():
    environ = {
        "HOME": "/h",
        "PATH": "/bin",
        "L2R_RUN": "x",
        "L2RTUI_BACKEND": "y",
        "TEXTUAL_DRIVER": "z",
        "LINES": "1",
    }
    assert clean_environ(environ) == {"HOME": "/h", "PATH": "/bin"}


def test_commands_are_found_as_exec_finds_them(tmp_path, monkeypatch):
    for folder, name in (
        ("user", "python"),
        ("user", "l2r-runtime"),
        ("own", "python"),
        ("own", "l2r-runtime"),
        ("own", "only"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).touch(mode=0o755)
    (tmp_path / "user" / "text").touch(mode=0o644)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own" / "python"))
    path = str(tmp_path / "user")
    assert find_command("python", path, "/") == str(tmp_path / "user" / "python")
    assert find_command("l2r-runtime", path, "/") == str(tmp_path / "own" / "l2r-runtime")
    assert find_command("only", path, "/") == str(tmp_path / "own" / "only")
    assert find_command("text", path, "/") is None
    assert find_command("user/python", path, str(tmp_path)) == str(tmp_path / "user" / "python")
    assert find_command("user/text", path, str(tmp_path)) is None


def test_backoff_is_kubelets():
    assert [backoff(number, 10.0) for number in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert backoff(10_000, 10.0) == 300
    assert is_forgotten(600, 10.0)
    assert not is_forgotten(599, 10.0)


@pytest.mark.process
def test_a_supervisor_imports_little():
    program = (
        "import sys, l2rtui.backends.local.supervision.supervisor;"
        "print([name for name in ('asyncio', 'psutil', 'subprocess', 'yaml', 'socket') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
