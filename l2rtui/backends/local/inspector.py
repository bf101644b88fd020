"""Descriptions, events and port forwarding of local runs: from state files, journals and this machine's sockets."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import psutil

from l2rtui.backends.common.formatting import fields, variables_text, when, with_events
from l2rtui.backends.common.port_listener import carry_to, listen_and_carry
from l2rtui.backends.local.environment import LOOPBACK, pod_command
from l2rtui.backends.local.paths import StateFolder
from l2rtui.backends.local.run_store import RunState, RunStore
from l2rtui.backends.local.state_files import PodRecord, RunRecord
from l2rtui.backends.local.supervision.log_file import EventRecord, log_path, read_events
from l2rtui.domain.node import Node
from l2rtui.domain.preflight import limits_text
from l2rtui.domain.quantity import format_bytes
from l2rtui.domain.secret import redact
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.status import KubeEvent, exit_text
from l2rtui.errors import BackendError, NotFoundError

if TYPE_CHECKING:
    from l2rtui.domain.plan import PodPlan

MAX_EVENTS: Final = 300


class LocalInspector:
    """Inspector over the state folder; see ``backends.base.Inspector``."""

    def __init__(self, root: StateFolder, store: RunStore) -> None:
        self._root = root
        self._store = store

    async def describe(self, target: PodView | RunView | Node) -> tuple[str, ...]:
        """Return everything that is known about one object, its events last. Raises NotFoundError if it is gone."""
        match target:
            case PodView():
                lines = self._pod(target)
            case RunView():
                lines = self._run(self._state(target))
            case _:
                lines = self._node(target)
        return with_events(lines, await self.events(target))

    async def events(self, target: PodView | RunView | Node | None = None) -> tuple[KubeEvent, ...]:
        """Return the newest events of existing runs; a pod's events include predecessors of the same name."""
        runs = [state.folder for state in self._store.scan().runs]
        name = target.run if isinstance(target, PodView) else target.name if isinstance(target, RunView) else None
        chosen = [folder for folder in runs if name in (None, folder.name)]
        pod = target.name if isinstance(target, PodView) else None

        def read() -> list[KubeEvent]:
            # A journal is small, but there may be hundreds of runs.
            return [
                _event(event, folder.name)
                for folder in chosen
                for event in read_events(folder.events)
                if pod in (None, event.pod)
            ]

        return tuple(sorted(await asyncio.to_thread(read), key=lambda event: event.time)[-MAX_EVENTS:])

    async def forward(self, pod: PodView, local: int, remote: int) -> AsyncGenerator[str, None]:
        """Forward connections to a port of a pod's process, which listens on this machine.

        A port that the spec names is mapped to the port that was chosen for this pod at launch. If both ports are
        the same, no forwarding is needed: the generator says so and ends.
        """
        record = self._state(pod).record
        spec = next((spec for spec in record.spec.sets if spec.name == pod.set_name), None) if record else None
        port = record.ports.get(pod.name, remote) if record and spec and spec.port == remote else remote
        if local == port:
            here = f"{LOOPBACK}:{port}"
            yield f"{pod.name} runs on this machine: what listens on its port {port} is at {here} already"
            return
        async for sentence in listen_and_carry(pod.name, local, port, carry_to(lambda: self._address(pod), port)):
            yield sentence

    # --- inside ------------------------------------------------------------------------------------------------
    async def _address(self, pod: PodView) -> str:
        record = _record_of(self._state(pod), pod)
        if record is None or record.proc is None:
            raise BackendError("it has no process while it does not run.")
        return LOOPBACK

    def _state(self, target: PodView | RunView) -> RunState:
        name = target.run if isinstance(target, PodView) else target.name
        state = self._store.named(name) if name else None
        is_other = isinstance(target, RunView) and state is not None and state.uid != target.uid
        if state is None or is_other:
            what = "pod" if isinstance(target, PodView) else "run"
            raise NotFoundError(f"The {what} {target.name} is gone.", f"Look at the {what}s again.")
        return state

    def _pod(self, view: PodView) -> list[str]:
        if not view.run:
            return _foreign(view)
        state = self._state(view)
        record = _record_of(state, view)
        desired = state.record.pods if state.record else ()
        plan = record.plan if record else next((row.plan for row in desired if row.uid == view.uid), None)
        if plan is None:
            raise NotFoundError(f"The pod {view.name} is gone.", "Look at the pods again.")
        lines = [f"pod {view.name}", *fields(("run", view.run), ("uid", view.uid))]
        lines += _process(view, record)
        lines += _placement(state, view, plan)
        if record is not None and record.serial >= 0:
            folder = state.folder.log_dir(view.name)
            lines += fields(("log", str(log_path(folder, record.serial))))
        return [*lines, *variables_text(plan.env)]

    def _run(self, state: RunState) -> list[str]:
        record, status, folder = state.record, state.status, state.folder
        lines = [f"run {folder.name}", *fields(("folder", str(folder.path)))]
        if status is not None:
            life = "has ended" if status.is_ended else "runs" if state.is_supervised else "is gone"
            supervisor = f"pid {status.supervisor.pid}, {life}"
            lines += fields(("supervisor", supervisor), ("problem", status.problem))
        if record is None:
            return [*lines, "  its record cannot be read"]
        spec = record.spec
        lines += fields(
            ("uid", record.uid),
            ("created", when(record.created)),
            ("owner", record.owner),
            ("kind", spec.kind),
            ("seed", str(spec.seed)),
            ("sets", ", ".join(f"{row.name} ({row.role}) x {row.replicas}" for row in spec.sets)),
            ("limits", limits_text(spec)),
            ("alerts", "; ".join(f"{', '.join(rule.when)}: {rule.target}" for rule in spec.alerts)),
            ("started in", record.cwd),
            ("own code", spec.workdir.size if spec.workdir is not None else ""),
            ("files", record.volume or str(folder.data)),
            ("endpoint", record.endpoint),
            ("sockets", record.socket_dir),
            ("ports", ", ".join(f"{name} {port}" for name, port in record.ports.items())),
        )
        pods = status.pods if status else []
        return [*lines, *(f"Pod {pod.plan.name}: {pod.phase}" for pod in pods)]

    def _node(self, node: Node) -> list[str]:
        lines = [f"node {node.name}"]
        lines += fields(
            ("cores", f"{node.cpu_cores:g}"),
            ("memory", format_bytes(node.memory_bytes)),
            ("gpus", str(sum(not gpu.is_cpu for gpu in node.gpus))),
            ("problem", node.message),
            ("state", str(self._root.path)),
            ("runs", str(len(self._store.scan().runs))),
        )
        return lines


