"""State of the source tree of a launch: commit and changes of the git repository around a folder.

Read by git itself, in a thread, with a limit on time and size; a folder outside of any repository is not a failure.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from pathlib import Path
from typing import Final

from l2rtui.domain.history import SourceState
from l2rtui.domain.secret import redact_long

MAX_DIFF_BYTES: Final = 1 << 20
MAX_UNTRACKED: Final = 100
TIMEOUT_SECONDS: Final = 5.0
"""Total time: a repository on a slow file system is recorded without its diff."""
_OPTIONS: Final = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotepath=off")
"""Git writes no lock file, and starts no monitor that the repository's configuration names."""
_DIFF: Final = (
    *("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short"),
    "--ignore-submodules=dirty",  # git would read them with their own configuration
)
_DRIVERS: Final = r"^filter\..*\.(clean|smudge|process|required)$"


def source_state(folder: Path) -> SourceState:
    """Return commit, branch and changes of the repository that contains a folder; an empty state outside of any."""
    try:
        return _Repository(folder).state()
    except FileNotFoundError:
        return SourceState(problem="git is not installed here")
    except subprocess.TimeoutExpired:
        return SourceState(problem=f"git took longer than {TIMEOUT_SECONDS:g} s")
    except OSError as error:
        return SourceState(problem=f"git could not be run: {error.strerror}")


class _Repository:
    """Repository around a folder, read until a deadline."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._deadline = time.monotonic() + TIMEOUT_SECONDS
        self._no_filters: list[str] = []

    def state(self) -> SourceState:
        places = self._git("rev-parse", "--show-toplevel", "HEAD").splitlines()
        if len(places) < 2:  # not a repository, or one without a commit
            return SourceState()
        self._folder = Path(places[0])  # from the root: a diff of only this folder would lack its siblings
        # A filter is a program. A tree downloaded together with its .git would run it here.
        drivers = self._git("config", "--includes", "--null", "--name-only", "--get-regexp", _DRIVERS)
        self._no_filters = [
            word
            for name in dict.fromkeys(drivers.split("\0"))
            if name
            for word in ("-c", f"{name}={'false' if name.endswith('.required') else ''}")
        ]
        diff, is_cut = self._diff()
        names = [name for name in self._git("ls-files", "--others", "--exclude-standard", "-z").split("\0") if name]
        problems = []
        if is_cut:
            problems.append(f"the diff is cut off after {MAX_DIFF_BYTES >> 10} KiB")
        if len(names) > MAX_UNTRACKED:
            problems.append(f"{len(names) - MAX_UNTRACKED} more untracked files are not named")
        branch = self._git("branch", "--show-current").strip()
        untracked = tuple(names[:MAX_UNTRACKED])
        return SourceState(places[0], places[1], branch, redact_long(diff), untracked, "; ".join(problems))

    def _git(self, *arguments: str) -> str:
        """Return the output of git; empty if it fails, as outside of a repository."""
        done = subprocess.run(
            self._command(arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            timeout=self._left(),
            check=False,
        )
        return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""

    def _diff(self) -> tuple[str, bool]:
        """Return the changes since the commit, and whether they were truncated."""
        with subprocess.Popen(
            self._command(_DIFF),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        ) as git:
            try:
                # A megabyte is read at most, however large a changed data file is. git then ends by SIGPIPE.
                data = _read(git, MAX_DIFF_BYTES + 1, self._left())
            finally:
                git.kill()
        is_cut = len(data) > MAX_DIFF_BYTES
        # Up to the last full line: half a line could show half a token, which no longer matches a token's pattern.
        text = data[:MAX_DIFF_BYTES].rpartition(b"\n")[0] + b"\n" if is_cut else data
        return text.decode("utf-8", "replace"), is_cut

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return ["git", *_OPTIONS, *self._no_filters, "-C", str(self._folder), *arguments]

    def _left(self) -> float:
        return max(0.05, self._deadline - time.monotonic())


def _environment() -> dict[str, str]:
    # With these variables, set by a hook or a wrapper, git would describe another repository.
    foreign = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    ours = {name: value for name, value in os.environ.items() if name not in foreign}
    # No protocol: a partial clone would fetch missing objects, by the program that its configuration names.
    no_fetch = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
    return {**ours, **no_fetch, "LC_ALL": "C"}


def _read(process: subprocess.Popen[bytes], limit: int, timeout_seconds: float) -> bytes:
    """Read up to a number of bytes of a process' output.

    Raises:
        subprocess.TimeoutExpired: the process has not ended in time.
    """
    assert process.stdout is not None  # noqa: S101  (for the type checker)
    deadline = time.monotonic() + timeout_seconds
    data = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(data) < limit:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise subprocess.TimeoutExpired("git diff", timeout_seconds)
            chunk = os.read(process.stdout.fileno(), min(limit - len(data), 65_536))
            if not chunk:
                break
            data += chunk
    return bytes(data)
