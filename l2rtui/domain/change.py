"""Changes between two snapshots, and the one function that applies them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import NamedTuple, TypeVar, assert_never

from msgspec import Struct

from l2rtui.domain.ledger import Basis
from l2rtui.domain.node import Node, natural_key
from l2rtui.domain.snapshot import ClusterSnapshot, ContextHealth, PodView, RunView

T = TypeVar("T")
_NONE: frozenset[str] = frozenset()


class NodeChanged(Struct, frozen=True):
    """A node is new or differs."""

    node: Node


class NodeGone(Struct, frozen=True):
    """The node with this name is no longer there."""

    name: str


class PodChanged(Struct, frozen=True):
    """A pod is new or differs."""

    pod: PodView


class PodGone(Struct, frozen=True):
    """The pod with this uid is no longer there."""

    uid: str


class RunChanged(Struct, frozen=True):
    """A run is new or differs."""

    run: RunView


class RunGone(Struct, frozen=True):
    """The run with this uid is no longer there."""

    uid: str


class ProblemsChanged(Struct, frozen=True):
    """Parts of the cluster that cannot be read now; replaces the earlier list."""

    problems: tuple[str, ...]


class SilenceChanged(Struct, frozen=True):
    """The backend has stopped responding, or responds again; see ``ClusterSnapshot.silent_since``."""

    since: float | None


class ContextsChanged(Struct, frozen=True):
    """The state of one of several contexts has changed; replaces the earlier list, see
    ``ClusterSnapshot.contexts``.
    """

    contexts: tuple[ContextHealth, ...]


Fact = ProblemsChanged | SilenceChanged | ContextsChanged
Change = NodeChanged | NodeGone | PodChanged | PodGone | RunChanged | RunGone | Fact


def apply(snapshot: ClusterSnapshot, changes: Iterable[Change]) -> ClusterSnapshot:
    """Return the snapshot after the changes; the same object when nothing differs."""
    nodes, pods, runs = _copied(snapshot.nodes), _copied(snapshot.pods), _copied(snapshot.runs)
    facts = _Facts.of(snapshot)
    touched: set[str] = set()
    # An empty snapshot has no ledger worth reusing: the first batch builds all of it.
    basis = snapshot.next_basis if snapshot.pods else None
    is_same = True
    for change in changes:
        match change:
            case NodeChanged(node):
                touched |= _touched_by_node(basis, nodes.get(node.name), node)
                nodes[node.name] = node
            case NodeGone(name):
                nodes.pop(name, None)
                touched.add(name)
            case PodChanged(pod):
                old = pods.get(pod.uid)
                touched |= _touched_by_pod(basis, old, pod)
                pods[pod.uid] = pod
                # Only the changed pod is compared: comparing all pods of a large cluster would cost more than
                # everything else.
                is_same &= old is not None and old == pod
            case PodGone(uid):
                gone = pods.pop(uid, None)
                touched |= _touched_by_pod(basis, gone, None)
                is_same &= gone is None
            case RunChanged(run):
                runs[run.uid] = run
            case RunGone(uid):
                runs.pop(uid, None)
            case ProblemsChanged() | SilenceChanged() | ContextsChanged():
                facts = facts.after(change)
            case _:  # pragma: no cover  (the type checker proves that there is no other change)
                assert_never(change)
    before = (snapshot.nodes, snapshot.runs, _Facts.of(snapshot))
    if is_same and (nodes, runs, facts) == before:
        return snapshot
    return ClusterSnapshot(
        MappingProxyType(_ordered(nodes, snapshot)),
        MappingProxyType(pods),
        MappingProxyType(runs),
        snapshot.revision + 1,
        facts.problems,
        facts.silent_since,
        facts.contexts,
        basis.touching(touched) if basis is not None else None,
    )


class _Facts(NamedTuple):
    """Facts of a snapshot that are not rows."""

    problems: tuple[str, ...]
    silent_since: float | None
    contexts: tuple[ContextHealth, ...]

    @classmethod
    def of(cls, snapshot: ClusterSnapshot) -> _Facts:
        return cls(snapshot.problems, snapshot.silent_since, snapshot.contexts)

    def after(self, change: Fact) -> _Facts:
        if isinstance(change, ProblemsChanged):
            return self._replace(problems=change.problems)
        if isinstance(change, ContextsChanged):
            return self._replace(contexts=change.contexts)
        return self._replace(silent_since=change.since)


def _copied(rows: Mapping[str, T]) -> dict[str, T]:
    # dict(proxy) copies item by item through __getitem__; proxy.copy() is one C-level copy of the dict behind it.
    return rows.copy() if isinstance(rows, MappingProxyType) else dict(rows)


def _touched_by_node(basis: Basis | None, old: Node | None, new: Node) -> AbstractSet[str]:
    """Names of the nodes whose ledger a change of a node invalidates.

    CPU and memory in use change often and move no slot, so they are not compared.
    """
    if basis is None:
        return _NONE  # without a basis the whole ledger is rebuilt
    before, now = (
        (
            node.devices,
            node.ready,
            node.is_schedulable,
            node.is_use_known,
            node.labels,
            node.taints,
            node.reservations,
        )
        if node
        else None
        for node in (old, new)
    )
    return set() if before == now else {new.name}


def _touched_by_pod(basis: Basis | None, old: PodView | None, new: PodView | None) -> AbstractSet[str]:
    """Names of the nodes whose ledger a change of a pod invalidates; most changes move no slot."""
    if basis is None:
        return _NONE
    before, now = (holder.holder if holder is not None else None for holder in (old, new))
    return set() if before == now else {holder.node for holder in (before, now) if holder is not None}


def _ordered(nodes: dict[str, Node], before: ClusterSnapshot) -> dict[str, Node]:
    """The nodes in natural order of their names."""
    # Key views compare as sets. The order of `before` was established when its nodes came, and copies keep it.
    if nodes.keys() == before.nodes.keys():
        return nodes
    return {name: nodes[name] for name in sorted(nodes, key=natural_key)}


def difference(old: ClusterSnapshot, new: ClusterSnapshot) -> tuple[Change, ...]:
    """The changes that lead from one snapshot to another; for backends that poll instead of watching."""
    changes: list[Change] = []
    # A run is added before its pods and removed after them: a screen that applies the changes one by one never
    # shows a pod without its run.
    changes.extend(NodeChanged(node) for name, node in new.nodes.items() if old.nodes.get(name) != node)
    changes.extend(NodeGone(name) for name in old.nodes if name not in new.nodes)
    changes.extend(RunChanged(run) for uid, run in new.runs.items() if old.runs.get(uid) != run)
    changes.extend(PodChanged(pod) for uid, pod in new.pods.items() if old.pods.get(uid) != pod)
    changes.extend(PodGone(uid) for uid in old.pods if uid not in new.pods)
    changes.extend(RunGone(uid) for uid in old.runs if uid not in new.runs)
    if old.problems != new.problems:
        changes.append(ProblemsChanged(new.problems))
    if old.silent_since != new.silent_since:
        changes.append(SilenceChanged(new.silent_since))
    if old.contexts != new.contexts:
        changes.append(ContextsChanged(new.contexts))
    return tuple(changes)
