"""State of a rendezvous and its transitions: who trains in which round. Pure: no clock, no I/O, no torch.

A round gathers nodes, then it is complete. A node that joins, leaves or is lost starts the next round. The nodes of
the previous round are *expected* there until they join it or are lost themselves: they must first end their
processes, and a round that did not wait for them would be over as soon as they joined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from runtime.base import bounded_json

FINISHED: Final = "finished"
FAILED: Final = "failed"
"""Ways in which a job ends."""


class StateError(ValueError):
    """The state at the rendezvous cannot be read."""


def state_key(run_id: str) -> str:
    """Return the key of a job's state."""
    return f"l2r/elastic/{run_id}"


def decode_state(text: str) -> RoundState:
    """Return the state encoded in a text. Raises StateError."""
    try:
        return bounded_json.decode(text, RoundState) if text else RoundState()
    except ValueError as error:
        raise StateError(f"the state of the rendezvous cannot be read: {error}") from error


class RendezvousNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One node at the rendezvous.

    Attributes:
        id: Identifies the node's process; a replacement has another id.
        name: For display. address, port: where this node's first process listens if it gets rank 0.
        processes: Number of training processes on this node.
        since: The node's first complete round, or its fixed place; nodes with the lowest get the lowest ranks.
        beat: Increases while the node lives. A counter, because the nodes' clocks differ.
    """

    id: str
    name: str
    address: str
    port: int
    processes: int
    since: int = -1
    beat: int = 0


Members = tuple[RendezvousNode, ...]


class RoundState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that the nodes of a job share.

    Attributes:
        version: Counts changes; a lower value than before means that the rendezvous was restarted.
        members: Nodes of the round; sorted by rank once it is complete.
        expected: Nodes of the previous round that have not joined yet.
        waiting: Nodes without room in the round.
        end: How the job ended; empty while it is running.
    """

    version: int = 0
    round: int = 0
    is_complete: bool = False
    members: Members = ()
    expected: Members = ()
    waiting: Members = ()
    end: str = ""

    def everyone(self) -> Members:
        """Return all nodes."""
        return self.members + self.expected + self.waiting

    def has_member(self, node: str) -> bool:
        """Return whether a node is in the round."""
        return any(member.id == node for member in self.members)

    def is_enough(self, min_nodes: int) -> bool:
        """Return whether the round has enough nodes to start."""
        return not self.is_complete and len(self.members) >= min_nodes and not self.expected


def joined(state: RoundState, node: RendezvousNode, max_nodes: int) -> RoundState:
    """Return the state with a node in the next round, or among the nodes that wait for room.

    If a node of a complete round joins again it has to restart its processes, so all other nodes must too.
    """
    before = next((member for member in state.everyone() if member.id == node.id), None)
    if before is not None:
        node = replace(node, since=before.since, beat=before.beat)
    others = _except(state.members if state.is_complete else state.members + state.expected, {node.id})
    if len(others) >= max_nodes:
        is_there = any(member.id == node.id for member in state.waiting)
        return state if is_there else replace(state, waiting=(*state.waiting, node))
    if state.is_complete:
        state = _next_round(state, others)
    state = _removed(state, {node.id})
    return replace(state, members=(*state.members, node))


def without(state: RoundState, nodes: Collection[str]) -> RoundState:
    """Return the state without nodes that left or were lost; the loss of a node ends a complete round."""
    is_broken = state.is_complete and any(member.id in nodes for member in state.members)
    state = _removed(state, nodes)
    return _next_round(state, state.members) if is_broken else state


def completed(state: RoundState) -> RoundState:
    """Return the state with the gathered nodes in a complete round, sorted by rank."""
    # Oldest first: they have the newest weights, and rank 0, which writes snapshots, changes rarely.
    members = (replace(node, since=state.round if node.since < 0 else node.since) for node in state.members)
    return replace(state, is_complete=True, members=tuple(sorted(members, key=lambda node: (node.since, node.id))))


def with_beat(state: RoundState, node: str) -> RoundState:
    """Return the state with a node's counter incremented; unchanged if the node is no longer in it."""

    def raised(members: Members) -> Members:
        return tuple(replace(member, beat=member.beat + 1) if member.id == node else member for member in members)

    return replace(
        state, members=raised(state.members), expected=raised(state.expected), waiting=raised(state.waiting)
    )


def ended(state: RoundState, word: str) -> RoundState:
    """Return the state with the job's end; if two nodes report an end, the first one counts."""
    return replace(state, end=state.end or word)


def _next_round(state: RoundState, expected: Members) -> RoundState:
    return replace(state, round=state.round + 1, is_complete=False, members=(), expected=expected)


def _removed(state: RoundState, nodes: Collection[str]) -> RoundState:
    return replace(
        state,
        members=_except(state.members, nodes),
        expected=_except(state.expected, nodes),
        waiting=_except(state.waiting, nodes),
    )


def _except(members: Iterable[RendezvousNode], nodes: Collection[str]) -> Members:
    return tuple(member for member in members if member.id not in nodes)


class BeatWatch:
    """Detects the silence of other nodes, from one node's point of view.

    A check counts for at most `longest_seconds`, however long ago the last one was: a node that was itself
    suspended for a minute must not consider all others lost.
    """

    def __init__(self, patience_seconds: float, longest_seconds: float) -> None:
        self._patience, self._longest = patience_seconds, longest_seconds
        self._beats: dict[str, tuple[int, float]] = {}
        self._last_look: float | None = None

    def lost(self, members: Members, own_id: str, now: float) -> frozenset[str]:
        """Return the nodes whose counter has not increased for longer than the patience; `now` is in seconds."""
        elapsed = 0.0 if self._last_look is None else min(now - self._last_look, self._longest)
        self._last_look = now
        beats = {}
        for member in members:
            beat, silent = self._beats.get(member.id, (-1, 0.0))
            beats[member.id] = (member.beat, silent + elapsed if beat == member.beat else 0.0)
        self._beats = beats
        return frozenset(node for node, (_, silent) in beats.items() if silent >= self._patience and node != own_id)
