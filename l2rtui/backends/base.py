"""The protocol that every backend implements: this machine, Docker, Kubernetes and the in-memory demo.

Methods of ``Backend`` exist everywhere. What only some backends can do is an attribute that is the part or None
(``backend.volumes``, ``backend.inspector``), so a caller asks ``is None`` and a type checker sees that it did.

Every method may raise BackendError (with a sentence); NotFoundError where it takes a name that does not exist.
Nothing here blocks an event loop. Streams are generators: close them (``contextlib.aclosing``) to release what
they hold. Values go in and out; no client library's types cross this border.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, overload

from l2rtui.config import Settings
from l2rtui.domain.change import Change
from l2rtui.domain.event import KubeEvent
from l2rtui.domain.log import CommandOutput, LogLine, LogQuery
from l2rtui.domain.node import Node, SlotId
from l2rtui.domain.plan import LaunchPlan, PlannedPlaces, ScalePlan, StepDone
from l2rtui.domain.preflight import Finding
from l2rtui.domain.receipt import DestroyProgress, Leak, Receipt
from l2rtui.domain.secret import Secret, SecretView
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.volume import FileEntry, KeptResult, Volume
from l2rtui.domain.workload import RunSpec


# --- optional parts --------------------------------------------------------------------------------------------
class Inspector(Protocol):
    """Descriptions, events and ports of a backend whose pods are objects with a history and ports of their own."""

    async def describe(self, target: PodView | RunView | Node) -> tuple[str, ...]:
        """Return everything that is known of one object, line by line, its events last."""

    async def events(self, target: PodView | RunView | Node | None = None) -> tuple[KubeEvent, ...]:
        """Return recent events of an object, or of every visible one; newest last, at most some hundred."""

    def forward(self, pod: PodView, local: int, remote: int) -> AsyncGenerator[str, None]:
        """Carry connections to a port of this machine to a port of a pod, until the generator is closed.

        Args:
            local: On the loopback address alone; 0 lets the system choose.

        Yields:
            One sentence when it listens, then one for each connection that could not be carried.
        """


class Renderer(Protocol):
    """Objects of a launch before they are sent, where a launch makes objects that can be printed."""

    async def planned(self, plan: LaunchPlan) -> LaunchPlan:
        """Return the plan with every object that launch() will make as a step of its own."""

    async def manifests(self, plan: LaunchPlan) -> Sequence[dict[str, Any]]:
        """Return the objects of a plan as they will be sent, in that order; secrets are left out."""

    async def differences(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return a unified diff, as lines, from the present objects to the planned ones; empty when equal."""

    async def places(self, run: str) -> PlannedPlaces:
        """Return the places that the launch of a run has chosen."""


class AttachedProcess(Protocol):
    """Standard streams of a pod's own process, for as long as they are attached."""

    has_terminal: bool
    """The process runs on a terminal of its own, so that its output is one stream with escape sequences."""

    def output(self) -> AsyncGenerator[tuple[bool, bytes], None]:
        """Yield its output until its end; True marks standard error."""

    async def send(self, data: bytes) -> None:
        """Give it input."""

    async def end_input(self) -> None:
        """Close its input, where the backend can."""

    async def resize(self, columns: int, lines: int) -> None:
        """Give its terminal a size."""


class VolumeFiles(Protocol):
    """The files of one open volume. Paths are relative to its root."""

    async def entries(self, path: str = "") -> tuple[FileEntry, ...]:
        """List what lies directly under a path, folders first; a file gives itself."""

    async def sizes(self, path: str = "") -> tuple[FileEntry, ...]:
        """List everything but folders under a path, at any depth; what is no plain file has another kind."""

    async def get(self, path: str, target: Path, progress: Callable[[int], None]) -> int:
        """Copy a file, or all under a folder, to this machine; the number of files. Existing ones are skipped."""

    async def put(self, source: Path, path: str, progress: Callable[[int], None]) -> int:
        """Copy a file, or all under a folder, to the volume; the number of files. Existing ones are skipped."""


class ResultStore(Protocol):
    """Results that destroyed runs have left."""

    async def list(self) -> tuple[KeptResult, ...]:
        """List what is kept, the newest first, with the folders of runs that are there."""

    async def remove(self, ids: Sequence[str]) -> int:
        """Delete kept results by their ids; return their bytes."""


