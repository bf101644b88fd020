"""Facts that travel through the app. Each holds frozen values; a newer one takes the place of an older one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from l2rtui.domain.snapshot import ClusterSnapshot
    from l2rtui.services.metrics import RunMetrics


@dataclass
class SnapshotArrived(Message):
    """The cluster looks like this now; ``error`` says why nothing newer comes, empty when all is well."""

    snapshot: ClusterSnapshot
    error: str = ""

    def can_replace(self, message: Message) -> bool:
        """Only the newest snapshot counts."""
        return isinstance(message, SnapshotArrived)


@dataclass
class MetricsArrived(Message):
    """Learners have printed records: the newest numbers by uid of the run."""

    metrics: Mapping[str, RunMetrics]


class LookWanted(Message):
    """Somebody wants a fresh look at the cluster."""


class LeaveWanted(Message):
    """Somebody wants to leave the app."""
