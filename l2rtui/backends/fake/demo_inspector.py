"""Descriptions and events of the in-memory cluster: events are the changes of its snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from typing import Final

from l2rtui.backends.common.formatting import fields, when, with_events
from l2rtui.domain.change import Change, PodChanged, PodGone, RunChanged, RunGone
from l2rtui.domain.node import Node
from l2rtui.domain.quantity import format_bytes
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.status import KubeEvent, exit_text
from l2rtui.errors import BackendError, NotFoundError

MAX_EVENTS: Final = 300


class DemoInspector:
    """Inspector of the demo cluster; see ``backends.base.Inspector``.

    Args:
        snapshot: Returns the current state of the cluster.
    """

    def __init__(self, snapshot: Callable[[], Awaitable[ClusterSnapshot]]) -> None:
        self._snapshot = snapshot
        self._events: deque[tuple[str, KubeEvent]] = deque(maxlen=MAX_EVENTS)

    def note(self, before: ClusterSnapshot, changes: Iterable[Change], now: float) -> None:
        """Record the changes since the snapshot ``before`` as events."""
        for change in changes:
            match change:
                case PodChanged(pod):
                    self._events.extend((pod.run, event) for event in _of_pod(before.pods.get(pod.uid), pod, now))
                case PodGone(uid) if (dead := before.pods.get(uid)) is not None:
                    self._events.append((dead.run, _event(now, "Died", dead.name, "")))
                case RunChanged(run) if run.uid not in before.runs:
                    self._events.append((run.name, _event(run.created or now, "Launched", run.name, "", "Run")))
                case RunGone(uid) if (gone := before.runs.get(uid)) is not None:
                    self._events.append((gone.name, _event(now, "Destroyed", gone.name, "", "Run")))
                case _:
                    pass  # nodes come and go without an event here

    async def describe(self, target: PodView | RunView | Node) -> tuple[str, ...]:
        """Return the values of one object, its events last. Raises NotFoundError for a deleted object."""
        snapshot = await self._snapshot()
        match target:
            case PodView():
                exists, lines = target.uid in snapshot.pods, _pod(target)
            case RunView():
                exists, lines = target.uid in snapshot.runs, _run(target)
            case _:
                exists, lines = target.name in snapshot.nodes, _node(target)
        if not exists:
            raise NotFoundError(f"{target.name} is gone.", "Look again.")
        return with_events(lines, await self.events(target))

    async def events(self, target: PodView | RunView | Node | None = None) -> tuple[KubeEvent, ...]:
        """Return the changes since the cluster was created, newest last."""
        snapshot = await self._snapshot()  # also advances everything that is due
        match target:
            case PodView():
                chosen = [event for _, event in self._events if event.object == f"Pod {target.name}"]
            case RunView():
                chosen = [event for run, event in self._events if run == target.name]
            case Node():
                here = {f"Pod {pod.name}" for pod in snapshot.pods.values() if pod.node == target.name}
                chosen = [event for _, event in self._events if event.object in here]
            case _:
                chosen = [event for _, event in self._events]
        return tuple(sorted(chosen, key=lambda event: event.time))

    async def forward(self, pod: PodView, local: int, remote: int) -> AsyncGenerator[str, None]:  # noqa: ARG002
        """Refuse: there are no processes that could listen."""
        sentences: tuple[str, ...] = ()
        for sentence in sentences:  # makes this a generator, as the protocol requires
            yield sentence
        raise BackendError(
            f"Port {remote} of {pod.name} leads nowhere: the demo cluster has no processes.", "Use --backend local."
        )


def _of_pod(before: PodView | None, pod: PodView, now: float) -> Iterator[KubeEvent]:
    if before is None:
        slots = ", ".join(map(str, pod.slots))
        yield _event(pod.created or now, "Claimed", pod.name, slots or "no slot")
    is_new = before is None or before.started != pod.started
    if pod.started and is_new:
        yield _event(pod.started, "Started", pod.name, "")
    restarts = before.restarts if before is not None else 0
    if pod.restarts > restarts:
        code = "" if pod.exit_code is None else exit_text(pod.exit_code)
        message = ", ".join(filter(None, (f"restart {pod.restarts}", code)))
        yield _event(pod.started or now, "Restarted", pod.name, message, is_warning=True)
    if pod.reason and (before is None or before.reason != pod.reason):
        yield _event(pod.started or now, pod.reason, pod.name, pod.message, is_warning=True)
    if pod.is_terminating and (before is None or not before.is_terminating):
        yield _event(now, "Stopping", pod.name, "")
    if pod.phase.is_over and (before is None or not before.phase.is_over):
        yield _event(now, str(pod.phase), pod.name, "" if pod.exit_code is None else exit_text(pod.exit_code))


def _event(
    time: float, reason: str, name: str, message: str, kind: str = "Pod", *, is_warning: bool = False
) -> KubeEvent:
    return KubeEvent(time, "Warning" if is_warning else "Normal", reason, f"{kind} {name}", message)


def _pod(pod: PodView) -> list[str]:
    return [
        f"pod {pod.name}",
        *fields(
            ("run", pod.run),
            ("node", pod.node),
            ("state", " ".join(filter(None, (str(pod.phase), pod.reason)))),
            ("why", pod.status.sentence if pod.reason else ""),
            ("created", when(pod.created)),
            ("started", when(pod.started) if pod.started else ""),
            ("restarts", str(pod.restarts)),
            ("slots", ", ".join(map(str, pod.slots))),
        ),
    ]


def _run(run: RunView) -> list[str]:
    sets = ", ".join(f"{view.name} ({view.role}) x {view.replicas}" for view in run.sets)
    facts = fields(
        ("owner", run.owner),
        ("kind", run.kind),
        ("seed", str(run.seed)),
        ("created", when(run.created)),
        ("sets", sets),
    )
    return [f"run {run.name}", *facts]


def _node(node: Node) -> list[str]:
    gpus = sum(not gpu.is_cpu for gpu in node.gpus)
    facts = fields(
        ("cores", f"{node.cpu_cores:g}"), ("memory", format_bytes(node.memory_bytes)), ("gpus", str(gpus))
    )
    return [f"node {node.name}", *facts]
