"""Listings: the documents of each kind, and the names, states and labels that select among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from l2rtui.backends.kubernetes import labels
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.tables import cluster, summaries
from l2rtui.tables.column import Document, View
from l2rtui.tables.documents import node_document, pod_document, run_document, slot_document


class Listing(Struct, frozen=True):
    """One kind of objects that a verb lists.

    Attributes:
        noun: Singular, for sentences.
        key: Field that identifies an object while it exists.
        documents: All objects of a snapshot, in the order of the list.
        names: Names that select a document of a snapshot.
        states: States of a document, in the form of ``--state``.
        nodes: Nodes of a document. labels: labels that ``-l`` tests.
        volatile: Fields that differ each time; a change only of these is not reported.
        select: Returns the keys of the objects that an exact name selects; None means by ``names``.
    """

    noun: str
    view: View
    key: str
    documents: Callable[[ClusterSnapshot], list[Document]]
    names: Callable[[ClusterSnapshot], Callable[[Document], Iterable[str]]]
    states: Callable[[Document], Iterable[str]]
    nodes: Callable[[Document, ClusterSnapshot], Iterable[str]]
    labels: Callable[[Document, ClusterSnapshot], Mapping[str, str]]
    volatile: frozenset[str] = frozenset()
    select: Callable[[ClusterSnapshot, str], Iterable[str]] | None = None


def _own_node(document: Document, _: ClusterSnapshot) -> Iterable[str]:
    return (document["node"] or "",)


def _own_labels(document: Document, _: ClusterSnapshot) -> Mapping[str, str]:
    labels: Mapping[str, str] = document["labels"]
    return labels


# --- nodes -----------------------------------------------------------------------------------------------------
def _node_documents(snapshot: ClusterSnapshot) -> list[Document]:
    nodes = snapshot.nodes.values()
    return [node_document(node, snapshot.ledger, snapshot.num_pods_on(node)) for node in nodes]


def _node_states(document: Document) -> Iterable[str]:
    yield "ready" if document["ready"] else "notready"
    if not document["schedulable"]:
        yield "cordoned"
    if not document["use_known"]:
        yield "unknown"


def _node_names(_: ClusterSnapshot) -> Callable[[Document], Iterable[str]]:
    return lambda document: (document["node"],)


NODES = Listing(
    "node", cluster.NODES, "node", _node_documents, _node_names, _node_states, _own_node, _own_labels
)  # fmt: skip


# --- slots -----------------------------------------------------------------------------------------------------
def _slot_documents(snapshot: ClusterSnapshot) -> list[Document]:
    nodes, ledger = snapshot.nodes, snapshot.ledger
    free = Counter((slot.node, slot.gpu) for slot in ledger.free())
    return [
        slot_document(
            slot,
            nodes[slot.id.node],
            ledger.mismatches.get(slot.pod_uid, ()),
            None if slot.is_cpu else free[slot.id.node, slot.id.gpu],
        )
        for slot in ledger.slots.values()
    ]


def _slot_names(_: ClusterSnapshot) -> Callable[[Document], Iterable[str]]:
    """The slot itself, its device and its node, in the form of ``--on``."""
    return lambda document: (document["id"], document["id"].rpartition(".")[0], document["node"])


def _labels_of_node(document: Document, snapshot: ClusterSnapshot) -> Mapping[str, str]:
    return dict(snapshot.nodes[document["node"]].labels)


SLOTS = Listing(
    "slot",
    cluster.SLOTS,
    "id",
    _slot_documents,
    _slot_names,
    lambda document: (document["state"],),
    _own_node,
    _labels_of_node,
)


# --- pods ------------------------------------------------------------------------------------------------------
def _pod_documents(snapshot: ClusterSnapshot) -> list[Document]:
    """Documents of the pods, grouped by run."""
    pods = sorted(snapshot.pods.values(), key=lambda pod: (pod.run == "", pod.run))
    runs = dict.fromkeys(pod.run for pod in pods if pod.run)
    ordered = [*(pod for run in runs for pod in snapshot.pods_of(run)), *(pod for pod in pods if not pod.run)]
    mismatches = snapshot.ledger.mismatches
    return [pod_document(pod, mismatches.get(pod.uid, ()), snapshot.gpu_shares(pod)) for pod in ordered]


def _pod_names(snapshot: ClusterSnapshot) -> Callable[[Document], Iterable[str]]:
    """The name of a pod, and ``RUN``, ``RUN/SET`` and ``RUN/SET/INDEX`` of its run and experiment."""
    # Once for all pods: a search among the runs for each of ten thousand pods would take longer than everything
    # else.
    experiments = {run.name: run.experiment for run in snapshot.runs.values()}

    def names(document: Document) -> Iterable[str]:
        yield document["pod"]
        if run := document["run"]:
            for head in dict.fromkeys((run, experiments.get(run, run))):
                yield head
                yield f"{head}/{document['set']}"
                yield f"{head}/{document['set']}/{document['index']}"

    return names


def _pod_states(document: Document) -> Iterable[str]:
    yield from (document["status"], document["phase"])
    if document["level"] == "bad":
        yield "failing"


PODS = Listing(
    "pod",
    cluster.PODS,
    "uid",
    _pod_documents,
    _pod_names,
    _pod_states,
    _own_node,
    _own_labels,
    select=lambda snapshot, name: [pod.uid for pod in snapshot.select(name)],
)


# --- runs ------------------------------------------------------------------------------------------------------
def _run_documents(snapshot: ClusterSnapshot) -> list[Document]:
    """Documents of the runs with learning states derived only from their pods: no log is read."""
    from l2rtui.domain.runstatus import NO_REPORTS, learning_state

    runs = sorted(snapshot.runs.values(), key=lambda run: (run.experiment, run.seed, run.name))
    states = {run.uid: learning_state(run, snapshot.pods_of(run.name), NO_REPORTS, run.created) for run in runs}
    return [run_document(run, snapshot, states[run.uid]) for run in runs]


def _nodes_of_run(document: Document, snapshot: ClusterSnapshot) -> Iterable[str]:
    return {pod.node for pod in snapshot.pods_of(document["run"])}


RUNS = Listing(
    "run",
    cluster.RUNS,
    "uid",
    _run_documents,
    lambda _: lambda document: (document["run"], document["experiment"]),
    lambda document: (document["state"], document["learning"]),
    _nodes_of_run,
    _own_labels,
    frozenset({"learning_since", "learning_reason"}),
    select=lambda snapshot, name: [run.uid for run in snapshot.runs_matching(name)],
)


# --- experiments -----------------------------------------------------------------------------------------------
def _experiment_documents(snapshot: ClusterSnapshot) -> list[Document]:
    """Documents of the experiments with learning states derived only from pods: no log is read."""
    from l2rtui.domain.experiments import seed_result, summarize
    from l2rtui.domain.runstatus import NO_REPORTS, learning_state

    runs = snapshot.runs.values()
    states = ((run, learning_state(run, snapshot.pods_of(run.name), NO_REPORTS, run.created)) for run in runs)
    rows = summarize(seed_result(run, state, None) for run, state in states)
    return [summaries.experiment_document(row) for row in rows]


_COUNTED_STATES = ("queued", "live", "stalled", "done", "failed")


EXPERIMENTS = Listing(
    "experiment",
    summaries.EXPERIMENTS,
    "title",
    _experiment_documents,
    lambda _: lambda document: (document["experiment"],),
    lambda document: (state for state in _COUNTED_STATES if document[state]),
    lambda document, snapshot: {
        pod.node
        for run in snapshot.runs.values()
        if (run.experiment, run.place, run.spec_id)
        == (document["experiment"], document["place"], document["spec_id"])
        for pod in snapshot.pods_of(run)
    },
    lambda document, _: {labels.EXPERIMENT: document["experiment"]},
)
