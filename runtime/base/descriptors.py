"""File descriptors of a process: as many as its user may have, with a reserve for files that must be written.

The kernel checks the limit when a descriptor is opened (setrlimit(2), RLIMIT_NOFILE). A server whose connections
use all of them cannot open a file any more, so a few remain above the soft limit: `with_reserve` raises it for one
call.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import time
from _thread import allocate_lock  # small supervisors have this module, and do without `threading`
from collections.abc import Callable
from typing import Final, TypeVar

MOST_DESCRIPTORS: Final = 65_536
RESERVE: Final = 64
"""Descriptors above the soft limit; at most an eighth of a low limit."""
SCARCE_SHARE: Final = 0.8
QUIET_SECONDS: Final = 60.0
PATIENCE_SECONDS: Final = 5.0
"""Patience of what must not be lost: soon, connections that do not join are closed."""
_POLL_SECONDS: Final = 0.02
WARNING_SECONDS: Final = 10.0
"""How long records still show a past scarcity, so that a short one does not fall between two records."""
T = TypeVar("T")
_LOCK: Final = allocate_lock()
"""One thread at a time uses the reserve: the limit is the process's."""
_ceiling = 0
"""Soft limit while the reserve is used; 0 without a reserve."""


def raise_limit(*, has_reserve: bool = False) -> None:
    """Take as many descriptors as this user may have, and set a reserve aside."""
    global _ceiling  # noqa: PLW0603  (the limit is the process's, too)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, max(soft, MOST_DESCRIPTORS))
    reserve = min(RESERVE, most // 8) if has_reserve else 0
    if soft == resource.RLIM_INFINITY:
        return
    with contextlib.suppress(OSError, ValueError):  # macOS refuses more than kern.maxfilesperproc
        resource.setrlimit(resource.RLIMIT_NOFILE, (most - reserve, hard))
        _ceiling = most if reserve else 0


def with_reserve(call: Callable[[], T], *, patience_seconds: float = 0.0) -> T:
    """Return the result of `call`, which opens a file; it may use the reserve if no other descriptor is free.

    Args:
        patience_seconds: Time to wait until a descriptor is free if the reserve is used up, too.
    """
    until = time.monotonic() + patience_seconds
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno != errno.EMFILE or not _ceiling:
                raise
        try:
            return _with_more(call)
        except OSError as error:
            if error.errno != errno.EMFILE or time.monotonic() > until:
                raise
        time.sleep(_POLL_SECONDS)


def _with_more(call: Callable[[], T]) -> T:
    """Raise the limit until `call` finds a descriptor, and lower it again."""
    with _LOCK:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            # By one at a time: connections that wait to be accepted take what they find, and would take all.
            for limit in range(soft + 1, _ceiling + 1):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                try:
                    return call()
                except OSError as error:
                    if error.errno != errno.EMFILE:
                        raise
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def usage() -> tuple[int, int]:
    """Return the number of descriptors in use, and the limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        used = with_reserve(lambda: len(os.listdir("/dev/fd")))  # noqa: PTH208  (no paths: only a count)
    except OSError:
        return limit, limit
    return used - 1, limit  # without the listing's own


class DescriptorWatch:
    """Repeated measurement of this process's descriptors.

    Attributes:
        usage: Number in use and limit at the last measurement.
        is_scarce: Four fifths of the limit were in use.
    """

    def __init__(self) -> None:
        self.usage = 0, 1
        self.is_scarce = False
        self._measured = self._scarce_at = float("-inf")

    def is_due(self, now: float) -> bool:
        """Return True if a second has passed since the last measurement; ten if it takes long."""
        return now - self._measured >= (1.0 if self.usage[0] < 4_096 else 10.0)

    def measure(self, now: float) -> bool:
        """Measure; return True once descriptors have become scarce, and again only after a quiet minute."""
        self._measured = now
        used, limit = self.usage = usage()
        self.is_scarce = used >= SCARCE_SHARE * limit
        if not self.is_scarce:
            return False
        is_new = now - self._scarce_at > QUIET_SECONDS
        self._scarce_at = now
        return is_new

    def record_fields(self) -> dict[str, int]:
        """Return the fields of a metric record: a warning with the numbers while descriptors are scarce."""
        if self._measured - self._scarce_at > WARNING_SECONDS or self._scarce_at == float("-inf"):
            return {}
        return {"descriptors_used": self.usage[0], "descriptors_limit": self.usage[1]}
