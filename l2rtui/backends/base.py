"""What a place to run things must offer: one protocol for this machine, Docker and Kubernetes.

Every method may raise BackendError (with a sentence); NotFoundError where it takes a name that is not there.
Nothing here blocks an event loop. Streams are generators: close them (``contextlib.aclosing``) to let go of what
they hold. Values go in and out; no client library's types cross this border.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from l2rtui.domain.change import Change
from l2rtui.domain.node import Node
from l2rtui.domain.plan import LaunchPlan, ScalePlan, Step
from l2rtui.domain.preflight import Finding
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import RunSpec


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this backend can do, so that screens grey out the rest instead of failing later."""

    has_contexts: bool = False
    has_namespaces: bool = False
    has_events: bool = False


@dataclass(frozen=True, slots=True)
class StepDone:
    """One step of a launch was carried out (``error`` empty) or failed (``error`` says how)."""

    step: Step
    error: str = ""


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that should not be there any more."""

    kind: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class DestroyProgress:
    """How many objects of each kind are still there: ``(("Pod", 3), ("Run", 1))``."""

    left: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """The end of a destroy, counted on the machine or server itself and not in our own books.

    Attributes:
        objects: How many objects the run had. left: those that are still there; empty is the proof.
        kept: Where results were kept on purpose (checkpoints, metrics); empty when there are none.
    """

    run: str
    objects: int
    left: tuple[Leftover, ...]
    seconds: float
    kept: str = ""

    @property
    def sentence(self) -> str:
        """The line that people read."""
        if self.left:
            names = ", ".join(f"{one.kind} {one.name} ({one.reason})" for one in self.left)
            return f"{len(self.left)} left of {self.run}: {names}"
        return f"nothing left of {self.run} ({self.objects} objects, 0 leaks, {self.seconds:.1f} s)"


@dataclass(frozen=True, slots=True)
class Leak:
    """An object of a run that no longer exists, or that nobody looks after."""

    run: str
    kind: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class KubeEvent:
    """What a cluster says has happened to an object.

    Attributes:
        time: When it happened last, seconds since the epoch. level: Normal or Warning.
        object: ``Pod racing-sac-w-x7k2p``. count: how often it happened.
    """

    time: float
    level: str
    reason: str
    object: str
    message: str
    namespace: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which lines of one pod's log are wanted.

    Attributes:
        follow: Go on with new lines, across restarts, until the pod is gone for good.
        tail: Only the last lines; None means all that are kept.
        since: Only lines later than this, seconds since the epoch.
        previous: The process before the present one.
        seam: With ``follow``: give one LogLine with ``is_seam`` between what was there and what comes, so that a
            reader of many pods can sort the first and needs no second stream for the other.
    """

    follow: bool = False
    tail: int | None = None
    since: float | None = None
    previous: bool = False
    seam: bool = False


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line as it was written: raw text, to be sanitised before it is shown.

    Attributes:
        time: When it was written, seconds since the epoch.
        is_mark: The backend wrote it, not the process: a restart with its exit code and reason.
        container: Which container of the pod; empty where it has one alone.
        is_seam: No line at all: what was kept ends here, what follows is new; see ``LogQuery.seam``.
    """

    time: float
    pod: str
    text: str
    is_mark: bool = False
    container: str = ""
    is_seam: bool = False


@runtime_checkable
class Inspector(Protocol):
    """What a backend offers besides Backend where its pods are objects with a history and ports of their own."""

    async def describe(self, target: PodView | RunView | Node) -> tuple[str, ...]:
        """All that is known of one object, line by line, its events last."""
        ...

    async def events(self, target: PodView | RunView | Node | None = None) -> tuple[KubeEvent, ...]:
        """What has happened lately to an object, or to all that can be seen; newest last, at most some hundred."""
        ...

    def forward(self, pod: PodView, local: int, remote: int) -> AsyncGenerator[str, None]:
        """Carry connections to a port of this machine to a port of a pod, until the generator is closed.

        Args:
            local: On the loopback address alone; 0 lets the system choose.

        Yields:
            One sentence when it listens, then one for each connection that could not be carried.
        """
        ...


@dataclass(frozen=True, slots=True)
class Captured:
    """What a command beside a pod's process said, at most some megabytes of each, and how it ended."""

    code: int
    out: bytes
    err: bytes


