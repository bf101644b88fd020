"""Rows of one of several contexts: every name and uid starts with the context, ``lab:n1``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never, overload

from l2rtui.domain.change import (
    Change,
    ContextsChanged,
    NodeChanged,
    NodeGone,
    PodChanged,
    PodGone,
    ProblemsChanged,
    RunChanged,
    RunGone,
    SilenceChanged,
)
from l2rtui.domain.node import Node
from l2rtui.domain.receipt import Leak, Receipt
from l2rtui.domain.snapshot import PodView, RunView


def short_names(contexts: Sequence[str]) -> tuple[str, ...]:
    """Return a short name for each context: the part after its last slash (in an ARN, the cluster) if that is
    unique.
    """
    # A slash would end the name of a node in NODE/GPU.SLOT, and the name of a run in RUN/SET.
    last = [context.rpartition("/")[2] for context in contexts]
    full = [context.replace("/", "_") for context in contexts]
    return tuple(
        short if short and last.count(short) == 1 else long for short, long in zip(last, full, strict=True)
    )


class QualifiedRows:
    """Adds the context name to the rows of one context, and removes it again.

    Args:
        context: Name of the context, without a slash.
    """

    def __init__(self, context: str) -> None:
        self.context = context
        self.prefix = f"{context}:"

    def change(self, change: Change) -> Change | None:
        """Return a change with a qualified row; None for facts of the whole context."""
        match change:
            case NodeChanged(node):
                return NodeChanged(self.node(node))
            case NodeGone(name):
                return NodeGone(self._named(name))
            case PodChanged(pod):
                return PodChanged(self.pod(pod))
            case PodGone(uid):
                return PodGone(self._named(uid))
            case RunChanged(run):
                return RunChanged(self.run(run))
            case RunGone(uid):
                return RunGone(self._named(uid))
            case ProblemsChanged() | SilenceChanged() | ContextsChanged():
                return None
            case _:  # pragma: no cover  (the type checker proves that there is no other change)
                assert_never(change)

    def node(self, node: Node) -> Node:
        """Return a node, and its devices, under its qualified name."""
        return _renamed(node, self._named(node.name), self.context)

    def pod(self, pod: PodView) -> PodView:
        """Return a pod under its qualified name. The uid is qualified too, as two contexts may refer to one
        cluster.
        """
        return replace(
            pod,
            uid=self._named(pod.uid),
            name=self._named(pod.name),
            node=self._named(pod.node),
            run=self._named(pod.run),
            context=self.context,
        )

    def run(self, run: RunView) -> RunView:
        """Return a run under its qualified name; its experiment may have seeds in several contexts."""
        return replace(run, uid=self._named(run.uid), name=self._named(run.name), context=self.context)

    def leak(self, leak: Leak) -> Leak:
        """Return a leaked object under its qualified name."""
        of = None if leak.of is None else self.run(leak.of)
        return replace(leak, run=self._named(leak.run), name=self._named(leak.name), of=of)

    def receipt(self, receipt: Receipt) -> Receipt:
        """Return the result of a destroy under the qualified name of the run."""
        return replace(receipt, run=self._named(receipt.run))

    @overload
    def original(self, row: PodView) -> PodView: ...
    @overload
    def original(self, row: RunView) -> RunView: ...
    @overload
    def original(self, row: Node) -> Node: ...

    def original(self, row: PodView | RunView | Node) -> PodView | RunView | Node:
        """Return the row as its own context names it."""
        name = self._own(row.name)
        if isinstance(row, Node):
            return _renamed(row, name, "")
        if isinstance(row, RunView):
            return replace(row, uid=self._own(row.uid), name=name, context="")
        node, run = self._own(row.node), self._own(row.run)
        return replace(row, uid=self._own(row.uid), name=name, node=node, run=run, context="")

    def _named(self, name: str) -> str:
        return f"{self.prefix}{name}" if name else ""  # a waiting pod has no node, a foreign pod has no run

    def _own(self, name: str) -> str:
        return name.removeprefix(self.prefix)


def _renamed(node: Node, name: str, context: str) -> Node:
    gpus = tuple(replace(gpu, node=name) for gpu in node.gpus)
    cpu = replace(node.cpu, node=name) if node.cpu is not None else None
    return replace(node, name=name, gpus=gpus, cpu=cpu, context=context)
