"""The node that this process runs on: its name, its boot time, and its memory limit from control groups."""

from __future__ import annotations

import os
import re
from functools import cache

import psutil

from runtime.base.cgroups import memory_limits


@cache
def node_name() -> str:
    """Return the name of this node; see ``dns_label``."""
    return dns_label(os.uname().nodename) or "node"


@cache
def boot_time() -> float:
    """Return the boot time of this machine, in seconds since the epoch.

    Read once: the kernel derives it from the clock, so it changes whenever the clock is set.
    """
    return float(psutil.boot_time())


def dns_label(hostname: str) -> str:
    """Return the short hostname as an RFC 1123 label, as slots and Kubernetes names require; may be empty."""
    name = re.sub(r"[^a-z0-9-]+", "-", hostname.partition(".")[0].lower()).strip("-")
    return name[:63].rstrip("-")


def memory_limit() -> int | None:
    """Return the memory limit of our control group in bytes; None without a limit."""
    return min((group.limit for group in memory_limits()), default=None)
