"""Log of the program itself, through the standard library's ``logging``, for diagnosis.

Modules log to ``logging.getLogger(__name__)``. Nothing is set up on import, and ``--version`` and ``--help`` never
import this. Records are written to ``l2rtui.log`` in the state folder, and to standard error with ``-v`` or
``--debug``; the app uses the terminal and logs only to the file. The journal is separate: it records changes, in
JSON; see ``services.history.journal``.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Final

from l2rtui.config import state_dir
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.secret import redact

FILE_NAME: Final = "l2rtui.log"
MAX_BYTES: Final = 1_000_000
BACKUPS: Final = 3
"""Older files next to the newest, ``l2rtui.log.1`` to ``.3``."""
_FILE_FORMAT: Final = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"
_TERMINAL_FORMAT: Final = "l2rtui: %(levelname)s %(name)s: %(message)s"
_TRACE_MARGIN: Final = "    | "
"""Before each line of a traceback, so that no text in an exception can look like a record."""


class RedactingFilter(logging.Filter):
    """Filter that removes secrets and terminal control characters from a record, including its traceback.

    It belongs on every handler, not on the logger: a logger's filters do not see the records of its children.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite the record in place; always keep it."""
        if record.args is not None:
            record.msg, record.args = sanitize(redact(record.getMessage())), None
        if record.exc_info:
            # Formatters use exc_text if it is set, so no handler formats the exception again.
            record.exc_text = _clean_trace(logging.Formatter().formatException(record.exc_info))
            record.exc_info = None
        return True


class SharedRotatingFileHandler(RotatingFileHandler):
    """Rotating file that several processes of one user may write to, and that never disturbs the program."""

    def _open(self) -> IO[str]:  # type: ignore[override]  # typeshed has TextIOWrapper, which IO[str] is not
        # Private from the first byte, regardless of the umask; O_APPEND keeps lines of two processes intact.
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return open(descriptor, "a", encoding="utf-8", errors="backslashreplace")  # noqa: PTH123  (a descriptor)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to the file that now has the name: another process may have rotated it."""
        if self.stream is not None and not _has_name(self.stream, self.baseFilename):
            self.stream.close()
            self.stream = None  # as its own close() leaves it; it is opened again
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's name)
        """Stay silent: a full disk must not end a command, and a traceback would be drawn over the app."""


class _TerminalHandler(logging.StreamHandler[IO[str]]):
    """Current standard error; a live progress line is cleared first."""

    def emit(self, record: logging.LogRecord) -> None:
        self.setStream(sys.stderr)
        is_live = self.stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        # `cli.output` leaves its progress line without a line end; this clears it, and has no effect on an empty
        # line.
        self.formatter = logging.Formatter("\r\x1b[K" + _TERMINAL_FORMAT if is_live else _TERMINAL_FORMAT)
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's name)
        """Stay silent: stderr is closed."""


def configure(*, is_verbose: bool = False, is_debug: bool = False, is_app: bool = False) -> Path:
    """Set up the handlers of the logger ``l2rtui``, replacing those of an earlier call; return the path of the
    file.

    Args:
        is_verbose: INFO and above are written to standard error. is_debug: DEBUG is written to the file, and to
            standard error.
        is_app: The app uses the terminal: nothing is written to standard error.
    """
    logger = logging.getLogger("l2rtui")
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
        handler.close()
    level = logging.DEBUG if is_debug else logging.INFO
    logger.setLevel(level)
    logger.propagate = False  # the root logger's handlers, if a library set any, would write to the terminal
    path = state_dir() / FILE_NAME
    file = SharedRotatingFileHandler(path, maxBytes=MAX_BYTES, backupCount=BACKUPS, delay=True)
    formatter = logging.Formatter(_FILE_FORMAT)
    formatter.converter = time.gmtime
    formatter.default_time_format = "%Y-%m-%dT%H:%M:%S"
    formatter.default_msec_format = "%s.%03dZ"
    file.setFormatter(formatter)
    handlers: list[logging.Handler] = [file]
    if not is_app and (is_verbose or is_debug):
        handlers.append(_TerminalHandler(sys.stderr))
    for handler in handlers:
        handler.setLevel(level)
        handler.addFilter(RedactingFilter())
        logger.addHandler(handler)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        logger.removeHandler(file)  # a read-only home: commands work anyway
    return path


def _has_name(stream: IO[str], name: str) -> bool:
    """Return True if an open file still has that name."""
    try:
        ours, named = os.fstat(stream.fileno()), Path(name).stat()
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)


def _clean_trace(trace: str) -> str:
    return "\n".join(f"{_TRACE_MARGIN}{sanitize(line)}" for line in redact(trace).split("\n"))
