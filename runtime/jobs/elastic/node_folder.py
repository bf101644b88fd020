"""Folder of one node on its local disk: logs of its processes, and state that outlives a round.

It exists as long as the node. A killed node cannot remove its folder, so the next node on the machine does: the
folder's lock was released with the process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from runtime.base.file_lock import try_lock

_PREFIX: Final = "l2r-elastic-"


@contextlib.contextmanager
def node_folder() -> Iterator[Path]:
    """Create the folder, and remove it at the end."""
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        folder = Path(name)
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # no locks on this file system: then nothing is swept either
                try_lock(descriptor)
            # Locked before it is complete: `_sweep` of a node that starts at the same time removes only complete
            # folders.
            for part in ("logs", "state"):
                (folder / part).mkdir()
            yield folder
        finally:
            os.close(descriptor)


def _sweep(parent: Path) -> None:
    """Remove folders of this user's dead nodes."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            is_ours = folder.stat(follow_symlinks=False).st_uid == os.getuid() and (folder / "state").is_dir()
            if is_ours and _is_unlocked(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_unlocked(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return try_lock(descriptor)
    finally:
        os.close(descriptor)
