"""history, diff, sweep and report: past runs, differences, trials, and an experiment as a page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from l2rtui.backends.registry import UNSHARED, chosen_backend
from l2rtui.cli.contexts import contexts_of
from l2rtui.cli.output import cell_text, csv_rows
from l2rtui.cli.session import Session
from l2rtui.config import user_name
from l2rtui.domain.history import ID_CHARS, HistoryEntry, RunOutcome
from l2rtui.domain.quantity import counted, utc
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.secret import redact
from l2rtui.domain.selection.filter_language import compile_filter, is_pattern, matches_any, misread_columns
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, L2RError, NotFoundError, UsageError
from l2rtui.services.history.completion import complete_ended, has_open_runs
from l2rtui.services.history.lookup import bare_experiment, compared, find_entry, find_record, spec_document
from l2rtui.services.history.store import HistoryFilter, HistoryStore
from l2rtui.tables import history as history_tables

_LOOK_SECONDS: Final = 10.0
"""Longest wait of a list for ends of runs that were not recorded yet."""
_MAX_LISTED: Final = 12
_EMPTY: Final = "The history is empty."


async def run_history(session: Session) -> int:
    """List past runs, or perform the action named by the first word on the others."""
    args = session.args
    names = list(args.names)
    if names[:1] == ["show"] and len(names) == 2:
        return await _show(session, names[1])
    if names[:1] == ["rm"] and len(names) > 1:
        return _remove(session, names[1:])
    if names[:1] == ["export"] and args.to:
        return await _export(session, names[1:])
    if names == ["export"] or args.to or args.project:
        raise UsageError(
            "An export needs its tracker, and only an export has one.",
            "`l2rtui history export [NAME…] --to mlflow`, or `l2rtui history -o csv`.",
        )
    await _complete(session)
    entries, number = _selected(session, names), 0
    if session.out.form == "csv":
        for line in csv_rows(map(history_tables.history_document, entries)):
            session.out.text(line)
            number += 1
    else:
        number = session.out.show_rows(history_tables.RUNS, entries)
    if not number:
        session.talk.say("The history has no such run." if _narrows(session) and _has_runs() else _EMPTY)
    return EXIT_DONE


def _selected(session: Session, names: Sequence[str]) -> Iterator[HistoryEntry]:
    """Yield the runs that names and options select, newest first, each as soon as it is read."""
    with HistoryStore() as store:
        if store.problem:
            session.talk.say(store.problem)
        is_chosen = _filter_of(session)
        for entry in _chosen(session, store, names):
            if is_chosen(entry):
                yield entry


async def run_diff(session: Session) -> int:
    """Print the differences of two runs as a unified diff; nothing if they are equal."""
    await _complete(session)
    is_here = _is_here(session)
    with HistoryStore() as store:
        first, second = (find_record(store, word, is_here) for word in (session.args.first, session.args.second))
    rows, patch = compared(first, second)
    if session.out.form in ("json", "yaml"):
        session.out.dump(history_tables.difference_document(first.entry, second.entry, rows, patch))
    elif rows or patch:
        # If both are from one place, that would only make the titles longer.
        places = [
            f", {record.entry.place}" if first.entry.place != second.entry.place else ""
            for record in (first, second)
        ]
        titles = (
            f"{record.entry.run} ({record.entry.run_id[:ID_CHARS]}{place})"
            for record, place in zip((first, second), places, strict=True)
        )
        from l2rtui.domain.history import unified

        for line in unified(rows, patch, *titles):
            session.out.text(line)
    else:
        session.talk.say("They do not differ in spec, code, versions and outcome.")
    return EXIT_DONE


async def run_report(session: Session) -> int:
    """Write the page of an experiment."""
    # Charts and the page itself: no other verb of the history needs them.
    from l2rtui.cli.verbs.curves import write_text
    from l2rtui.domain.workload import name_problem
    from l2rtui.services.history.report import experiment_report
    from l2rtui.services.history.report_page import page_text

    name = session.args.experiment
    path = session.args.out or f"{bare_experiment(name)}.html"
    if not session.args.out and name_problem(bare_experiment(name)):
        raise UsageError(f"{name!r} is not a file name.", "Say where to write the page: --out FILE.html.")
    await _complete(session)
    report = await experiment_report(session.backend, name, _is_here(session))
    for note in report.notes:
        session.talk.say(note)
    write_text(session, path, page_text(report))
    return EXIT_DONE


async def run_sweep(session: Session) -> int:
    """Print the results of the trials of a sweep, the best first."""
    from l2rtui.services.sweeps import sweep_results  # with curves
    from l2rtui.tables.summaries import trial_cells, trials

    await _complete(session)
    results = await sweep_results(session.backend, await session.backend.snapshot(), session.args.experiment)
    if session.out.form == "csv":
        for line in csv_rows(trial_cells(results)):
            session.out.text(line)
    else:
        session.out.show_all(trials(results), results)
    return EXIT_DONE


async def _complete(session: Session) -> None:
    """Record ends that were not recorded yet, and runs of others; if the cluster cannot be reached, only say so."""
    try:
        if _is_complete(session):
            return
        from l2rtui.services.history.recorder import is_shared

        async with asyncio.timeout(_LOOK_SECONDS):
            if is_shared(session.backend):
                from l2rtui.services.history.sharing import receive

                try:
                    await receive(session.backend)
                except L2RError as error:  # this machine's runs are completed anyway
                    session.talk.say(f"Records of others may be missing: {error}")
            await complete_ended(session.backend)
    except (L2RError, TimeoutError) as error:
        session.talk.say(f"Runs that ended meanwhile may read as running: {str(error) or 'no answer in time'}")


def _is_complete(session: Session) -> bool:
    """Return True if no run is open and no other user writes records: then no backend is made."""
    settings = session.settings
    is_unshared = (settings.backend or chosen_backend(settings)) in UNSHARED and not settings.history_to
    return is_unshared and not has_open_runs()


def _has_runs() -> bool:
    with HistoryStore() as store:
        return bool(store.entries(HistoryFilter(limit=1)))


def _narrows(session: Session) -> bool:
    args = session.args
    places = args.backend or args.context or args.namespace
    return bool(args.names or args.state or args.owner or args.mine or args.filter or args.since_left or places)


def _is_here(session: Session) -> Callable[[HistoryEntry], bool]:
    """Return a test that accepts records of the backend, contexts and namespaces named by the options."""
    args = session.args
    backend = args.backend or ("kubernetes" if args.context or args.namespace or args.all_contexts else "")
    contexts = contexts_of(args) or ((args.context,) if args.context else ())
    namespaces = tuple(part.strip() for part in (args.namespace or "").split(",") if part.strip())

    def is_here(entry: HistoryEntry) -> bool:
        return (
            backend in ("", entry.backend)
            and (not contexts or entry.context in contexts)
            and (not namespaces or entry.namespace in namespaces)
        )

    return is_here


# --- list ------------------------------------------------------------------------------------------------------
def _chosen(session: Session, store: HistoryStore, names: Sequence[str]) -> Iterable[HistoryEntry]:
    args = session.args
    is_here = _is_here(session)
    exact = tuple(name for name in names if not is_pattern(name))
    states = tuple(_state(word) for word in args.state.split(",") if word.strip())
    owner = user_name() if args.mine else args.owner
    # A pattern is matched here, so the file selects by names only if every word is a full name.
    by_name = tuple(map(bare_experiment, exact)) if len(exact) == len(names) else ()
    left = _left(session) if args.since_left else None
    limit = 0 if names or left is not None or args.backend or args.context or args.namespace else args.last
    rows: Iterable[HistoryEntry] = store.each(
        HistoryFilter(by_name, states, owner, limit=limit, touched_since=left)
    )
    rows = filter(is_here, rows)
    if left is not None:  # and not runs that only run
        rows = (entry for entry in rows if (entry.ended or entry.started) > left)
    if not names:
        return islice(rows, args.last or None)
    entries = list(rows)
    runs = {entry.run for entry in entries}

    def is_meant(entry: HistoryEntry, name: str) -> bool:
        if is_pattern(name):
            return matches_any((entry.run, entry.experiment), (bare_experiment(name),))
        # The exact name of a run selects only that run.
        experiment = bare_experiment(name) if name not in runs else None
        return name in (entry.run, entry.run_id) or entry.experiment == experiment

    entries = [entry for entry in entries if any(is_meant(entry, name) for name in names)]
    # The start of an id selects a run, too; and a typo must not look like a run that never existed.
    if not (states or owner or args.since_left):
        missing = (name for name in exact if not any(is_meant(entry, name) for entry in entries))
        entries += [find_entry(store, name, is_here) for name in missing]
    return entries[: args.last] if args.last else entries


def _left(session: Session) -> float:
    """Return when the app was last open on this machine.

    Raises:
        NotFoundError: it never was.
    """
    from l2rtui.services.history.absence import departure

    last = departure(session.backend)
    if last is None:
        raise NotFoundError("The app was not open here yet.", "Leave out --since-left.")
    return last.left


def _state(word: str) -> RunOutcome:
    try:
        return RunOutcome(word.strip().casefold())
    except ValueError:
        raise UsageError(f"{word!r} is not a state of the history.", f"They are {', '.join(RunOutcome)}.") from None


def _filter_of(session: Session) -> Callable[[HistoryEntry], bool]:
    """Return the test of the option --filter on a run."""
    text, columns = session.args.filter, history_tables.RUNS.of_cli
    names = [column.header.casefold() for column in columns]
    test = compile_filter(text, names)
    if test is None:
        return lambda _: True
    if problem := misread_columns(text, names):
        session.talk.say(problem)

    def passes(entry: HistoryEntry) -> bool:
        cells = [cell_text(column.cell(entry)).casefold() for column in columns]
        return test(cells.__getitem__, " ".join(cells))

    return passes


# --- one record ------------------------------------------------------------------------------------------------
async def _show(session: Session, word: str) -> int:
    await _complete(session)
    with HistoryStore() as store:
        record = find_record(store, word, _is_here(session))
    if session.out.form in ("json", "yaml"):
        session.out.dump(history_tables.record_document(record, spec_document(record)))
        return EXIT_DONE
    from l2rtui.services.history.lookup import record_lines

    for line in record_lines(record):
        session.out.line(line)
    return EXIT_DONE


async def _export(session: Session, names: Sequence[str]) -> int:
    """Copy the selected runs, oldest first, and print the names of the copied ones."""
    from l2rtui.services.history.exports import Tracker, export_runs

    await _complete(session)
    entries = list(_selected(session, names))
    if not entries:
        session.talk.say("The history has no such run.")
        return EXIT_DONE

    def export() -> tuple[str, list[str], list[str]]:
        with HistoryStore() as store:
            records = (store.get(entry.run_id) for entry in reversed(entries))
            return export_runs(Tracker(session.args.to), records, session.args.project)

    place, written, present = await asyncio.to_thread(export)
    place = redact(place)
    if session.out.form in ("json", "yaml"):
        session.out.dump({"tracker": session.args.to, "place": place, "written": written, "present": present})
    else:
        for name in written:
            session.out.text(name)
    already = f"; {counted(len(present), 'run')} there already" if present else ""
    session.talk.say(f"exported {counted(len(written), 'run')} to {session.args.to}, {place}{already}")
    return EXIT_DONE


def _only_entry(store: HistoryStore, word: str, is_here: Callable[[HistoryEntry], bool]) -> HistoryEntry:
    """Return the one record that a word selects.

    Raises:
        UsageError: several launches have this name; lists their ids.
    """
    entry = find_entry(store, word, is_here)
    if word not in (entry.run, entry.experiment):  # an id
        return entry
    same = [other for other in store.entries(HistoryFilter(names=(entry.run,))) if other.run == entry.run]
    same = list(filter(is_here, same))
    if len(same) > 1:
        launches = ", ".join(
            f"{other.run_id[:ID_CHARS]} ({other.state}, {utc(other.started)[:16]}, {other.place})"
            for other in same[:_MAX_LISTED]
        )
        more = f" and {len(same) - _MAX_LISTED} more" if len(same) > _MAX_LISTED else ""
        raise UsageError(
            f"The history has {counted(len(same), 'record')} of {word}: {launches}{more}.",
            "Remove them by their ids.",
        )
    return entry


def _remove(session: Session, names: Sequence[str]) -> int:
    session.require_change("history rm")
    is_here = _is_here(session)
    with HistoryStore() as store:
        entries = {entry.run_id: entry for word in names for entry in [_only_entry(store, word, is_here)]}
        labels = ", ".join(sanitize(f"{entry.run} ({run_id[:ID_CHARS]})") for run_id, entry in entries.items())
        if any(entry.state is RunOutcome.RUNNING for entry in entries.values()) and not session.args.yes:
            session.talk.say("Some of them may still run: the runs themselves go on.")
        if not session.confirm(lambda: f"Remove {labels} from the history of this machine?"):
            return EXIT_FAILED
        removed = store.remove(list(entries))
    if not removed:
        raise NotFoundError(f"{labels}: they were removed meanwhile.")
    session.talk.say(f"removed {counted(removed, 'record')}")
    return EXIT_DONE
