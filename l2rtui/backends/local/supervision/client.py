"""Client side of supervisors: start one, wake it, check that it lives; and the lock of the state folder.

Blocking work runs in a thread. ``finish_in_thread`` waits for the end of that thread even if its caller is
cancelled: a clean-up after the cancellation must see everything that the thread has created.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from typing import ParamSpec, TypeVar

from l2rtui.backends.common.refusals import lock_file
from l2rtui.backends.local import process_scan, run_folders, state_files
from l2rtui.backends.local.environment import clean_environ, run_environ
from l2rtui.backends.local.paths import RunFolder, StateFolder
from l2rtui.backends.local.state_files import ProcessIdentity, RunStatus
from l2rtui.backends.local.supervision.supervisor import EXIT_ALREADY_SUPERVISED, WAKE_SIGNAL
from l2rtui.backends.local.supervision.watcher import supervisor_command
from l2rtui.errors import BackendError

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
POLL_SECONDS = 0.02
"""Polling period for files that another process is about to write; a poll costs a few microseconds."""
_LOCK_SECONDS = 30.0
_START_SECONDS = 30.0


async def finish_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run in a thread; a cancellation is passed on only after the thread has ended."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(asyncio.wait([task]))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # retrieved, as asyncio would otherwise log it; the caller must see the cancellation
        raise cancelled
    return task.result()


@contextlib.asynccontextmanager
async def lock_state(root: StateFolder) -> AsyncIterator[None]:
    """Hold the lock of the state folder: launches and removals of runs happen one at a time.

    Raises:
        BackendError: The folder cannot be written, or another process has held the lock for half a minute.
    """
    try:
        make_root(root)
        descriptor = os.open(root.lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise unwritable_error(root, error) from error
    try:
        try:
            await lock_file(descriptor, root.lock, _LOCK_SECONDS)
        except OSError as error:  # a file system without locks
            raise unwritable_error(root, error) from error
        await finish_in_thread(run_folders.sweep, root.runs)
        yield
    finally:
        os.close(descriptor)  # also unlocks


def make_root(root: StateFolder) -> None:
    """Create the folders of the state with mode 0700.

    Raises:
        OSError: They cannot be created.
    """
    for folder in (root.path, root.runs):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def unwritable_error(root: StateFolder, error: OSError) -> BackendError:
    """Return the error of a state folder that cannot be written."""
    hint = "Give yourself the right to write there, free some space, or set XDG_STATE_HOME to another folder."
    return BackendError(f"The state folder {root.path} cannot be written: {error.strerror or error}.", hint)


def read_status(folder: RunFolder) -> RunStatus | None:
    """Return the supervisor's latest status; None without a readable one."""
    return state_files.read_valid(folder.status, RunStatus)


def supervisor_of(folder: RunFolder) -> ProcessIdentity | None:
    """Return the living supervisor of a run; None if there is none or it is ending.

    Its lock file names it; while that is damaged, its status.
    """
    status = read_status(folder)
    named = status.supervisor if status is not None else None
    proc = state_files.read_valid(folder.supervisor_lock, ProcessIdentity) or named
    # After announcing its end it reads no more requests, though it may live for some milliseconds.
    is_ending = status is not None and status.is_ended and status.supervisor == proc
    return proc if process_scan.is_alive(proc) and not is_ending else None


def start_supervisor(folder: RunFolder, uid: str) -> None:
    """Start a supervisor unless one is running. Blocks until it has taken over the run.

    Raises:
        BackendError: It could not be started; the message has the reason.
    """
    until = time.monotonic() + _START_SECONDS
    while True:
        code, reason = _spawn(folder, uid)
        if code == 0:
            return
        if code != EXIT_ALREADY_SUPERVISED or time.monotonic() > until:
            break
        # Another supervisor has the lock: either it lives and will name itself, or it is about to end and release
        # it.
        if supervisor_of(folder) is not None:
            return
        time.sleep(POLL_SECONDS)
    if code == EXIT_ALREADY_SUPERVISED:
        reason = f"another one holds {folder.supervisor_lock} and does not answer"
    sentence = f"The supervisor of {folder.name} did not start: {reason or f'it ended with {code}'}."
    raise BackendError(sentence, f"See {folder.supervisor_log}.")


def wake(folder: RunFolder) -> bool:
    """Make the supervisor read its files again; return False if none lives."""
    supervisor = supervisor_of(folder)
    return supervisor is not None and process_scan.signal_process(supervisor, WAKE_SIGNAL)


def _spawn(folder: RunFolder, uid: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            supervisor_command(folder),
            env=run_environ(folder, folder.name, uid, clean_environ()),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,  # Ctrl-C in the terminal is only for the app
            timeout=_START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"it did not answer within {_START_SECONDS:g} s"
    except OSError as error:
        return 1, str(error)
    _log.info("supervisor of %s: started with exit code %d", folder.name, done.returncode)
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return done.returncode, lines[-1] if lines else ""