class VolumeStore(Protocol):
    """Storage that outlives pods; what is made is labelled with the user's name."""

    async def list(self) -> tuple[Volume, ...]:
        """List every volume, with the pods that mount it."""

    async def create(
        self, name: str, size: str, *, storage_class: str = "", modes: tuple[str, ...] = ("RWO",)
    ) -> Volume:
        """Create a volume; ``size`` is a quantity such as 50Gi, ``modes`` are RWO, RWX, ROX or RWOP."""

    async def delete(self, name: str) -> None:
        """Delete a volume that no pod mounts."""

    def files(self, name: str, image: str = "") -> AbstractAsyncContextManager[VolumeFiles]:
        """Open the files of a volume; ``image`` is for the pod that carries them, empty means the settings'."""


class SecretStore(Protocol):
    """Secrets for runs; values go in and never come out here."""

    @property
    def hidden(self) -> str:
        """Reason why the latest list may lack secrets, as a sentence; empty for a complete list."""

    async def list(self) -> tuple[SecretView, ...]:
        """List the secrets that l2rtui made, by name."""

    async def keep(self, secret: Secret, *, replace: bool = False) -> None:
        """Store a secret.

        Raises:
            RefusedError: the name is taken (and ``replace`` is False), or the secret is not l2rtui's.
        """

    async def delete(self, name: str) -> None:
        """Delete a secret.

        Raises:
            NotFoundError: the name does not exist. RefusedError: the secret is not l2rtui's.
        """


