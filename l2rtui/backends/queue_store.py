"""File of a queue: changed under a lock, flushed to disk before a change counts, read by every l2rtui of the user.

::

    <state>/l2rtui/queue/<place>/   0700; the place is a backend, its context and namespace
      queue.json                    the queue, QueueFile
      lock                          flock: one change at a time
      keeper.lock keeper.log        locked by the living keeper; its traceback when it fails
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from l2rtui.config import state_dir
from l2rtui.domain.queue import RunQueue
from l2rtui.domain.sweeps import SweepWatch
from l2rtui.errors import BackendError, L2RError
from runtime.base import bounded_json
from runtime.base.atomic_files import try_lock, write_atomic

FORMAT: Final = 1
_LOCK_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Place whose slots a queue waits for; its keeper opens the same place.

    Attributes:
        flags: Settings as command-line flags: backend, context, namespaces, impersonation.
        environ: Variables that choose a place or contain settings; no secrets.
    """

    flags: dict[str, str] = {}
    environ: dict[str, str] = {}


class Submission(msgspec.Struct, frozen=True, omit_defaults=True):
    """Folder and environment of the command that queued runs; they start as if it had launched them.

    Attributes:
        environ: Without variables that look like secrets: the keeper's own environment provides those.
    """

    cwd: str
    environ: dict[str, str] = {}


class QueueFile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Content of the file.

    Attributes:
        sweeps: Sweeps whose worst trials the keeper stops.
        unrecorded: Ids of runs whose ends the keeper writes to the place for history records.
    """

    queue: RunQueue = RunQueue()
    place: Place = Place()
    submissions: dict[str, Submission] = {}
    sweeps: tuple[SweepWatch, ...] = ()
    unrecorded: tuple[str, ...] = ()
    format: int = FORMAT

    @property
    def needs_keeper(self) -> bool:
        """True while runs wait, a sweep is watched, or ends must be recorded."""
        return bool(self.queue.tickets or self.sweeps or self.unrecorded)

    def with_queue(self, queue: RunQueue) -> QueueFile:
        """Return the file with another queue, and without submissions that no run needs."""
        used = {ticket.submission for ticket in queue.tickets}
        submissions = {key: value for key, value in self.submissions.items() if key in used}
        return msgspec.structs.replace(self, queue=queue, submissions=submissions)


_EMPTY: Final = QueueFile()


class QueueStore:
    """The queue of one place.

    Args:
        place: Stored with the first change.
    """

    def __init__(self, folder: Path, place: Place = Place()) -> None:  # noqa: B008  (frozen)
        self.folder = folder
        self.place = place
        self._key: tuple[int, int, int] | None = None
        self._file = _EMPTY

    @property
    def keeper_lock(self) -> Path:
        """File that the living keeper has locked."""
        return self.folder / "keeper.lock"

    @property
    def keeper_log(self) -> Path:
        """Log of the keeper."""
        return self.folder / "keeper.log"

    def read(self) -> QueueFile:
        """Return the current content; empty if nothing was ever queued. Costs one stat if nothing has changed.

        Raises:
            BackendError: The file cannot be read; it is left unchanged.
        """
        path = self.folder / "queue.json"
        try:
            stat = path.stat()
        except FileNotFoundError:
            return _EMPTY
        except OSError as error:
            raise self._unreadable(error.strerror or str(error)) from error
        # Every write is a rename: new content has a new inode, and time and size guard against its reuse.
        key = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if key != self._key:
            try:
                file = bounded_json.decode(path.read_bytes(), QueueFile)
            except FileNotFoundError:
                return _EMPTY
            except (OSError, ValueError) as error:
                raise self._unreadable(str(error)) from error
            if file.format != FORMAT:
                raise self._unreadable(f"it has format {file.format}, and this version reads {FORMAT}")
            self._file, self._key = file, key
        return self._file

    def look(self) -> QueueFile:
        """Return the content for callers with other work to do: empty if the file cannot be read.

        Existing runs can be seen and ended whatever the file contains; `ensure_keepers` reports the damage.
        """
        try:
            return self.read()
        except BackendError:
            return _EMPTY

    def change(self, changed: Callable[[QueueFile], QueueFile]) -> QueueFile:
        """Replace the content by the result of a function; returns once it is on disk. Blocks.

        Raises:
            BackendError: The file cannot be read, written or locked; it is unchanged.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                before = self.read()
                after = changed(before)
                if after != before:
                    after = msgspec.structs.replace(after, place=self.place if self.place.flags else before.place)
                    path = self.folder / "queue.json"
                    # 0600: environments may contain secrets whose names do not reveal them.
                    write_atomic(path, msgspec.json.encode(after), is_durable=True, is_shared=True, mode=0o600)
        except OSError as error:
            sentence = f"The queue in {self.folder} cannot be written: {error.strerror or error}."
            raise BackendError(sentence, "Free some space, or set XDG_STATE_HOME to another folder.") from error
        return after

    def change_queue(self, changed: Callable[[RunQueue], RunQueue]) -> RunQueue:
        """Replace the queue in the file; see ``change``."""
        return self.change(lambda file: file.with_queue(changed(file.queue))).queue

    def is_kept(self) -> bool:
        """Return True while a keeper lives."""
        try:
            descriptor = os.open(self.keeper_lock, os.O_RDONLY)
        except OSError:
            return False
        try:
            # Shared: two concurrent readers do not mistake each other for a keeper.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            until = time.monotonic() + _LOCK_SECONDS
            while not try_lock(descriptor):
                if time.monotonic() > until:
                    raise BackendError(f"Another l2rtui has locked {self.folder} for {_LOCK_SECONDS:g} s.")
                time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def _unreadable(self, reason: str) -> BackendError:
        path = self.folder / "queue.json"
        return BackendError(f"The queue {path} cannot be read: {reason}.", "Move it away to begin a new one.")


