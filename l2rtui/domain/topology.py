"""Topology of a run with a learner: its peers, the addresses it listens on, and the connected peers. Pure.

The learner's own records name its peers. They are compared with the pods that should exist. Without a fresh record,
the connection state of all peers is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from l2rtui.domain.metrics import ExchangeFigures, RunMetrics, is_old
from l2rtui.domain.quantity import format_rate
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.workload import Role

_PEER_ROLES: Final = (Role.WORKER, Role.EVALUATOR)


class PeerLink(Struct, frozen=True):
    """Connection between a learner and one of its peers.

    Attributes:
        role: None for a peer that is not a pod of the run, such as a worker that was started by hand.
        ip: Address of its pod; empty if it has no address of its own, as on this machine.
        is_connected: None if no fresh record of the learner says so.
        state: Sentence on its pod; empty if the pod is running.
    """

    pod: str
    role: Role | None = None
    node: str = ""
    ip: str = ""
    is_connected: bool | None = None
    state: str = ""

    @property
    def word(self) -> str:
        """State of the connection, for display."""
        match self.is_connected:
            case None:
                return "unknown"
            case True:
                return "connected"
            case _:
                return "not connected"


class Topology(Struct, frozen=True):
    """Learner of a run and its peers.

    Attributes:
        listens: Addresses at which peers reach it, data and model socket; empty before its first record.
        time: Time of the record that names the peers, in seconds since the epoch; 0 without a record.
        exchange: Figures of its newest record; None without a fresh one.
    """

    learner: str
    node: str
    ip: str
    listens: tuple[str, ...]
    links: tuple[PeerLink, ...]
    time: float = 0.0
    exchange: ExchangeFigures | None = None


def topology(pods: Sequence[PodView], metrics: RunMetrics | None, now: float) -> Topology | None:
    """Return the topology of a run; None if it has no learner.

    Args:
        pods: Pods of the run.
        metrics: Newest metrics of its learner.
        now: Seconds since the epoch.
    """
    learner = next((pod for pod in pods if pod.role is Role.LEARNER), None)
    if learner is None:
        return None
    is_fresh = (
        metrics is not None and learner.ready and not is_old(max(0.0, now - metrics.time), metrics.interval_seconds)
    )
    figures = metrics.exchange if metrics is not None else ExchangeFigures()
    peers = figures.peers if is_fresh else None
    links = [_link(pod, peers) for pod in pods if pod.role in _PEER_ROLES]
    names = {pod.name for pod in pods}
    links += [PeerLink(name, is_connected=True) for name in peers or () if name not in names]
    time = metrics.time if metrics is not None and figures.peers is not None else 0.0
    exchange = figures if is_fresh and figures.is_recorded else None
    return Topology(learner.name, learner.node, learner.ip, figures.listens, tuple(links), time, exchange)


def _link(pod: PodView, peers: Sequence[str] | None) -> PeerLink:
    is_connected = None if peers is None else pod.name in peers
    return PeerLink(pod.name, pod.role, pod.node, pod.ip, is_connected, "" if pod.ready else pod.status.sentence)


def topology_lines(view: Topology) -> tuple[str, ...]:
    """Return the topology as text: the learner, a line for each peer, then the figures of the exchange."""
    where = " ".join(filter(None, (view.node, view.ip)))
    listens = f"listens at {' and '.join(view.listens)}" if view.listens else "has not said where it listens"
    lines = [f"Topology: {view.learner}{f' ({where})' if where else ''} {listens}"]
    width = max((len(link.pod) for link in view.links), default=0)
    for link in view.links:
        role = str(link.role) if link.role else "no pod of this run"
        facts = (f"{link.pod:<{width}}", f"{role:<9}", f"{link.word:<13}", link.node, link.ip, link.state)
        lines.append("  " + "  ".join(filter(None, facts)).rstrip())
    if not view.links:
        lines.append("  no peers")
    if view.exchange is not None:
        lines.append(f"Exchange: {exchange_text(view.exchange)}")
    return tuple(lines)


def exchange_text(figures: ExchangeFigures) -> str:
    """Return the exchange figures as one line for display."""
    return (
        f"in {figures.messages_in:,.0f} messages/s {format_rate(figures.bytes_in)}, "
        f"out {figures.messages_out:,.0f} messages/s {format_rate(figures.bytes_out)}, "
        f"{figures.replay:,} in store, {figures.inflight:,} in flight, {figures.stale:,} segments dropped as stale"
    )