class Reservations(Protocol):
    """Slots that people have set aside for their own runs for a time; ``Node.reservations`` shows them."""

    async def reserve(self, slots: Sequence[SlotId], until: float, note: str = "") -> None:
        """Reserve slots for the user until a time (seconds since the epoch), all or none.

        Earlier reservations of the user's own on these slots are replaced.

        Raises:
            RefusedError: somebody else has reserved or uses one of them.
        """

    async def release(self, slots: Sequence[SlotId]) -> None:
        """End the reservations of slots, whoever has made them."""


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Place and identity of one run: a name alone may be taken by another launch."""

    run: str
    run_id: str
    namespace: str = ""


class RunRecords(Protocol):
    """Records of the history that travel with their runs: whoever sees a run sees its record. Bytes, as stored."""

    async def list(self) -> Mapping[RunPlace, bytes]:
        """Return the records of all visible runs that have one."""

    async def put(self, place: RunPlace, record: bytes) -> bool:
        """Attach a record to its run, in place of an earlier one; False where the run is gone."""

    async def is_gone(self, place: RunPlace) -> bool:
        """Return True only where it is certain that the run is not there any more."""


@dataclass(frozen=True, slots=True)
class ContextMember:
    """One context of several that are shown as one backend.

    Attributes:
        backend: Its own, which knows nothing of the others.
        prefix: Text before every name of its rows, ``lab:``.
        original: Returns a row under the name that its own backend has for it.
    """

    backend: Backend
    settings: Settings
    prefix: str
    original: Original

    @property
    def context(self) -> str:
        """Its name in the configuration."""
        return self.settings.context


class Original(Protocol):
    """Way from a row among those of several contexts to that of its own."""

    @overload
    def __call__(self, row: PodView) -> PodView: ...
    @overload
    def __call__(self, row: RunView) -> RunView: ...
    @overload
    def __call__(self, row: Node) -> Node: ...


class Contexts(Protocol):
    """Contexts of the configuration, and namespaces of the present one, for a choice of others."""

    @property
    def current(self) -> str:
        """Name of the present context; as the settings have it until connected."""

    @property
    def namespace(self) -> str:
        """Namespace where runs are launched; empty until connected, and where several contexts are shown."""

    @property
    def members(self) -> tuple[ContextMember, ...]:
        """Contexts that are shown together; empty where there is one."""

    def names(self) -> tuple[str, ...]:
        """Return the names of all contexts; reads files.

        Raises:
            ConfigError: they cannot be read.
        """

    async def namespaces(self) -> tuple[str, ...]:
        """Return the names of all namespaces, sorted; BackendError where they may not be listed."""

    async def open(self) -> None:
        """Connect, if that has not been done.

        Raises:
            ConfigError: there is no such context, or its files cannot be used.
        """

    def member(self, row: PodView | RunView | Node) -> ContextMember | None:
        """Return the context of a row where several are shown; None where there is one."""


# --- the backend -----------------------------------------------------------------------------------------------
class Backend(Protocol):
    """The nodes, slots and runs of one machine, Docker Engine or cluster."""

    name: str

    # Read-only properties, so that a class attribute, a property or a method can implement each of them.
    @property
    def location(self) -> str | None:
        """Context and namespaces, for people; empty until connected. None: there is one per machine."""

    def acts_on(self, namespaces: Collection[str] = ()) -> str:
        """Return where a change acts, for its question: ``on context lab, namespace team-a, as alice``.

        Args:
            namespaces: Those of the objects that change; empty means where runs are launched.
        """

    @property
    def contexts(self) -> Contexts | None:
        """Other places to act in; None where there is one per machine."""

    @property
    def inspector(self) -> Inspector | None:
        """Descriptions, events, port forwarding."""

    @property
    def renderer(self) -> Renderer | None:
        """Manifests of a plan."""

    @property
    def volumes(self) -> VolumeStore | None:
        """Storage that outlives pods."""

    @property
    def secrets(self) -> SecretStore | None:
        """Secrets that runs refer to by name."""

    @property
    def reservations(self) -> Reservations | None:
        """Reservations of slots."""

    @property
    def results(self) -> Callable[[str], Awaitable[Path | None]] | None:
        """Return the folder of this machine with the checkpoints of the run of this name; None without one.

        None where runs leave their results on other machines.
        """

    @property
    def kept_results(self) -> ResultStore | None:
        """Results that destroyed runs have left on this machine; None where those lie elsewhere."""

    @property
    def history_to(self) -> str:
        """Folder or bucket for records that outlive their runs; empty without one."""

    @property
    def records(self) -> RunRecords | None:
        """Records that travel with runs; None where all runs are those of this machine's own history."""

    @property
    def adopt(self) -> Callable[[str], Awaitable[None]] | None:
        """Give the run of this name a living supervisor; None where a service of the system supervises runs."""

    async def snapshot(self) -> ClusterSnapshot:
        """Return the present state of everything that is visible."""

    def watch(self) -> AsyncGenerator[tuple[Change, ...], None]:
        """Yield changes as they happen, for ever; the first batch builds everything from EMPTY_SNAPSHOT."""

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:
        """Check what only this backend can know of a plan: commands, folders, permissions. Creates nothing."""

    def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone, None]:
        """Carry out a plan, one StepDone for each of ``plan.steps()``.

        Slots are claimed atomically: of two launches on the same slot one gets RefusedError. When it raises or is
        cancelled, what was created stays visible in the snapshot for destroy().
        """

    async def spec(self, run: str) -> RunSpec:
        """Return the spec with which a run was launched, with its present replicas."""

    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:
        """Start and stop replicas of a set; returns when the new count is recorded, the watch shows the rest."""

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
        """Stop these pods: SIGTERM, grace, SIGKILL. Their set replaces them; grace None means the set's own."""

    def destroy(
        self, run: RunView, *, grace_seconds: float | None = None, purge: bool = False, force: bool = False
    ) -> AsyncGenerator[DestroyProgress | Receipt, None]:
        """Remove a run and all it owns; the last item is the Receipt.

        Args:
            purge: Also delete results (checkpoints, metrics), which are kept otherwise.
            force: Delete pods that outlive their grace period at once, without proof that their processes ended.
        """

    async def leaks(self) -> tuple[Leak, ...]:
        """Find objects of runs that no longer exist."""

    def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine, None]:
        """Yield lines of one pod in the order in which they were written."""

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:
        """Run a command in the pod on the caller's own terminal; its exit code."""

    def attach(self, pod: PodView) -> AbstractAsyncContextManager[AttachedProcess]:
        """Attach to the standard streams of the pod's own process; leaving the context leaves it running.

        Raises:
            RefusedError: on entry, where it has no standard input, or does not run.
        """

    # Apart from exec(): the app calls it while it owns the terminal.
    async def capture(self, pod: PodView, argv: Sequence[str]) -> CommandOutput:
        """Run a command in the pod without input, and return its output; when cancelled, end it if possible."""

    async def denied(self) -> Mapping[str, str]:
        """Return why actions are denied: ``launch``, ``kill``, ``scale``, ``destroy``, ``exec`` and others.

        Each reason names the missing verb; permitted actions are left out.
        """

    async def doctor(self) -> tuple[Finding, ...]:
        """Diagnose the backend: what works, what does not, and what to do about it."""

    async def close(self) -> None:
        """Close connections and tasks; runs go on."""