def _record_of(state: RunState, view: PodView) -> PodRecord | None:
    pods = state.status.pods if state.status else []
    return next((pod for pod in pods if pod.uid == view.uid), None)


def _process(view: PodView, record: PodRecord | None) -> Iterable[str]:
    """Return lines about the process of a pod and how the previous one ended."""
    state = " ".join(filter(None, (str(view.phase), view.reason)))
    code = record.exit_code if record is not None else None
    return fields(
        ("state", f"{state}: {view.message}" if view.message else state),
        ("created", when(view.created)),
        ("started", when(view.started) if view.started else ""),
        ("pid", str(view.pid or "")),
        ("restarts", str(view.restarts)),
        ("last exit", "" if code is None else exit_text(code)),
    )


def _placement(state: RunState, view: PodView, plan: PodPlan) -> Iterator[str]:
    """Yield lines about the settings with which a pod was launched."""
    spec, run = plan.set_spec, state.record
    # argv comes from the spec, and users put tokens there in spite of all advice.
    command = pod_command(state.folder, run.spec, spec) if run else spec.command
    yield from fields(
        ("command", redact(shlex.join(command))),
        ("working dir", run.cwd if run else ""),
        ("files", (run.volume or str(state.folder.data)) if run else ""),
        ("slots", ", ".join(str(slot) for slot in view.slots)),
        ("gpu", plan.gpu.label if plan.gpu is not None and not plan.gpu.is_cpu else ""),
        ("port", _port(run, plan)),
        ("restart", str(spec.restart)),
        ("grace", f"{spec.grace_seconds:g} s"),
    )


def _port(run: RunRecord | None, plan: PodPlan) -> str:
    port = run.ports.get(plan.name) if run else None
    return "" if port is None else f"{LOOPBACK}:{port} stands for {plan.set_spec.port}"


def _foreign(view: PodView) -> list[str]:
    """Return lines about a process that l2rtui did not launch."""
    lines = [f"process {view.name}", *fields(("owner", view.owner), ("pid", str(view.pid or "")))]
    try:
        process = psutil.Process(view.pid or 0)
        lines += fields(("command", redact(shlex.join(process.cmdline()))), ("folder", process.cwd()))
    except psutil.NoSuchProcess:
        raise NotFoundError(f"{view.name} has ended.", "Look at the pods again.") from None
    except psutil.Error:
        pass  # another user's process: only its owner and pid are visible
    lines += fields(("started", when(view.created)), ("devices", ", ".join(str(use.gpu) for use in view.devices)))
    return lines


def _event(event: EventRecord, run: str) -> KubeEvent:
    name = f"Pod {event.pod}" if event.pod else f"Run {run}"
    return KubeEvent(event.time, "Warning" if event.is_warning else "Normal", event.reason, name, event.message)
