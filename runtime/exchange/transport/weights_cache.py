"""Policies that one worker has received, for the others on its host: a version crosses the network once per host.

A folder of the run in shared memory has a file for each received version, which is complete once it has its name.
The worker that holds the lock of an encoding asks the learner; the others wait for its file. The kernel releases
the locks of a killed process. The last worker removes the folder, and the first one those of runs that were killed.
Only workers of one user that see the same files share it; a learner on this host has memory of its own for them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from runtime.exchange.transport.shared_memory import SharedMemoryError

_MEMORY: Final = Path("/dev/shm")  # noqa: S108  (a folder of the user's own in it, whose owner and mode are checked)
_COMPLETE: Final = ".weights"
_USERS: Final = "users"
"""File of which each worker holds a shared lock."""


class WeightsCache:
    """Folder with the received policies of one run. Raises SharedMemoryError if there cannot be one."""

    def __init__(self, run: str, secret: str, codec: str, floats: int) -> None:
        name = hashlib.sha256(f"{run}\0{secret}\0{floats}".encode()).hexdigest()[:24]
        memory = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        prefix = f"l2r-weights-{os.geteuid()}-"
        self._folder, self._codec = memory / f"{prefix}{name}", codec
        self._users, self._lock = -1, -1
        try:
            for other in memory.glob(f"{prefix}*"):
                if other != self._folder:
                    _remove_unused(other)
            self._users = _joined(self._folder)
            self._lock = os.open(self._folder / f"{codec}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self.close()
            raise SharedMemoryError(f"policies cannot be cached in {self._folder}: {error}") from error

    def newest(self, epoch: int, above: int) -> tuple[int, memoryview] | None:
        """Return the newest version of an epoch and its encoded weights; None unless it is above a version."""
        versions = [version for at, version in self._files() if at == epoch and version > above]
        for version in sorted(versions, reverse=True):
            # Another worker may remove it at any moment; a mapping stays.
            with contextlib.suppress(OSError, ValueError), self._file(epoch, version).open("rb") as file:
                return version, memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        return None

    def may_ask(self) -> bool:
        """Return true if this worker is the one to ask the learner; until `put` or `give_up`."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def give_up(self) -> None:
        """Let another worker ask."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def put(self, epoch: int, version: int, weights: memoryview) -> bool:
        """Store received weights for the others, and remove older ones; return false if there is no room."""
        place = self._file(epoch, version)
        partial = place.with_suffix(f".partial-{os.getpid()}")
        try:
            partial.write_bytes(weights)
            partial.replace(place)
            for of_epoch, older in self._files():
                if (of_epoch, older) < (epoch, version):
                    self._file(of_epoch, older).unlink(missing_ok=True)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink()
            return False
        finally:
            self.give_up()
        return True

    def _file(self, epoch: int, version: int) -> Path:
        return self._folder / f"{self._codec}-{epoch}-{version}{_COMPLETE}"

    def _files(self) -> list[tuple[int, int]]:
        """Return epoch and version of each file of this encoding."""
        with contextlib.suppress(OSError):
            places = [Path(name) for name in os.listdir(self._folder)]  # noqa: PTH208
            parts = [place.stem.split("-") for place in places if place.suffix == _COMPLETE]
            return [(int(epoch), int(version)) for codec, epoch, version in parts if codec == self._codec]
        return []

    def close(self) -> None:
        """Leave the folder; the last worker removes it."""
        for descriptor in (self._users, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        if self._users >= 0:
            _remove_unused(self._folder)
        self._users = self._lock = -1


def _joined(folder: Path) -> int:
    """Return a descriptor with a shared lock on a folder's users. Raises OSError if it is not only ours."""
    while True:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError("it belongs to another user, or others may write to it")
        users = os.open(folder / _USERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(users, fcntl.LOCK_SH)
        # The last worker of before may have removed the folder meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(users), (folder / _USERS).stat()):
                return users
        os.close(users)


def _remove_unused(folder: Path) -> None:
    """Remove a folder that no living worker uses."""
    try:
        users = os.open(folder / _USERS, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(users)
