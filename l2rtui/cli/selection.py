"""Selection among the objects of a listing: names, labels, owner, state, run, node, filter.

A full name that matches nothing is an error, as a typo must not look like an empty cluster. A pattern or an option
that matches nothing gives an empty list, and a sentence on stderr that lists the available values.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Sequence

from l2rtui.cli.listings import Listing
from l2rtui.cli.output import cell_text
from l2rtui.cli.targets import listed, past_run
from l2rtui.config import user_name
from l2rtui.domain.quantity import counted
from l2rtui.domain.selection.filter_language import (
    EXPERIMENT_WORDS,
    KINDS,
    compile_filter,
    is_pattern,
    matches_any,
    misread_columns,
)
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.errors import NotFoundError, UsageError, nearest
from l2rtui.tables.column import Document, T, View


class RowSelection:
    """Objects of one listing selected by a command's arguments."""

    def __init__(self, args: Namespace, listing: Listing) -> None:
        self._listing = listing
        self._names = [_bare(name, listing) for name in args.names]
        self._labels = getattr(args, "selector", [])
        owners = _parts(getattr(args, "owner", ""))
        self._options = {
            "owner": [*owners, user_name()] if getattr(args, "mine", False) else owners,
            "state": [part.casefold() for part in _parts(getattr(args, "state", ""))],
            "run": _parts(getattr(args, "run", "")),
            "node": _parts(getattr(args, "node", "")),
        }

    def choose(
        self, snapshot: ClusterSnapshot, documents: Sequence[Document], *, skip: Collection[str] = ()
    ) -> list[Document]:
        """Return the documents that match every argument.

        Args:
            skip: Options to ignore.
        """
        tests = [test for name, test in self._tests(snapshot) if name not in skip]
        return [document for document in documents if all(test(document) for test in tests)]

    def by_state(self, documents: Iterable[Document]) -> list[Document]:
        """Return the documents in a named state; all if no state was named."""
        if not self._options["state"]:
            return list(documents)
        return [document for document in documents if self._is_in(document)]

    def require_names(self, snapshot: ClusterSnapshot, documents: Sequence[Document]) -> None:
        """Refuse a full name that does not exist.

        Raises:
            NotFoundError: suggests similar names.
        """
        if not self._names:
            return
        names_of, key = self._listing.names(snapshot), self._listing.key
        there = dict.fromkeys(name for document in documents for name in names_of(document))
        keys = {document[key] for document in documents}
        for name in self._names:
            if not is_pattern(name) and name not in there and keys.isdisjoint(self._keys(snapshot, [name])):
                noun, names = self._listing.noun, _shown_names(self._listing, documents)
                what = f"the {noun}s are {names}" if names else f"there are no {noun}s"
                raise NotFoundError(
                    f"There is no {noun} {name!r}: {what}.", past_run(name) or nearest(name, there, most=2)
                )

    def why_empty(self, snapshot: ClusterSnapshot, documents: Sequence[Document]) -> str:
        """Return a sentence about the arguments that match nothing; empty if there are no objects at all."""
        if not documents:
            return ""
        noun = self._listing.noun
        for option, test in self._tests(snapshot):
            if any(map(test, documents)):
                continue
            there = sorted(dict.fromkeys(filter(None, self._values(option, snapshot, documents))))
            what = f": the {option}s are {listed(there)}" if there else ""
            return f"None of {counted(len(documents), noun)} matches by {option}{what}."
        return f"None of {counted(len(documents), noun)} matches all of these arguments."

    def _tests(self, snapshot: ClusterSnapshot) -> Iterable[tuple[str, Callable[[Document], bool]]]:
        listing = self._listing
        if self._names:
            names_of, keys = listing.names(snapshot), self._keys(snapshot, self._names)
            # An exact name selects only its object, not the runs of an experiment with the same name.
            words = [name for name in self._names if listing.select is None or is_pattern(name)]
            yield "name", lambda document: document[listing.key] in keys or matches_any(names_of(document), words)
        if self._labels:
            yield "label", lambda document: all(test(listing.labels(document, snapshot)) for test in self._labels)
        if owners := self._options["owner"]:
            yield "owner", lambda document: matches_any((document["owner"] or "",), owners)
        if runs := self._options["run"]:
            chosen = {run.name for word in runs for run in _runs_meant(snapshot, word)}.union(runs)
            yield "run", lambda document: (document["run"] or "") in chosen
        if nodes := self._options["node"]:
            yield "node", lambda document: matches_any(listing.nodes(document, snapshot), nodes)
        if self._options["state"]:
            yield "state", self._is_in

    def _keys(self, snapshot: ClusterSnapshot, names: Iterable[str]) -> set[str]:
        """Return the keys of the objects that exact names, and patterns of experiments, select."""
        select = self._listing.select
        if select is None:
            return set()
        return {
            key for name in names for word in _experiments_meant(snapshot, name) for key in select(snapshot, word)
        }

    def _is_in(self, document: Document) -> bool:
        return matches_any((state.casefold() for state in self._listing.states(document)), self._options["state"])

    def _values(self, option: str, snapshot: ClusterSnapshot, documents: Sequence[Document]) -> Iterable[str]:
        """Return the available values of an option."""
        for document in documents:
            match option:
                case "name":
                    yield self._listing.view.name_of(document)
                case "state":
                    yield from self._listing.states(document)
                case "node":
                    yield from self._listing.nodes(document, snapshot)
                case "owner" | "run":
                    yield document[option] or ""


