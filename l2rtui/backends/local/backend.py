"""The Backend over processes of this machine: joins state files, supervisors, logs and the machine's devices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from types import MappingProxyType

from l2rtui.backends.base import Capabilities, Captured, DestroyProgress, Leak, LogLine, LogQuery, Receipt, StepDone
from l2rtui.backends.claiming import refuse_taken_slots
from l2rtui.backends.local import checks, control, files, foreground, launch, processes, views
from l2rtui.backends.local import destroy as destruction
from l2rtui.backends.local.capacity import node_name, usable_cores
from l2rtui.backends.local.environment import clean_environ, find_command, pod_environ
from l2rtui.backends.local.layout import Root, RunFolder
from l2rtui.backends.local.logs import read_logs
from l2rtui.backends.local.machine import Machine, MachineView
from l2rtui.backends.local.records import PodRecord, RunRecord, StopRequest
from l2rtui.backends.local.secrets import LocalSecrets
from l2rtui.backends.local.store import Look, RunState, Store
from l2rtui.config import Settings, state_dir
from l2rtui.domain.change import Change, difference
from l2rtui.domain.plan import LaunchPlan, ScalePlan
from l2rtui.domain.preflight import Finding
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import BackendError, NotFoundError, RefusedError

_WATCH_SECONDS = 0.2
_MACHINE_SECONDS = 5.0
_SHARED_SECONDS = 0.3
_ANSWER_SECONDS = 5.0


class LocalBackend:
    """This machine as the one node; see ``backends.base.Backend`` for what each method promises.

    Args:
        state: Folder for the state of this backend; None stands for ``local`` in the user's state folder.
        nvml: What stands for the module ``pynvml``; None imports it when it is first needed.
    """

    name = "local"
    capabilities = Capabilities()

    def __init__(self, settings: Settings, *, state: Path | None = None, nvml: object = None) -> None:
        self._settings = settings
        self._root = Root((state or state_dir() / "local").absolute())
        self._store = Store(self._root, processes.boot_id())
        self._machine = Machine(settings, self._root.runs, nvml)
        self._rows = views.RowCache()
        self._view: MachineView | None = None
        self._view_until = 0.0
        self._runs: Look | None = None
        self._runs_at = 0.0

    async def snapshot(self) -> ClusterSnapshot:
        """Look once at everything."""
        return self._look(await self._look_at_machine())

    async def watch(self) -> AsyncGenerator[tuple[Change, ...]]:
        """Give changes as they happen, looked for five times a second; the node is looked at every five seconds."""
        seen = EMPTY_SNAPSHOT
        is_first = True
        while True:
            newest = self._look(await self._look_at_machine())
            changes = difference(seen, newest)
            if changes or is_first:
                seen, is_first = newest, False
                yield changes
            await asyncio.sleep(_WATCH_SECONDS)

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:
        """Find out whether commands exist and files can be written."""
        return await asyncio.to_thread(checks.check_plan, self._root, plan)

    async def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone]:
        """Carry out a plan: claim every slot at once, then start a supervisor for each run."""
        if plan.conflicts:
            raise RefusedError(f"{'; '.join(plan.conflicts)}.", "Plan again.")
        async with control.locked(self._root):
            await launch.claim(self._root, self._settings, plan, await self.snapshot())
        async for done in launch.start(self._root, plan):
            yield done

    async def spec(self, run: str) -> RunSpec:
        """The spec of a run with its present replicas."""
        return self._recorded(run)[1].spec

    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:
        """Start and stop replicas; returns when the wish is written and a supervisor knows of it."""
        if plan.conflicts:
            raise RefusedError(f"{'; '.join(plan.conflicts)}.", "Plan again.")
        async with control.locked(self._root):
            state, record = self._recorded(plan.run)
            self._refuse_stopping(state)
            refuse_taken_slots(plan.added, await self.snapshot())
            if self._grace(grace_seconds) is not None and state.status is not None:
                pods = [pod for pod in state.status.pods if pod.plan.name in plan.removed]
                self._ask_to_stop(state.folder, [pod.uid for pod in pods], self._grace(grace_seconds))
            await launch.scale(self._root, record, plan)
        await self.adopt(plan.run)

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
        """Stop these pods; returns when their supervisors have taken it up. Their sets replace them."""
        by_run: dict[str, list[PodView]] = {}
        for pod in pods:
            if not pod.run:
                owner = f" of {pod.owner}" if pod.owner else ""
                raise RefusedError(f"{pod.name} is a process{owner} that l2rtui did not launch.")
            by_run.setdefault(pod.run, []).append(pod)
        for run, chosen in by_run.items():
            state, _ = self._recorded(run)
            self._refuse_stopping(state)
            known = {pod.uid for pod in views.pod_views(state, node_name(), time.time())}
            for pod in chosen:
                if pod.uid not in known:
                    raise NotFoundError(f"The pod {pod.name} is gone.", "Look at the pods again.")
        for run, chosen in by_run.items():
            folder = self._root.run(run)
            asked = self._ask_to_stop(folder, [pod.uid for pod in chosen], self._grace(grace_seconds))
            await self.adopt(run)
            await self._answered(folder, asked)

    async def destroy(
        self,
        run: RunView,
        *,
        grace_seconds: float | None = None,
        purge: bool = False,
        force: bool = False,  # noqa: ARG002  (SIGKILL follows the grace here anyway)
    ) -> AsyncGenerator[DestroyProgress | Receipt]:
        """Remove a run and prove it; the last item is the Receipt."""
        grace = self._grace(grace_seconds)
        async for item in destruction.destroy(self._root, self._store, run, grace, purge=purge):
            yield item

    async def adopt(self, run: str) -> None:
        """See to it that a run has a living supervisor, and that it reads its files now.

        Raises:
            NotFoundError: there is no such run.
            BackendError: its record cannot be read, or no supervisor can be started.
        """
        _, record = self._recorded(run)
        folder = self._root.run(run)
        if not await control.settled(control.wake, folder):
            await control.settled(control.start_supervisor, folder, record.uid)

    async def leaks(self) -> tuple[Leak, ...]:
        """Look for what runs that are gone have left behind."""
        return await asyncio.to_thread(checks.find_leaks, self._root, self._store.look())

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine]:
        """Lines of a pod and of those of its name before it, with a mark between two processes."""
        folder = self._root.run(pod.run)
        if not pod.run or not folder.path.exists():
            raise NotFoundError(f"There is no log of {pod.name} here.", "See `l2rtui pods`.")
        is_over = lambda: self._is_over(pod)  # noqa: E731  (a closure of one call)
        async for line in read_logs(folder.log_dir(pod.name), pod.name, query, is_over):
            yield line

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:
        """Run a command with the pod's variables and folder on the caller's terminal; its exit code.

        It carries the pod's mark: it ends with the pod, as in a container.
        """
        return await foreground.attached(*self._beside(pod, argv))

    async def capture(self, pod: PodView, argv: Sequence[str]) -> Captured:
        """Run a command as exec() does, and give what it says."""
        return await foreground.captured(*self._beside(pod, argv))

    async def doctor(self) -> tuple[Finding, ...]:
        """What works on this machine."""
        machine = await self._look_at_machine()
        return await asyncio.to_thread(checks.diagnose, self._root, machine, self._store.look())

    def secrets(self, owner: str) -> LocalSecrets:
        """What l2rtui keeps in the state folder."""
        return LocalSecrets(self._root.secrets, owner)

    async def close(self) -> None:
        """Let go of the driver; runs go on."""
        await asyncio.to_thread(self._machine.close)

    # --- inside ------------------------------------------------------------------------------------------------
    async def _look_at_machine(self) -> MachineView:
        now = time.monotonic()
        if self._view is None or now >= self._view_until:
            self._view_until = now + _MACHINE_SECONDS
            self._view = await asyncio.to_thread(self._machine.look)
        return self._view

    def _look(self, machine: MachineView) -> ClusterSnapshot:
        look, now = self._look_at_runs(), time.time()
        for state in look.runs:
            if state.status is None:  # it was set aside, or removed by hand: a living supervisor writes it again
                control.wake(state.folder)
        rows = self._rows.rows(look.runs, machine.node.name, now)
        pods = {pod.uid: pod for pod in machine.strangers}
        pods.update((pod.uid, pod) for one in rows for pod in one.pods)
        runs = {one.run.uid: one.run for one in rows}
        problems = (*look.problems, *filter(None, (machine.problem,)))
        return ClusterSnapshot(
            MappingProxyType({machine.node.name: machine.node}),
            MappingProxyType(pods),
            MappingProxyType(runs),
            problems=problems,
        )

    def _look_at_runs(self, age_seconds: float = 0.0) -> Look:
        """Read the state folder, unless what was read last is no older than this."""
        now = time.monotonic()
        if self._runs is None or now - self._runs_at > age_seconds:
            self._runs, self._runs_at = self._store.look(), now
        return self._runs

    def _grace(self, grace_seconds: float | None) -> float | None:
        return self._settings.grace_seconds if grace_seconds is None else grace_seconds

    def _beside(self, pod: PodView, argv: Sequence[str]) -> tuple[str, Sequence[str], dict[str, str], str]:
        """Program, words, variables and folder of a command that is to run beside a pod's process."""
        state, record = self._recorded(pod.run)
        plan = next((one.plan for one in self._pods_of(state) if one.uid == pod.uid), None)
        if plan is None:
            raise NotFoundError(f"The pod {pod.name} has no process.", "Look at the pods again.")
        try:
            environ = pod_environ(record, state.folder, plan, pod.uid, clean_environ(), usable_cores())
        except OSError as error:
            raise BackendError(f"{pod.name} has no variables: {error.strerror}.") from error
        environ.pop("PYTHONUNBUFFERED")  # for logs; an interactive command knows better
        command = find_command(argv[0], environ["PATH"], record.cwd)
        if command is None:
            raise BackendError(f"{argv[0]} is not found beside {pod.name}.", "Write its path.")
        return command, argv, environ, record.cwd

    def _recorded(self, run: str) -> tuple[RunState, RunRecord]:
        state = self._store.named(run) if run else None
        if state is None:
            raise NotFoundError(f"There is no run {run}.", "See `l2rtui runs`.")
        if state.record is None:
            raise BackendError(
                f"The record of {run} cannot be read.", f"`l2rtui destroy {run}` removes what is left."
            )
        return state, state.record

    @staticmethod
    def _refuse_stopping(state: RunState) -> None:
        if state.is_stopping:
            raise RefusedError(f"The run {state.folder.name} is being destroyed.", "Wait for its end.")

    def _ask_to_stop(self, folder: RunFolder, uids: Sequence[str], grace: float | None) -> list[Path]:
        asked = [folder.requests / f"{uid}.json" for uid in uids]
        try:
            for path in asked:
                files.write_atomic(path, StopRequest(grace), sync=True)
        except OSError as error:
            raise control.unwritable(self._root, error) from error
        return asked

    async def _answered(self, folder: RunFolder, asked: Sequence[Path]) -> None:
        until = time.monotonic() + _ANSWER_SECONDS
        while any(path.exists() for path in asked):
            if time.monotonic() > until:
                raise BackendError(
                    f"The supervisor of {folder.name} does not answer.",
                    "It will act when it wakes; end it with `kill -9`, and the next command starts another.",
                )
            await asyncio.sleep(control.POLL_SECONDS)

    def _is_over(self, pod: PodView) -> bool:
        """Whether no pod of this name will write again."""
        runs = self._look_at_runs(_SHARED_SECONDS).runs  # every follower asks, and they ask together
        state = next((one for one in runs if one.folder.name == pod.run), None)
        if state is None:
            return True
        found = [one for one in self._pods_of(state) if one.plan.name == pod.name]
        if found:
            return all(one.phase.is_over and one.proc is None for one in found)
        return state.record is None or all(wish.plan.name != pod.name for wish in state.record.pods)

    @staticmethod
    def _pods_of(state: RunState) -> list[PodRecord]:
        return state.status.pods if state.status else []
