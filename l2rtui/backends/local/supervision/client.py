"""How the backend reaches supervisors: start one, wake it, find out whether it lives; and the lock of the state.

What blocks runs in a thread, and ``settled`` waits for the end of that thread even when its caller is cancelled:
what a thread has begun to create must be visible to whoever takes it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import ParamSpec, TypeVar

from l2rtui.backends.claiming import lock
from l2rtui.backends.local import files, folders, processes
from l2rtui.backends.local.environment import clean_environ, run_environ
from l2rtui.backends.local.layout import Root, RunFolder
from l2rtui.backends.local.records import Proc, RunStatus
from l2rtui.backends.local.supervisor import EXIT_HELD, WAKE
from l2rtui.errors import BackendError

P = ParamSpec("P")
T = TypeVar("T")
POLL_SECONDS = 0.02
_LOCK_SECONDS = 30.0
_START_SECONDS = 30.0


async def settled(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run in a thread; a cancellation is passed on once the thread has ended, never before."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(asyncio.wait([task]))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # seen: the cancellation says more
        raise cancelled
    return task.result()


@contextlib.asynccontextmanager
async def locked(root: Root) -> AsyncIterator[None]:
    """Hold the lock of the whole state: claims of slots and removals of runs happen one at a time.

    Raises:
        BackendError: the state cannot be written, or somebody has held the lock for half a minute.
    """
    try:
        make_root(root)
        descriptor = os.open(root.lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise unwritable(root, error) from error
    try:
        try:
            await lock(descriptor, root.lock, _LOCK_SECONDS)
        except OSError as error:  # a file system without locks
            raise unwritable(root, error) from error
        await settled(folders.sweep, root.runs)
        yield
    finally:
        os.close(descriptor)  # which also unlocks


def make_root(root: Root) -> None:
    """Make the folders of the state, for us alone.

    Raises:
        OSError: that is not possible.
    """
    for folder in (root.path, root.runs):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def unwritable(root: Root, error: OSError) -> BackendError:
    """The sentence for a state folder that cannot be used."""
    return BackendError(
        f"The state folder {root.path} cannot be written: {error.strerror or error}.",
        "Give yourself the right to write there, free some space, or set XDG_STATE_HOME to another folder.",
    )


def read_status(folder: RunFolder) -> RunStatus | None:
    """What the supervisor wrote last; None where nothing readable is."""
    try:
        return files.read(folder.status, RunStatus)
    except (FileNotFoundError, files.CorruptError):
        return None


def supervisor_of(folder: RunFolder) -> Proc | None:
    """The living supervisor of a run that listens, or None; it stands in the file that it locks."""
    try:
        proc = files.read(folder.guard, Proc)
    except (FileNotFoundError, files.CorruptError):
        return None
    status = read_status(folder)
    is_ending = status is not None and status.is_ended and status.supervisor == proc
    return proc if processes.is_alive(proc) and not is_ending else None


def start_supervisor(folder: RunFolder, uid: str) -> None:
    """Make sure that a supervisor looks after a run. Blocks until it has taken the run over.

    Raises:
        BackendError: it could not be started; says why.
    """
    until = time.monotonic() + _START_SECONDS
    while True:
        code, words = _spawn(folder, uid)
        if code == 0:
            return
        if code != EXIT_HELD or time.monotonic() > until:
            break
        # Another one holds the run: either it lives and will say so, or it is about to end and will let go.
        if supervisor_of(folder) is not None:
            return
        time.sleep(POLL_SECONDS)
    if code == EXIT_HELD:
        words = f"another one holds {folder.guard} and does not answer"
    raise BackendError(
        f"The supervisor of {folder.name} did not start: {words or f'it ended with {code}'}.",
        f"See {folder.diary}.",
    )


def wake(folder: RunFolder) -> bool:
    """Tell a supervisor to read its files again; False when none lives."""
    supervisor = supervisor_of(folder)
    return supervisor is not None and processes.signal_process(supervisor, WAKE)


def _spawn(folder: RunFolder, uid: str) -> tuple[int, str]:
    # -P and the root folder: nothing in the user's working folder may be imported in place of a module; -I too
    # where this interpreter runs so: then its modules are its own, whatever PYTHONPATH the user has for others.
    isolation = "-I" if sys.flags.isolated else "-P"
    try:
        done = subprocess.run(
            [sys.executable, isolation, "-m", "l2rtui.backends.local.supervisor", str(folder.path)],
            env=run_environ(folder, folder.name, uid, clean_environ()),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,  # Ctrl-C in the terminal is for the app
            timeout=_START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"it did not answer within {_START_SECONDS:g} s"
    except OSError as error:
        return 1, str(error)
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return done.returncode, lines[-1] if lines else ""
