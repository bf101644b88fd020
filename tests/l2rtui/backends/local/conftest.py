"""Test bench: the local backend over a separate state folder, with independent checks of the machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from l2rtui.backends.local import process_scan
from l2rtui.backends.local.backend import LocalBackend
from l2rtui.backends.local.paths import RunFolder, StateFolder
from l2rtui.backends.local.run_store import RunStore
from l2rtui.backends.local.supervision import watcher as watching
from l2rtui.config import Settings
from l2rtui.domain.log import LogQuery
from l2rtui.domain.placement import place
from l2rtui.domain.plan import LaunchPlan, StepDone, plan_launch
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.snapshot import ClusterSnapshot, PodView
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from tests.tiers import starts_processes

WORKER = (sys.executable, "-S", "-E", str(Path(__file__).parents[3] / "fakes" / "worker.py"))
DEADLINE_SECONDS = 60.0


def _is_watcher(process: psutil.Process) -> bool:
    try:
        return watching.NAME in process.cmdline()
    except psutil.Error:  # it has ended
        return False


class Lab:
    """Shortcuts for the tests."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.settings = Settings(backoff_seconds=0.05, slots_per_core=8)
        self.backend = self.another()

    def another(self, settings: Settings | None = None) -> LocalBackend:
        """Make a backend as the next start of the app would."""
        return LocalBackend(settings or self.settings, state=self.state)

    def folder(self, run: str = "run") -> RunFolder:
        return StateFolder(self.state).run(run)

    @staticmethod
    def set(*actions: str, name: str = "w", **wishes: object) -> SetSpec:
        wishes = {"role": Role.WORKER, "restart": RestartPolicy.ALWAYS, "grace_seconds": 2.0, **wishes}
        return SetSpec(name, command=wishes.pop("command", (*WORKER, *actions)), **wishes)

    async def plan(self, *sets: SetSpec, name: str = "run", seed: int = 0) -> LaunchPlan:
        snapshot = await self.backend.snapshot()
        spec = RunSpec(Kind.LEARNER_WORKERS, name, name, sets, seed=seed)
        uids = [uuid.uuid4().hex]
        return plan_launch([spec], place([spec], snapshot.ledger), snapshot.nodes, owner="me", uids=uids)

    async def launch(self, *sets: SetSpec, name: str = "run") -> list[StepDone]:
        plan = await self.plan(*sets, name=name)
        return [done async for done in self.backend.launch(plan)]

    async def until(
        self, is_true: Callable[[ClusterSnapshot], object], backend: LocalBackend | None = None
    ) -> ClusterSnapshot:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            snapshot = await (backend or self.backend).snapshot()
            if is_true(snapshot):
                return snapshot
            assert time.monotonic() < deadline, (snapshot.runs, list(snapshot.pods.values()), snapshot.problems)
            await asyncio.sleep(0.01)

    async def pod(self, is_true: Callable[[PodView], object], name: str = "run-w-0") -> PodView:
        """Wait until a condition holds for the pod of this name, and return it."""

        def found(snapshot: ClusterSnapshot) -> PodView | None:
            return next(
                (pod_view for pod_view in snapshot.pods.values() if pod_view.name == name and is_true(pod_view)),
                None,
            )

        pod = found(await self.until(found))
        assert pod is not None
        return pod

    async def lines(self, query: LogQuery | None = None, name: str = "run-w-0") -> list[str]:
        pod = await self.pod(lambda _: True, name)
        return [line.text async for line in self.backend.logs(pod, query or LogQuery())]

    async def until_line(self, text: str, name: str = "run-w-0") -> list[str]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while text not in (lines := await self.lines(name=name)):
            assert time.monotonic() < deadline, lines
            await asyncio.sleep(0.02)
        return lines

    async def destroy(self, name: str = "run", **wishes: object) -> Receipt:
        run = (await self.backend.snapshot()).run_named(name)
        assert run is not None
        items = [item async for item in self.backend.destroy(run, **wishes)]
        assert isinstance(items[-1], Receipt)
        return items[-1]

    @property
    def root(self) -> StateFolder:
        return StateFolder(self.state.absolute())

    @property
    def store(self) -> RunStore:
        """The records and states of the runs, as the backend reads them."""
        return RunStore(self.root, process_scan.boot_id())

    def supervisor(self, run: str = "run") -> psutil.Process:
        status = self.store.named(run).status
        return psutil.Process(status.supervisor.pid)

    def watchers(self, run: str = "run") -> list[psutil.Process]:
        """The two of a run, once both have started: a fork has the name of its parent at first."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(watchers := [child for child in self.supervisor(run).children() if _is_watcher(child)]) != 2:
            assert time.monotonic() < deadline, watchers
            time.sleep(0.02)
        return watchers

    def kill_supervisor(self, run: str = "run") -> None:
        process = self.supervisor(run)
        watchers = self.watchers(run)
        process.suspend()  # it would replace them
        for watcher in watchers:
            watcher.kill()
        process.kill()
        wait_gone(process)

    def processes(self) -> list[psutil.Process]:
        """All processes of this machine with our state folder in their environment, found only with psutil."""
        processes = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and any(
                    str(self.state) in value for value in process.environ().values()
                ):
                    processes.append(process)
            except psutil.Error:
                continue
        return [process for process in processes if process.pid != os.getpid()]


def wait_gone(process: psutil.Process) -> None:
    """Wait until the process has ended, or is a zombie whose parent does not reap it."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
@starts_processes
async def lab(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    # Containers that start on this machine during a test would be in its receipts.
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/docker.sock")
    # Not pytest's folder: with xdist its path is too long for a Unix socket, so sockets would be placed elsewhere.
    folder = Path(tempfile.mkdtemp(prefix="l2r-"))
    lab = Lab(folder / "local")
    yield lab
    deadline = time.monotonic() + DEADLINE_SECONDS
    while processes := lab.processes():  # a supervisor may start one more before its own turn comes
        assert time.monotonic() < deadline, processes
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
    await lab.backend.close()
    shutil.rmtree(folder, ignore_errors=True)