@runtime_checkable
class Capturing(Protocol):
    """What a backend offers besides Backend where a command's output can be had without lending the terminal."""

    async def capture(self, pod: PodView, argv: Sequence[str]) -> Captured:
        """Run a command beside the pod's process, without input; cancelled, it is ended where that is possible."""
        ...


@runtime_checkable
class Permitting(Protocol):
    """What a backend offers besides Backend where somebody else decides what one may do."""

    async def denied(self) -> Mapping[str, str]:
        """Why deeds are not possible, by name: ``launch``, ``kill``, ``scale``, ``destroy``, ``exec``, ``forward``.

        Each reason names the missing verb; deeds that are possible are left out.
        """
        ...


@runtime_checkable
class Placed(Protocol):
    """What a backend offers besides Backend where there are several places of its kind."""

    @property
    def place(self) -> str:
        """Which one this is, for people: its context and namespaces; empty until it is connected."""
        ...


@runtime_checkable
class Renderer(Protocol):
    """What a backend offers besides Backend where a launch makes objects that can be printed beforehand."""

    async def planned(self, plan: LaunchPlan) -> LaunchPlan:
        """The plan with every object that launch() will make as a step of its own."""
        ...

    async def manifests(self, plan: LaunchPlan) -> Sequence[dict[str, Any]]:
        """The objects of a plan as they will be sent, in that order; secrets are left out."""
        ...

    async def differences(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Lines of a unified diff from what is there to what the plan wants; empty when there is none."""
        ...


class Backend(Protocol):
    """A place where runs live."""

    name: str
    capabilities: Capabilities

    async def snapshot(self) -> ClusterSnapshot:
        """Look once at everything."""
        ...

    def watch(self) -> AsyncGenerator[tuple[Change, ...], None]:
        """Give changes as they happen, for ever; the first batch builds everything from EMPTY_SNAPSHOT."""
        ...

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:
        """Find out what only this backend can know about a plan: commands, folders, rights. Creates nothing."""
        ...

    def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone, None]:
        """Carry out a plan, one StepDone for each of ``plan.steps()``.

        Slots are claimed atomically: of two launches on the same slot one gets RefusedError. When it raises or is
        cancelled, what was created stays visible in the snapshot for destroy().
        """
        ...

    async def spec(self, run: str) -> RunSpec:
        """The spec with which a run was launched, with its present replicas."""
        ...

    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:
        """Start and stop replicas of a set; returns when the wish is recorded, the watch shows it come true."""
        ...

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
        """Stop these pods: SIGTERM, grace, SIGKILL. Their set replaces them; grace None means the set's own."""
        ...

    def destroy(
        self, run: RunView, *, grace_seconds: float | None = None, purge: bool = False, force: bool = False
    ) -> AsyncGenerator[DestroyProgress | Receipt, None]:
        """Remove a run and all it owns; the last item is the Receipt.

        Args:
            purge: Also delete results (checkpoints, metrics), which are kept otherwise.
            force: Take pods that outstay their grace out of the books, whatever their processes do.
        """
        ...

    async def leaks(self) -> tuple[Leak, ...]:
        """Look for what runs that are gone have left behind."""
        ...

    def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine, None]:
        """Lines of one pod in the order in which they were written."""
        ...

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:
        """Run a command beside the pod's process, on the caller's own terminal; its exit code."""
        ...

    async def doctor(self) -> tuple[Finding, ...]:
        """What works here, what does not, and what to do about it."""
        ...

    async def close(self) -> None:
        """Let go of connections and tasks; runs go on."""
        ...
