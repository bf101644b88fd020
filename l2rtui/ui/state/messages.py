"""Messages from workers and screens to the app. They hold frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from l2rtui.domain.metrics import RunMetrics
    from l2rtui.domain.runstatus import LearningState
    from l2rtui.domain.snapshot import ClusterSnapshot


@dataclass
class SnapshotArrived(Message):
    """A new snapshot; ``error`` is the reason why the watch is down, empty while it works.

    Attributes:
        connection: Number of the connection that it comes from, counted by the app.
    """

    snapshot: ClusterSnapshot
    error: str = ""
    connection: int = 0

    def can_replace(self, message: Message) -> bool:
        """Replace an older snapshot that is still in the queue: a burst of changes is shown once."""
        return isinstance(message, SnapshotArrived)


@dataclass
class MetricsArrived(Message):
    """Learners have written metric records: the newest metrics by uid of the run."""

    metrics: Mapping[str, RunMetrics]


@dataclass
class LearningChanged(Message):
    """The learning of some run has a new state or reason: the states by uid of the run."""

    states: Mapping[str, LearningState]

    def can_replace(self, message: Message) -> bool:
        """Replace an older message that is still in the queue."""
        return isinstance(message, LearningChanged)


@dataclass
class ContextRequested(Message):
    """The user has asked for another context or other namespaces; None takes these from the settings."""

    context: str
    namespaces: tuple[str, ...] | None = None


class RefreshRequested(Message):
    """The user has asked for a fresh snapshot."""


class LeaveRequested(Message):
    """The user has asked to leave the app."""