def queue_stores(root: Path) -> tuple[QueueStore, ...]:
    """Return the queues below a folder; empty if nothing was ever queued.

    Args:
        root: Folder ``queue`` of the state.
    """
    try:
        folders = sorted(path for path in root.iterdir() if (path / "queue.json").exists())
    except OSError:
        return ()
    return tuple(QueueStore(folder) for folder in folders)


def place_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that choose a place or contain settings."""
    names = ("KUBECONFIG", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY")
    return {name: value for name, value in environ.items() if name in names or name.startswith("L2RTUI_")}


_log = logging.getLogger(__name__)
_MODULE = "l2rtui.services.queue.keeper"
"""Only by name: it is in the services, a higher layer."""


def is_tag(variable: str) -> bool:
    """Return True for a variable that marks the processes of a run.

    A keeper that is started from within a run must not have them: a destroy of that run would end it as well.
    """
    return variable.startswith("L2R_")


def ensure_keeper(store: QueueStore) -> None:
    """Start a keeper for a queue with runs or sweeps unless one lives. Blocks until it has taken the queue.

    Raises:
        BackendError: It could not be started; the message has the reason.
    """
    if not store.read().needs_keeper or store.is_kept():
        return
    isolation = "-I" if sys.flags.isolated else "-P"
    try:
        # -P and the root folder: nothing in the user's working folder may be imported instead of a module.
        done = subprocess.run(
            [sys.executable, isolation, "-m", _MODULE, str(store.folder)],
            env={name: value for name, value in os.environ.items() if not is_tag(name)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    except OSError as error:
        raise BackendError(f"The keeper of the queue did not start: {error.strerror}.") from error
    # A concurrent process may have been faster: then its keeper keeps the queue.
    if done.returncode and not store.is_kept() and store.read().needs_keeper:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        sentence = f"The keeper of the queue did not start: {reason or f'it ended with {done.returncode}'}."
        raise BackendError(sentence, f"See {store.keeper_log}; the next command tries again.")


def ensure_keepers(root: Path | None = None) -> tuple[L2RError, ...]:
    """Start missing keepers: of queues that outlived a reboot, or the end of their keeper.

    Args:
        root: Folder of all queues; None for ``queue`` in the user's state folder.

    Returns:
        Why keepers were not started. A command that has other work to do continues.
    """
    problems = []
    for store in queue_stores(root or state_dir() / "queue"):
        try:
            ensure_keeper(store)
        except L2RError as error:
            _log.warning("%s", error)
            problems.append(error)
    return tuple(problems)