def filtered(text: str, view: View[T], items: Sequence[T]) -> list[T]:
    """Return the objects whose row passes a filter, in the language of the app's tables.

    Raises:
        UsageError: the filter uses an unknown column.
    """
    columns = [*(column_name(column.header) for column in view.of_cli), *view.hidden_names]
    if problem := misread_columns(text, columns):
        raise UsageError(f"--filter {text!r}: {problem}")
    test = compile_filter(text, columns)
    if test is None:
        return list(items)

    def passes(item: T) -> bool:
        cells = [cell_text(column.cell(item)).casefold() for column in view.of_cli]
        everything = " ".join(cells)
        if view.hidden is not None:
            cells += map(str.casefold, view.hidden(item))
        return test(lambda number: cells[number], everything)

    return [item for item in items if passes(item)]


def column_name(header: str) -> str:
    """Return the name of a column in a filter: its header in lower case, ``gpu_memory`` for ``GPU MEMORY``."""
    return header.casefold().replace(" ", "_").replace("%", "")


def _bare(name: str, listing: Listing) -> str:
    """Return a name without kubectl's kind before it: ``pod/NAME`` in a list of pods."""
    kind, _, rest = name.partition("/")
    return rest if rest and KINDS.get(kind) == f"{listing.noun}s" else name


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _runs_meant(snapshot: ClusterSnapshot, word: str) -> Iterable[RunView]:
    if is_pattern(word) and word.partition("/")[0] not in EXPERIMENT_WORDS:
        return (run for run in snapshot.runs.values() if matches_any((run.name, run.experiment), (word,)))
    return (run for name in _experiments_meant(snapshot, word) for run in snapshot.runs_matching(name))


def _experiments_meant(snapshot: ClusterSnapshot, word: str) -> Iterable[str]:
    """Return ``experiment/NAME`` of each experiment that ``experiment/PATTERN`` matches; an exact name
    unchanged.
    """
    if not is_pattern(word):
        return (word,)
    head, _, rest = word.partition("/")
    pattern, slash, parts = rest.partition("/")
    experiments = {run.experiment for run in snapshot.runs.values()} if head in EXPERIMENT_WORDS else set()
    return (f"experiment/{name}{slash}{parts}" for name in experiments if matches_any((name,), (pattern,)))


def _shown_names(listing: Listing, documents: Sequence[Document]) -> str:
    return listed(listing.view.name_of(document) for document in documents)
