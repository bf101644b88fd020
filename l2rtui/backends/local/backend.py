"""Backend over processes of this machine; joins state files, supervisors, logs and the node's devices."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from l2rtui.backends.base import AttachedProcess
from l2rtui.backends.common.node_info import node_name
from l2rtui.backends.common.refusals import has_no_input, refuse_conflicts, refuse_taken_slots
from l2rtui.backends.common.reservations import ReservationFile
from l2rtui.backends.local import destroy as destruction
from l2rtui.backends.local import launch, preflight, process_scan, run_folders, run_store, state_files
from l2rtui.backends.local.environment import clean_environ, find_command, pod_environ
from l2rtui.backends.local.inspector import LocalInspector
from l2rtui.backends.local.logs import read_logs
from l2rtui.backends.local.node_reader import NodeReader, NodeReading
from l2rtui.backends.local.paths import RunFolder, StateFolder
from l2rtui.backends.local.run_folders import LocalResults
from l2rtui.backends.local.run_store import RunScan, RunState, RunStore
from l2rtui.backends.local.secrets import LocalSecrets
from l2rtui.backends.local.state_files import PodRecord, RunRecord, StopRequest
from l2rtui.backends.local.supervision import client
from l2rtui.backends.local.volume_store import LocalVolumes
from l2rtui.config import Settings, state_dir, user_name
from l2rtui.domain.change import Change, difference
from l2rtui.domain.log import CommandOutput, LogLine, LogQuery
from l2rtui.domain.plan import LaunchPlan, ScalePlan, StepDone
from l2rtui.domain.preflight import Finding
from l2rtui.domain.receipt import DestroyProgress, LeakReport, Receipt
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import BackendError, NotFoundError, RefusedError
from runtime.base.cgroups import usable_cores
from runtime.base.processes import shell_exit_code, signal_process_group

_WATCH_SECONDS = 0.2
_NODE_SECONDS = 5.0
"""Age at which the node is read again: NVML and psutil take milliseconds, and memory changes slowly."""
_SHARED_SECONDS = 0.3
"""Oldest scan of the state folder that log followers accept: hundreds of them share one scan."""
_ANSWER_SECONDS = 5.0


class LocalBackend:
    """This machine as the only node; see ``backends.base.Backend`` for the methods.

    Args:
        state: Folder for the state of this backend; None for ``local`` in the user's state folder.
        nvml: The module ``pynvml``, or a replacement; None imports it when it is first needed.
    """

    name = "local"
    location = contexts = renderer = records = queue = None

    def __init__(self, settings: Settings, *, state: Path | None = None, nvml: object = None) -> None:
        self._settings = settings
        self.history_to = settings.history_to
        self._root = StateFolder((state or state_dir() / "local").absolute())
        self._store = RunStore(self._root, process_scan.boot_id())
        self._node_reader = NodeReader(settings, self._root.runs, nvml)
        self._views = run_store.ViewCache()
        self._node: NodeReading | None = None
        self._node_until = 0.0
        self._scan: RunScan | None = None
        self._scanned_at = 0.0
        path, lock = self._root.reservations, lambda: client.lock_state(self._root)
        self.reservations = ReservationFile(path, lock, self.snapshot, user_name())

    def acts_on(self, namespaces: Collection[str] = ()) -> str:  # noqa: ARG002  (there are none here)
        """Return the place of a change, for its confirmation."""
        return "on this machine"

    async def snapshot(self) -> ClusterSnapshot:
        """Return the current state of the node, its runs and its pods."""
        return self._snapshot(await self._read_node())

    async def watch(self) -> AsyncGenerator[tuple[Change, ...]]:
        """Yield changes; the state folder is polled five times per second, the node every five seconds."""
        latest = EMPTY_SNAPSHOT
        is_first = True
        while True:
            newest = self._snapshot(await self._read_node())
            changes = difference(latest, newest)
            if changes or is_first:
                latest, is_first = newest, False
                yield changes
            await asyncio.sleep(_WATCH_SECONDS)

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:
        """Check that commands exist and files can be written."""
        findings = await asyncio.to_thread(preflight.check_plan, self._root, plan)
        return (*findings, *self.reservations.findings())

    async def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone]:
        """Execute a plan: write the records of all runs, which claims their slots, then start the supervisors."""
        refuse_conflicts(plan.conflicts)
        async with client.lock_state(self._root):
            await launch.write_records(self._root, self._settings, plan, await self.snapshot())
        async for done in launch.start_supervisors(self._root, plan):
            yield done

    async def spec(self, run: str) -> RunSpec:
        """Return the spec of a run with the current numbers of replicas."""
        return self._recorded(run)[1].spec

    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:
        """Start and stop replicas; returns once the record is written and a supervisor reads it."""
        refuse_conflicts(plan.conflicts)
        async with client.lock_state(self._root):
            state, record = self._recorded(plan.run)
            self._refuse_stopping(state)
            # Under the lock and with a new snapshot: another launch may have taken slots after the plan was made.
            refuse_taken_slots(plan.added, await self.snapshot(), plan.overcommitted)
            if self._settings.grace(grace_seconds) is not None and state.status is not None:
                pods = [pod for pod in state.status.pods if pod.plan.name in plan.removed]
                self._request_stop(state.folder, [pod.uid for pod in pods], self._settings.grace(grace_seconds))
            # After the requests: the supervisor would stop a removed pod with the grace period of its set.
            await launch.scale(self._root, record, plan)
        await self.adopt(plan.run)

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
        """Stop these pods; returns once their supervisors have read the requests. Their sets replace them."""
        # One request folder and one supervisor per run: pods of several runs are stopped run by run.
        by_run: dict[str, list[PodView]] = {}
        for pod in pods:
            if not pod.run:
                owner = f" of {pod.owner}" if pod.owner else ""
                raise RefusedError(f"{pod.name} is a process{owner} that l2rtui did not launch.")
            by_run.setdefault(pod.run, []).append(pod)
        # All are checked before the first is stopped: the call affects all pods or none.
        for run, chosen in by_run.items():
            state, _ = self._recorded(run)
            self._refuse_stopping(state)
            present = {view.uid for view in run_store.pod_views(state, node_name(), time.time())}
            for pod in chosen:
                if pod.uid not in present:
                    raise NotFoundError(f"The pod {pod.name} is gone.", "Look at the pods again.")
        for run, chosen in by_run.items():
            folder = self._root.run(run)
            requests = self._request_stop(folder, [pod.uid for pod in chosen], self._settings.grace(grace_seconds))
            await self.adopt(run)
            await self._wait_for_answers(folder, requests)

    async def destroy(
        self,
        run: RunView,
        *,
        grace_seconds: float | None = None,
        purge: bool = False,
        force: bool = False,  # noqa: ARG002  (SIGKILL follows the grace here anyway)
    ) -> AsyncGenerator[DestroyProgress | Receipt]:
        """Remove a run and verify the removal; the last item is the Receipt."""
        grace = self._settings.grace(grace_seconds)
        read_gpus = self._node_reader.read_gpus
        async for item in destruction.destroy(self._root, self._store, run, grace, read_gpus, purge=purge):
            yield item

    async def adopt(self, run: str) -> None:
        """Make sure that a run has a living supervisor, and that it reads the run's files now.

        Raises:
            NotFoundError: The run does not exist.
            BackendError: Its record cannot be read, or no supervisor can be started.
        """
        _, record = self._recorded(run)
        folder = self._root.run(run)
        if not await client.finish_in_thread(client.wake, folder):
            await client.finish_in_thread(client.start_supervisor, folder, record.uid)

    async def leaks(self) -> LeakReport:
        """Find processes and files of runs that no longer exist."""
        return LeakReport(await asyncio.to_thread(preflight.find_leaks, self._root, self._store.scan()))

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine]:
        """Yield lines of a pod and of its predecessors of the same name, with a mark between two processes."""
        folder = self._root.run(pod.run)
        if not pod.run or not folder.path.exists():
            raise NotFoundError(f"There is no log of {pod.name} here.", "See `l2rtui pods`.")
        is_over = lambda: self._is_over(pod)  # noqa: E731  (a closure of one call)
        async for line in read_logs(folder.log_dir(pod.name), pod.name, query, is_over):
            yield line

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:
        """Run a command with the pod's variables and folder on the caller's terminal; return its exit code.

        It has the pod's tags, so it ends with the pod, as in a container.
        """
        return await attached(*self._command_in_pod(pod, argv))

    @asynccontextmanager
    async def attach(self, pod: PodView) -> AsyncIterator[AttachedProcess]:
        """Refuse: the supervisor starts each process without a standard input."""
        raise has_no_input(pod.name)
        yield  # type: ignore[unreachable]  # makes it a generator

    async def capture(self, pod: PodView, argv: Sequence[str]) -> CommandOutput:
        """Run a command as exec() does, and return its output."""
        return await captured(*self._command_in_pod(pod, argv))

    async def doctor(self) -> tuple[Finding, ...]:
        """Diagnose this machine."""
        reading = await self._read_node()
        findings = await asyncio.to_thread(preflight.diagnose, self._root, reading, self._store.scan())
        return (*findings, *self.reservations.findings())

    async def denied(self) -> Mapping[str, str]:
        """Permit everything: file permissions are only checked when an action is tried."""
        return {}

    @property
    def secrets(self) -> LocalSecrets:
        """The secrets in the state folder."""
        return LocalSecrets(self._root.secrets, user_name())

    @property
    def inspector(self) -> LocalInspector:
        """Descriptions, events and port forwarding, from state files."""
        return LocalInspector(self._root, self._store)

    @property
    def volumes(self) -> LocalVolumes:
        """The volumes in the state folder."""
        return LocalVolumes(self._root, self._store)

    async def results(self, run: str) -> Path | None:
        """Return the folder with the checkpoints of a run, or of a destroyed run of that name."""
        return await asyncio.to_thread(run_folders.results_of, self._root, run)

    @property
    def kept_results(self) -> LocalResults:
        """The results in the state folder."""
        return LocalResults(self._root)

    async def close(self) -> None:
        """Close the GPU driver; runs continue."""
        await asyncio.to_thread(self._node_reader.close)

    # --- inside ------------------------------------------------------------------------------------------------
    async def _read_node(self) -> NodeReading:
        now = time.monotonic()
        if self._node is None or now >= self._node_until:
            self._node_until = now + _NODE_SECONDS
            self._node = await asyncio.to_thread(self._node_reader.read)
        return self._node

    def _snapshot(self, reading: NodeReading) -> ClusterSnapshot:
        scan, now = self._scan_runs(), time.time()
        for state in scan.runs:
            if state.status is None:  # it was set aside, or removed by hand: a living supervisor writes it again
                client.wake(state.folder)
        run_views = self._views.views(scan.runs, reading.node.name, now)
        pods = {pod.uid: pod for pod in reading.foreign_pods}
        pods.update((pod.uid, pod) for views_of_run in run_views for pod in views_of_run.pods)
        runs = {views_of_run.run.uid: views_of_run.run for views_of_run in run_views}
        node = self.reservations.applied_to(reading.node)
        problems = (*scan.problems, *filter(None, (reading.problem,)))
        return ClusterSnapshot(
            MappingProxyType({node.name: node}),
            MappingProxyType(pods),
            MappingProxyType(runs),
            problems=problems,
        )

    def _scan_runs(self, max_age_seconds: float = 0.0) -> RunScan:
        """Scan the state folder, unless the latest scan is recent enough."""
        now = time.monotonic()
        if self._scan is None or now - self._scanned_at > max_age_seconds:
            self._scan, self._scanned_at = self._store.scan(), now
        return self._scan

    def _command_in_pod(self, pod: PodView, argv: Sequence[str]) -> tuple[str, Sequence[str], dict[str, str], str]:
        """Return path, arguments, variables and folder of a command to run in a pod."""
        state, run = self._recorded(pod.run)
        plan = next((record.plan for record in self._pods_of(state) if record.uid == pod.uid), None)
        if plan is None:
            raise NotFoundError(f"The pod {pod.name} has no process.", "Look at the pods again.")
        try:
            environ = pod_environ(run, state.folder, plan, pod.uid, clean_environ(), usable_cores())
        except OSError as error:
            raise BackendError(f"{pod.name} has no variables: {error.strerror}.") from error
        environ.pop("PYTHONUNBUFFERED")  # set for prompt logs; on a terminal Python flushes anyway
        command = find_command(argv[0], environ["PATH"], run.cwd)
        if command is None:
            raise BackendError(f"{argv[0]} is not found in {pod.name}.", "Write its path.")
        return command, argv, environ, run.cwd

    def _recorded(self, run: str) -> tuple[RunState, RunRecord]:
        state = self._store.named(run) if run else None
        if state is None:
            raise NotFoundError(f"There is no run {run}.", "See `l2rtui runs`.")
        if state.record is None:
            hint = f"`l2rtui destroy {run}` removes what is left."
            raise BackendError(f"The record of {run} cannot be read.", hint)
        return state, state.record

    @staticmethod
    def _refuse_stopping(state: RunState) -> None:
        if state.is_stopping:
            raise RefusedError(f"The run {state.folder.name} is being destroyed.", "Wait for its end.")

    def _request_stop(self, folder: RunFolder, uids: Sequence[str], grace: float | None) -> list[Path]:
        requests = [folder.requests / f"{uid}.json" for uid in uids]
        try:
            for path in requests:
                state_files.write_atomic(path, StopRequest(grace), sync=True)
        except OSError as error:
            raise client.unwritable_error(self._root, error) from error
        return requests

    async def _wait_for_answers(self, folder: RunFolder, requests: Sequence[Path]) -> None:
        """Wait until the supervisor has removed the requests, which it does after its status shows them."""
        until = time.monotonic() + _ANSWER_SECONDS
        while any(path.exists() for path in requests):
            if time.monotonic() > until:
                hint = "It will act when it wakes; end it with `kill -9`, and the next command starts another."
                raise BackendError(f"The supervisor of {folder.name} does not answer.", hint)
            await asyncio.sleep(client.POLL_SECONDS)

    def _is_over(self, pod: PodView) -> bool:
        """Return True if no pod of this name will write again."""
        runs = self._scan_runs(_SHARED_SECONDS).runs
        state = next((state for state in runs if state.folder.name == pod.run), None)
        if state is None:
            return True
        records = [record for record in self._pods_of(state) if record.plan.name == pod.name]
        if records:
            return all(record.phase.is_over and record.proc is None for record in records)
        return state.record is None or all(desired.plan.name != pod.name for desired in state.record.pods)

    @staticmethod
    def _pods_of(state: RunState) -> list[PodRecord]:
        return state.status.pods if state.status else []


MAX_OUTPUT_BYTES: Final = 16 << 20
"""Limit of each stream of a captured command; the excess is read and dropped, so that the command never blocks."""
_BLOCK: Final = 1 << 16


async def attached(command: str, argv: Sequence[str], environ: dict[str, str], cwd: str) -> int:
    """Run a command on our terminal and wait; meanwhile only the command receives Ctrl-C."""
    is_main = threading.current_thread() is threading.main_thread()
    # A handler, not SIG_IGN: an ignored signal would stay ignored in the command.
    before = signal.signal(signal.SIGINT, lambda *_: None) if is_main else None
    try:
        process = await _start(command, argv, environ, cwd)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            # Not the group: it is on our terminal and in our own process group.
            process.kill()
            await process.wait()
            raise
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    return shell_exit_code(code)


async def captured(command: str, argv: Sequence[str], environ: dict[str, str], cwd: str) -> CommandOutput:
    """Run a command without input, in its own session, and wait for its end; cancelling kills it."""
    pipe = asyncio.subprocess.PIPE
    streams = {"stdin": asyncio.subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
    process = await _start(command, argv, environ, cwd, start_new_session=True, **streams)
    # Both pipes are read concurrently: a command blocks when one of them is full.
    try:
        out, err, code = await asyncio.gather(_read(process.stdout), _read(process.stderr), process.wait())
    except asyncio.CancelledError:
        # The whole session: if only a shell were killed, its children would keep the pipes open.
        signal_process_group(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    return CommandOutput(shell_exit_code(code), out, err)


async def _start(
    command: str, argv: Sequence[str], environ: dict[str, str], cwd: str, **options: Any
) -> asyncio.subprocess.Process:
    folder = cwd if os.access(cwd, os.X_OK) else None
    return await asyncio.create_subprocess_exec(*argv, executable=command, env=environ, cwd=folder, **options)


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    output = bytearray()
    while stream is not None and (block := await stream.read(_BLOCK)):
        output += block[: max(0, MAX_OUTPUT_BYTES - len(output))]
    return bytes(output)
