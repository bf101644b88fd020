"""Start of the keeper: one process for each queue with runs, started by the first process that finds it missing."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

from l2rtui.backends.queue_store import QueueStore, queue_stores
from l2rtui.config import state_dir
from l2rtui.errors import BackendError, L2RError

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
