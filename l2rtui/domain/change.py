"""Changes between two snapshots, and the one function that applies them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar, assert_never

from l2rtui.domain.ledger import Basis
from l2rtui.domain.node import Node, natural_key
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView

T = TypeVar("T")
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A node is new or differs."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeGone:
    """The node with this name is no longer there."""

    name: str


@dataclass(frozen=True, slots=True)
class PodChanged:
    """A pod is new or differs."""

    pod: PodView


@dataclass(frozen=True, slots=True)
class PodGone:
    """The pod with this uid is no longer there."""

    uid: str


@dataclass(frozen=True, slots=True)
class RunChanged:
    """A run is new or differs."""

    run: RunView


@dataclass(frozen=True, slots=True)
class RunGone:
    """The run with this uid is no longer there."""

    uid: str


@dataclass(frozen=True, slots=True)
class ProblemsChanged:
    """What cannot be read now; replaces what could not be read before."""

    problems: tuple[str, ...]


Change = NodeChanged | NodeGone | PodChanged | PodGone | RunChanged | RunGone | ProblemsChanged


def apply(snapshot: ClusterSnapshot, changes: Iterable[Change]) -> ClusterSnapshot:
    """Give the snapshot after the changes; the same object when nothing differs."""
    nodes, pods, runs = _copied(snapshot.nodes), _copied(snapshot.pods), _copied(snapshot.runs)
    problems = snapshot.problems
    touched: set[str] = set()
    basis = snapshot.next_basis if snapshot.pods else None  # of nothing nothing can be kept
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
                is_same &= (
                    old is not None and old == pod
                )  # comparing all pods of a large cluster would cost more than all the rest
            case PodGone(uid):
                gone = pods.pop(uid, None)
                touched |= _touched_by_pod(basis, gone, None)
                is_same &= gone is None
            case RunChanged(run):
                runs[run.uid] = run
            case RunGone(uid):
                runs.pop(uid, None)
            case ProblemsChanged(new):
                problems = new
            case _:  # pragma: no cover  (the type checker proves that there is no other change)
                assert_never(change)
    if is_same and (nodes, runs, problems) == (snapshot.nodes, snapshot.runs, snapshot.problems):
        return snapshot
    return ClusterSnapshot(
        MappingProxyType(_ordered(nodes, snapshot)),
        MappingProxyType(pods),
        MappingProxyType(runs),
        snapshot.revision + 1,
        problems,
        basis.touching(touched) if basis is not None else None,
    )


def _copied(rows: Mapping[str, T]) -> dict[str, T]:
    """The same rows, to be changed; of a read-only view, dict() would copy one row after the other."""
    return rows.copy() if isinstance(rows, MappingProxyType) else dict(rows)


def _touched_by_node(basis: Basis | None, old: Node | None, new: Node) -> AbstractSet[str]:
    """Whose ledger a change of a node touches: CPU and memory in use change often, and move no slot."""
    if basis is None:
        return _NONE  # the whole ledger will be worked out anew
    is_same = old is not None and (old.gpus, old.ready, old.is_schedulable, old.is_use_known) == (
        new.gpus,
        new.ready,
        new.is_schedulable,
        new.is_use_known,
    )
    return set() if is_same else {new.name}


def _touched_by_pod(basis: Basis | None, old: PodView | None, new: PodView | None) -> AbstractSet[str]:
    """Nodes whose ledger a change of a pod touches; most changes move no slot."""
    if basis is None:
        return _NONE
    before, now = (one.holder if one is not None else None for one in (old, new))
    return set() if before == now else {one.node for one in (before, now) if one is not None}


def _ordered(nodes: dict[str, Node], before: ClusterSnapshot) -> dict[str, Node]:
    """They come in any order, and people look for them in one."""
    if nodes.keys() == before.nodes.keys():
        return nodes
    return {name: nodes[name] for name in sorted(nodes, key=natural_key)}


def difference(old: ClusterSnapshot, new: ClusterSnapshot) -> tuple[Change, ...]:
    """The changes that lead from one snapshot to another; for backends that look instead of being told."""
    changes: list[Change] = []
    changes.extend(NodeChanged(node) for name, node in new.nodes.items() if old.nodes.get(name) != node)
    changes.extend(NodeGone(name) for name in old.nodes if name not in new.nodes)
    changes.extend(RunChanged(run) for uid, run in new.runs.items() if old.runs.get(uid) != run)
    changes.extend(PodChanged(pod) for uid, pod in new.pods.items() if old.pods.get(uid) != pod)
    changes.extend(PodGone(uid) for uid in old.pods if uid not in new.pods)
    changes.extend(RunGone(uid) for uid in old.runs if uid not in new.runs)
    if old.problems != new.problems:
        changes.append(ProblemsChanged(new.problems))
    return tuple(changes)
