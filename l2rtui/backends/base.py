"""The protocol that every backend implements: this machine, Docker, Kubernetes and the in-memory demo.

Methods of ``Backend`` exist everywhere. An ability that only some backends have is an attribute that is None
elsewhere (``backend.volumes``, ``backend.inspector``): callers test ``is None``, and the type checker verifies that
they do.

Every method may raise BackendError with a sentence, or NotFoundError if it takes a name that does not exist.
Nothing here blocks an event loop. Streams are generators: close them (``contextlib.aclosing``) to release their
resources. Client library types never cross this interface.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

from msgspec import Struct

if TYPE_CHECKING:
    from l2rtui.backends.queue_store import QueueStore
    from l2rtui.config import Settings
    from l2rtui.domain.change import Change
    from l2rtui.domain.log import CommandOutput, KubeEvent, LogLine, LogQuery
    from l2rtui.domain.node import Node, SlotId
    from l2rtui.domain.plan import LaunchPlan, PlannedPlaces, ScalePlan, StepDone
    from l2rtui.domain.preflight import Finding
    from l2rtui.domain.receipt import DestroyProgress, LeakReport, Receipt
    from l2rtui.domain.secret import Secret, SecretView
    from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
    from l2rtui.domain.volume import FileEntry, KeptResult, Volume
    from l2rtui.domain.workload import RunSpec


# --- optional parts --------------------------------------------------------------------------------------------
class Inspector(Protocol):
    """Descriptions, events and port forwarding of a backend whose pods are objects with a history and ports."""

    async def describe(self, target: PodView | RunView | Node) -> tuple[str, ...]:
        """Return everything that is known about one object, line by line, its events last."""

    async def events(self, target: PodView | RunView | Node | None = None) -> tuple[KubeEvent, ...]:
        """Return recent events of one object, or of all visible objects, newest last; at most a few hundred."""

    def forward(self, pod: PodView, local: int, remote: int) -> AsyncGenerator[str, None]:
        """Forward connections from a port of this machine to a port of a pod, until the generator is closed.

        Args:
            local: Port on the loopback address; 0 lets the system choose.

        Yields:
            One sentence when it listens, then one for each connection that failed.
        """


class Renderer(Protocol):
    """Rendering of a launch's objects before they are sent, for backends whose objects can be printed."""

    async def planned(self, plan: LaunchPlan) -> LaunchPlan:
        """Return the plan with a step for every object that launch() will create."""

    async def manifests(self, plan: LaunchPlan) -> Sequence[dict[str, Any]]:
        """Return the objects of a plan as they will be sent, in that order, without secrets."""

    async def differences(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return a unified diff, as lines, from the existing objects to the planned ones; empty if they are
        equal.
        """

    async def places(self, run: str) -> PlannedPlaces:
        """Return the places that the launch of a run has chosen."""


class AttachedProcess(Protocol):
    """Standard streams of a pod's own process, while attached."""

    has_terminal: bool
    """The process runs on its own terminal, so that its output is one stream with escape sequences."""

    def output(self) -> AsyncGenerator[tuple[bool, bytes], None]:
        """Yield its output until it ends; True marks standard error."""

    async def send(self, data: bytes) -> None:
        """Send input to the process."""

    async def end_input(self) -> None:
        """Close its input, if the backend supports that."""

    async def resize(self, columns: int, lines: int) -> None:
        """Set the size of its terminal."""


class VolumeFiles(Protocol):
    """The files of one open volume. Paths are relative to its root."""

    async def entries(self, path: str = "") -> tuple[FileEntry, ...]:
        """List the entries directly under a path, folders first; for a file, the file itself."""

    async def sizes(self, path: str = "") -> tuple[FileEntry, ...]:
        """List all files under a path, at any depth; anything but a plain file has another kind."""

    async def get(self, path: str, target: Path, progress: Callable[[int], None]) -> int:
        """Copy a file, or all files under a folder, to this machine; return their number. Existing ones are
        skipped.
        """

    async def put(self, source: Path, path: str, progress: Callable[[int], None]) -> int:
        """Copy a file, or all files under a folder, to the volume; return their number. Existing ones are
        skipped.
        """


class ResultStore(Protocol):
    """Results of destroyed runs that were kept."""

    async def list(self) -> tuple[KeptResult, ...]:
        """List kept results, newest first, including the folders of existing runs."""

    async def remove(self, ids: Sequence[str]) -> int:
        """Delete kept results by their ids; return their size in bytes."""


class VolumeStore(Protocol):
    """Storage that outlives pods; created volumes are labelled with the user's name."""

    async def list(self) -> tuple[Volume, ...]:
        """List every volume, with the pods that mount it."""

    async def create(
        self, name: str, size: str, *, storage_class: str = "", modes: tuple[str, ...] = ("RWO",)
    ) -> Volume:
        """Create a volume; ``size`` is a quantity such as 50Gi, ``modes`` are RWO, RWX, ROX or RWOP."""

    async def delete(self, name: str) -> None:
        """Delete a volume that no pod mounts."""

    def files(self, name: str, image: str = "") -> AbstractAsyncContextManager[VolumeFiles]:
        """Open the files of a volume. ``image`` is for the pod that transfers them; empty for the configured
        image.
        """


class SecretStore(Protocol):
    """Secrets for runs; values can be stored but never read back."""

    @property
    def hidden(self) -> str:
        """Sentence on why the latest list may be incomplete; empty for a complete list."""

    async def list(self) -> tuple[SecretView, ...]:
        """List the secrets that l2rtui created, by name."""

    async def keep(self, secret: Secret, *, replace: bool = False) -> None:
        """Store a secret.

        Raises:
            RefusedError: The name is taken (and ``replace`` is False), or the secret is not l2rtui's.
        """

    async def delete(self, name: str) -> None:
        """Delete a secret.

        Raises:
            NotFoundError: The name does not exist. RefusedError: The secret is not l2rtui's.
        """


class Reservations(Protocol):
    """Slots that users have reserved for their own runs for some time; see ``Node.reservations``."""

    async def reserve(self, slots: Sequence[SlotId], until: float, note: str = "") -> None:
        """Reserve slots for the user until a time (seconds since the epoch), all or none.

        Earlier reservations of the same user on these slots are replaced.

        Raises:
            RefusedError: Another user has reserved or uses one of them.
        """

    async def release(self, slots: Sequence[SlotId]) -> None:
        """End the reservations of slots, regardless of who has made them."""


class RunPlace(Struct, frozen=True):
    """Place and identity of one run; the name alone is not unique, as another launch may reuse it."""

    run: str
    run_id: str
    namespace: str = ""


class RunRecords(Protocol):
    """History records stored with their runs: users who can see a run can see its record. Bytes, as stored."""

    async def list(self) -> Mapping[RunPlace, bytes]:
        """Return the records of all visible runs that have a record."""

    async def put(self, place: RunPlace, record: bytes) -> bool:
        """Attach a record to its run, replacing an earlier one; return False if the run no longer exists."""

    async def is_gone(self, place: RunPlace) -> bool:
        """Return True only where it is certain that the run is not there any more."""


class ContextMember(Struct, frozen=True):
    """One context of several that are shown as one backend.

    Attributes:
        backend: Backend of this context only.
        prefix: Text before every name of its rows, such as ``lab:``.
        original: Converts a row to the row as its own backend names it.
    """

    backend: Backend
    settings: Settings
    prefix: str
    original: Original

    @property
    def context(self) -> str:
        """Name of the context in the configuration."""
        return self.settings.context


class Original(Protocol):
    """Converts a qualified row of several contexts to the row of its own context."""

    @overload
    def __call__(self, row: PodView) -> PodView: ...
    @overload
    def __call__(self, row: RunView) -> RunView: ...
    @overload
    def __call__(self, row: Node) -> Node: ...


class Contexts(Protocol):
    """Contexts of the configuration, and namespaces of the current context, for switching."""

    @property
    def current(self) -> str:
        """Name of the current context; before connecting, the name from the settings."""

    @property
    def namespace(self) -> str:
        """Namespace where runs are launched; empty until connected, and where several contexts are shown."""

    @property
    def members(self) -> tuple[ContextMember, ...]:
        """Contexts that are shown together; empty if there is only one."""

    def names(self) -> tuple[str, ...]:
        """Return the names of all contexts; reads files.

        Raises:
            ConfigError: The files cannot be read.
        """

    async def namespaces(self) -> tuple[str, ...]:
        """Return the names of all namespaces, sorted; BackendError if listing them is forbidden."""

    async def open(self) -> None:
        """Connect, unless already connected.

        Raises:
            ConfigError: The context does not exist, or its files cannot be used.
        """

    def member(self, row: PodView | RunView | Node) -> ContextMember | None:
        """Return the context of a row if several are shown; None if there is only one."""


# --- the backend -----------------------------------------------------------------------------------------------
class Backend(Protocol):
    """The nodes, slots and runs of one machine, Docker Engine or cluster."""

    name: str

    # Read-only properties, so that a class attribute, a property or a method can implement each of them.
    @property
    def location(self) -> str | None:
        """Context and namespaces, for display; empty until connected. None if there is only one place per
        machine.
        """

    def acts_on(self, namespaces: Collection[str] = ()) -> str:
        """Return the place of a change, for its confirmation: ``on context lab, namespace team-a, as alice``.

        Args:
            namespaces: Namespaces of the objects that change; empty for the namespace of new runs.
        """

    @property
    def contexts(self) -> Contexts | None:
        """Other places to act in; None if there is only one per machine."""

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
        """Return the local folder with the checkpoints of the run of this name; None without one.

        The attribute is None if runs store their results on other machines.
        """

    @property
    def kept_results(self) -> ResultStore | None:
        """Kept results of destroyed runs on this machine; None if results are stored elsewhere."""

    @property
    def queue(self) -> QueueStore | None:
        """Runs that wait for slots; None where none can wait: in the demo, in a view of several contexts."""

    @property
    def history_to(self) -> str:
        """Folder or bucket for history records that outlive their runs; empty without one."""

    @property
    def records(self) -> RunRecords | None:
        """Records stored with runs; None if this machine's own history has all runs."""

    @property
    def adopt(self) -> Callable[[str], Awaitable[None]] | None:
        """Start a new supervisor for the run of this name; None if a system service supervises runs."""

    async def snapshot(self) -> ClusterSnapshot:
        """Return the current state of everything that is visible."""

    def watch(self) -> AsyncGenerator[tuple[Change, ...], None]:
        """Yield changes as they happen, without end; the first batch builds everything from EMPTY_SNAPSHOT."""

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:
        """Check the parts of a plan that only this backend knows: commands, folders, permissions. Creates
        nothing.
        """

    def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone, None]:
        """Execute a plan; yield one StepDone for each of ``plan.steps()``.

        Slots are claimed atomically: of two concurrent launches on the same slot, one gets RefusedError. If this
        raises or is cancelled, the created objects stay visible in the snapshot for destroy().
        """

    async def spec(self, run: str) -> RunSpec:
        """Return the spec with which a run was launched, with the current numbers of replicas."""

    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:
        """Start and stop replicas of a set. Returns once the new count is recorded; the watch shows the
        progress.
        """

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
        """Stop these pods: SIGTERM, grace, SIGKILL. Their set replaces them; without a grace the set's own
        applies.
        """

    def destroy(
        self, run: RunView, *, grace_seconds: float | None = None, purge: bool = False, force: bool = False
    ) -> AsyncGenerator[DestroyProgress | Receipt, None]:
        """Remove a run and all objects it owns; the last item is the Receipt.

        Args:
            purge: Also delete results (checkpoints, metrics), which are kept by default.
            force: Delete pods that exceed their grace period immediately, without proof that their processes ended.
        """

    async def leaks(self) -> LeakReport:
        """Find objects of runs that no longer exist."""

    def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine, None]:
        """Yield lines of one pod in the order in which they were written."""

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:
        """Run a command in the pod on the caller's terminal; return its exit code."""

    def attach(self, pod: PodView) -> AbstractAsyncContextManager[AttachedProcess]:
        """Attach to the standard streams of the pod's own process, which keeps running after the context exits.

        Raises:
            RefusedError: On entry, if the process has no standard input or is not running.
        """

    # Separate from exec(): the app calls it while it owns the terminal.
    async def capture(self, pod: PodView, argv: Sequence[str]) -> CommandOutput:
        """Run a command in the pod without input and return its output; when cancelled, end it if possible."""

    async def denied(self) -> Mapping[str, str]:
        """Return why actions are denied: ``launch``, ``kill``, ``scale``, ``destroy``, ``exec`` and others.

        Each reason names the missing verb; permitted actions are left out.
        """

    async def doctor(self) -> tuple[Finding, ...]:
        """Diagnose the backend: working parts, problems, and their remedies."""

    async def close(self) -> None:
        """Close connections and tasks; runs continue."""
