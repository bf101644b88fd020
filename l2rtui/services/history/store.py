"""The file of the history: ``history/runs.db`` in the state folder, an SQLite database in WAL mode.

Several processes may write: SQLite's locks order them, and a writer waits for its turn. Each write is one
transaction that is on the disk when it returns, so a crash loses at most the record that was being written. A
damaged file is moved aside and never deleted; a file of a newer version is read and not written.

Importing this costs 10 ms for SQLite: services import it when the first record is read or written.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.config import state_dir
from l2rtui.domain.curves.chart import RETURN
from l2rtui.domain.history import Ending, HistoryEntry, HistoryRecord, LaunchFacts, RunOutcome, merged_ending
from l2rtui.errors import BackendError, NotFoundError
from runtime.base import bounded_json
from runtime.base.atomic_files import lock_folder

# Lists read only the small table. Long values are in bodies, once for all runs that share them, such as the diff of
# the source tree of all seeds of an experiment.
STEPS: Final = (
    """
    CREATE TABLE runs (
        run_id TEXT PRIMARY KEY,
        run TEXT NOT NULL,
        experiment TEXT NOT NULL,
        seed INTEGER NOT NULL,
        state TEXT NOT NULL,
        started REAL NOT NULL,
        ended REAL,
        env_steps REAL,
        best_return REAL,
        final_return REAL,
        image TEXT NOT NULL,
        revision TEXT NOT NULL,
        is_dirty INTEGER,
        owner TEXT NOT NULL,
        backend TEXT NOT NULL,
        context TEXT NOT NULL,
        namespace TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX runs_by_start ON runs (started);
    CREATE INDEX runs_by_name ON runs (run, started);
    CREATE INDEX runs_by_experiment ON runs (experiment, started);
    CREATE INDEX runs_open ON runs (state) WHERE state = 'running';
    CREATE TABLE bodies (digest BLOB PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE parts (
        run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
        name TEXT NOT NULL,
        digest BLOB NOT NULL REFERENCES bodies (digest),
        PRIMARY KEY (run_id, name)
    ) WITHOUT ROWID;
    CREATE INDEX parts_by_digest ON parts (digest);
    """,
)
SCHEMA: Final = len(STEPS)
"""Schema that this version writes."""
BUSY_SECONDS: Final = 10.0
"""Longest wait of a writer for others."""
_CREATION_SECONDS: Final = 60.0
"""Age from which an empty file is not one that another process is just creating."""
MAX_BYTES: Final = 450 << 20
"""Size above which the oldest diffs, curves and log lines are removed; the rows of their runs stay."""
FIRST_ROWS: Final = 100
"""Rows that a list gets before the others are read."""
_DIFF: Final = "diff"
_LAUNCH: Final = "launch"
_ENDING: Final = "ending"
_COLUMNS: Final = HistoryEntry.__struct_fields__
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def version_of(connection: sqlite3.Connection) -> int:
    """Return the schema of a file; 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection) -> None:
    """Apply the missing steps to a file; the caller has it locked against other processes that do the same.

    A step and its number are one transaction: if the process is killed in between, the file is unchanged.
    """
    for number in range(version_of(connection), SCHEMA):
        connection.executescript(f"BEGIN IMMEDIATE;{STEPS[number]};PRAGMA user_version = {number + 1};COMMIT")


class HistoryError(BackendError):
    """The history cannot be read or written; the sentence names its file."""


class HistoryFilter(Struct, frozen=True):
    """Selection of runs by the file itself; empty parts select all.

    Attributes:
        names: Runs or experiments by name, or runs by id; any of them.
        states: Any of these. since: seconds since the epoch, of the start.
        touched_since: Start or end is later than that; runs without an end count as well.
        limit: Maximum number, the newest; 0 for all.
    """

    names: tuple[str, ...] = ()
    states: tuple[RunOutcome, ...] = ()
    owner: str = ""
    backend: str = ""
    context: str | None = None
    since: float = 0.0
    touched_since: float | None = None
    limit: int = 0


ALL: Final = HistoryFilter()


def history_path() -> Path:
    """Return the path of the history's file."""
    return state_dir() / "history" / "runs.db"


class HistoryStore:
    """An open history; used by one thread, and closed by its ``with`` block.

    Attributes:
        path: Its file.
        problem: Reason why it cannot be written, or a sentence about a file moved aside; otherwise empty.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Open the history, creating it if needed.

        Raises:
            HistoryError: it cannot be opened.
        """
        self.path = history_path() if path is None else path
        self.problem = ""
        self._is_newer = False
        self._inode = 0
        self._connection = self._opened()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        # Closing the last connection copies the log back into the file, which a full disk may refuse.
        with suppress(sqlite3.Error):
            self._connection.close()

    # --- writing ----------------------------------------------------------------------------------------------
    def put(self, records: Sequence[HistoryRecord]) -> None:
        """Store records, each replacing an earlier one of its run, in one transaction.

        Raises:
            HistoryError: they cannot be written; none of them was.
        """
        with self._writing():
            for record in records:
                self._put_entry(record.entry)
                facts = record.launch
                # Separate from the rest: all seeds of an experiment share it, and it is stored once.
                self._put_part(record.entry.run_id, _DIFF, facts.source.diff)
                bare = replace(facts, source=replace(facts.source, diff=""))
                self._put_part(record.entry.run_id, _LAUNCH, bare)
                self._put_part(record.entry.run_id, _ENDING, record.ending)
        self._shrink()

    def complete(self, run_id: str, ending: Ending) -> bool:
        """Add the end of a run; return False if the history lacks the run.

        The first outcome stays: a finished run does not become destroyed when it is removed later. Figures, logs
        and the receipt of a later ending replace empty ones.

        Raises:
            HistoryError: it cannot be written.
        """
        with self._writing():
            entry = self._entry(run_id)
            if entry is None:
                return False
            merged = merged_ending(self._part(run_id, _ENDING, Ending), ending)
            self._put_part(run_id, _ENDING, merged)
            self._put_entry(
                replace(
                    entry,
                    state=merged.state,
                    ended=merged.ended,
                    env_steps=merged.env_steps,
                    best_return=merged.best_return,
                    final_return=merged.final_return,
                )
            )
        self._shrink()
        return True

    def remove(self, run_ids: Sequence[str]) -> int:
        """Remove runs from the history; return how many it had.

        Raises:
            HistoryError: it cannot be written.
        """
        with self._writing():
            removed = self._connection.executemany("DELETE FROM runs WHERE run_id = ?", [(key,) for key in run_ids])
            self._drop_unused()
        return removed.rowcount

    # --- reading ----------------------------------------------------------------------------------------------
    def entries(self, selection: HistoryFilter = ALL) -> list[HistoryEntry]:
        """Return runs, newest first.

        Raises:
            HistoryError: the file cannot be read.
        """
        return list(self.each(selection))

    def each(self, selection: HistoryFilter = ALL) -> Iterator[HistoryEntry]:
        """Yield runs, newest first; the first of them before the others are read.

        Raises:
            HistoryError: the file cannot be read.
        """
        conditions, values = _conditions(selection)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        limit = f"LIMIT {selection.limit:d}" if selection.limit else ""
        # The text consists of this module's own names; every value is bound.
        query = f"SELECT {', '.join(_COLUMNS)} FROM runs {where} ORDER BY started DESC, run DESC {limit}"  # noqa: S608
        with self._guarded("read"):
            cursor = self._connection.execute(query, values)
            rows = cursor.fetchmany(FIRST_ROWS)
        yield from map(_entry_of, rows)
        # Fetch all others here: a reader who pages for hours must not block the writers' log.
        with self._guarded("read"):
            rows = cursor.fetchall()
        yield from map(_entry_of, rows)

    def get(self, run_id: str) -> HistoryRecord:
        """Return the record of a run by its id.

        Raises:
            NotFoundError: no such run. HistoryError: the file cannot be read.
        """
        with self._guarded("read"):
            entry = self._entry(run_id)
            if entry is None:
                raise NotFoundError(f"The history has no run {run_id}.", "See `l2rtui history`.")
            facts = self._part(run_id, _LAUNCH, LaunchFacts) or LaunchFacts()
            diff = self._part(run_id, _DIFF, str) or ""
            facts = replace(facts, source=replace(facts.source, diff=diff))
            return HistoryRecord(entry, facts, self._part(run_id, _ENDING, Ending))

    def returns(self, run_id: str) -> tuple[float, ...]:
        """Return the recorded returns of a run, oldest first; empty before its end was recorded."""
        with self._guarded("read"):
            ending = self._part(run_id, _ENDING, Ending)
        columns = dict(ending.curve) if ending is not None else {}
        return tuple(value for value in columns.get(RETURN, ()) if value is not None)

    def by_id(self, beginning: str) -> list[HistoryEntry]:
        """Return the runs whose id starts with this text, newest first."""
        query = f"SELECT {', '.join(_COLUMNS)} FROM runs WHERE run_id >= ? AND run_id < ? ORDER BY started DESC"  # noqa: S608
        with self._guarded("read"):
            # Ids are hexadecimal, so `g` sorts after every id with this start.
            return [_entry_of(row) for row in self._connection.execute(query, (beginning, f"{beginning}g"))]

    def has(self, run_ids: Sequence[str]) -> set[str]:
        """Return the ids that the history has."""
        with self._guarded("read"):
            # By the primary key: a few lookups, however long the history is.
            rows = (self._connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (key,)) for key in run_ids)
            return {key for key, row in zip(run_ids, rows, strict=True) if row.fetchone() is not None}

    # --- the file ---------------------------------------------------------------------------------------------
    def _opened(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            is_emptied = self._is_emptied()
            self.path.touch(mode=0o600)  # SQLite gives its other files the same permissions
            self._inode = self.path.stat().st_ino
            if not is_emptied:
                return self._connected()
        except OSError as error:
            raise HistoryError(f"The history {self.path} cannot be opened: {error.strerror or error}.") from error
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise HistoryError(f"The history {self.path} cannot be opened: {error}.") from error
        return self._begun_anew()

    def _is_emptied(self) -> bool:
        """Return True for a file that lost its content: SQLite takes it for a new one."""
        with suppress(FileNotFoundError):
            file = self.path.stat()
            return file.st_size == 0 and time.time() - file.st_mtime > _CREATION_SECONDS
        return False

    def _begun_anew(self) -> sqlite3.Connection:
        """Return a connection to an empty file, after the damaged one was moved aside."""
        try:
            self._move_aside()
            return self._connected()
        except (OSError, sqlite3.Error) as error:
            raise HistoryError(f"The history {self.path} is damaged, and no new one began: {error}.") from error

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            if version_of(connection) != SCHEMA:
                # Two processes may start together: the change to WAL does not wait for the busy timeout.
                with lock_folder(self.path.parent, BUSY_SECONDS):
                    connection.execute("PRAGMA journal_mode = WAL")
                    migrate(connection)
            if (version := version_of(connection)) > SCHEMA:
                self._is_newer = True
                connection.execute("PRAGMA query_only = ON")
                self.problem = (
                    f"The history {self.path} was written by a newer l2rtui (schema {version}, this one writes "
                    f"{SCHEMA}): it is read and not written."
                )
            # A record survives a power failure; one write for each launch and destroy is cheap.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            connection.close()
            raise
        return connection

    def _move_aside(self) -> None:
        """Move a damaged file and its log aside, unless another process has just done so."""
        aside = self.path.with_name(f"{self.path.name}.damaged-{int(time.time())}")
        with lock_folder(self.path.parent, BUSY_SECONDS):
            # The damage may be inside the file, so a successful open proves nothing; another inode does.
            if self.path.exists() and self.path.stat().st_ino == self._inode:
                for suffix in ("-wal", "-shm", ""):
                    with suppress(FileNotFoundError):
                        self.path.with_name(self.path.name + suffix).rename(aside.with_name(aside.name + suffix))
            self.path.touch(mode=0o600)
            self._inode = self.path.stat().st_ino
        self.problem = (
            f"The history was damaged and moved to {aside}: `sqlite3 {aside.name} .recover` reads it. "
            "A new one was started."
        )
        _log.warning(self.problem)

    @contextmanager
    def _guarded(self, verb: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, zlib.error) as error:
            if isinstance(error, sqlite3.Error) and _is_damage(error):
                self.close()
                self._connection = self._begun_anew()
                raise HistoryError(self.problem) from error
            raise HistoryError(f"The history {self.path} cannot be {verb}: {error}.") from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self._is_newer:
            raise HistoryError(self.problem, "Use that version, or another $XDG_STATE_HOME.")
        with self._guarded("written"):
            # IMMEDIATE: a transaction that reads first and writes later could not wait for its turn.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def _put_entry(self, entry: HistoryEntry) -> None:
        names = ", ".join(_COLUMNS)
        marks = ", ".join("?" * len(_COLUMNS))
        # An upsert, not REPLACE, which would delete the row and its parts with it.
        changes = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)
        query = f"INSERT INTO runs ({names}) VALUES ({marks}) ON CONFLICT (run_id) DO UPDATE SET {changes}"  # noqa: S608
        self._connection.execute(query, [getattr(entry, name) for name in _COLUMNS])

    def _put_part(self, run_id: str, name: str, value: object) -> None:
        if not value:
            return
        import msgspec  # not needed for lists

        body = msgspec.json.encode(value)
        digest = hashlib.sha256(body).digest()
        execute = self._connection.execute
        execute("INSERT OR IGNORE INTO bodies VALUES (?, ?)", (digest, zlib.compress(body, 6)))
        execute(
            "INSERT INTO parts VALUES (?, ?, ?) ON CONFLICT (run_id, name) DO UPDATE SET digest = excluded.digest",
            (run_id, name, digest),
        )

    def _entry(self, run_id: str) -> HistoryEntry | None:
        query = f"SELECT {', '.join(_COLUMNS)} FROM runs WHERE run_id = ?"  # noqa: S608
        row = self._connection.execute(query, (run_id,)).fetchone()
        return None if row is None else _entry_of(row)

    def _part(self, run_id: str, name: str, of_type: type[_T]) -> _T | None:
        query = "SELECT body FROM bodies JOIN parts USING (digest) WHERE run_id = ? AND name = ?"
        row = self._connection.execute(query, (run_id, name)).fetchone()
        if row is None:
            return None

        try:
            return bounded_json.decode(zlib.decompress(row[0]), of_type)
        except ValueError as error:
            raise HistoryError(f"The history {self.path} cannot be read: {error}.") from error

    def _shrink(self) -> None:
        """Remove long parts of the oldest runs while the file is too large, one tenth of the runs at a time."""
        if self._used_bytes() <= MAX_BYTES:
            return
        with self._writing():
            query = """
                WITH long AS (SELECT DISTINCT run_id FROM parts WHERE name IN ('diff', 'ending'))
                DELETE FROM parts WHERE name IN ('diff', 'ending') AND run_id IN (
                    SELECT run_id FROM runs JOIN long USING (run_id) WHERE state != 'running'
                    ORDER BY started LIMIT 1 + (SELECT count(*) FROM long) / 10)"""
            self._connection.execute(query)
            self._drop_unused()

    def _used_bytes(self) -> int:
        """Return the bytes of the pages in use: SQLite fills free ones before the file grows."""
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def _drop_unused(self) -> None:
        self._connection.execute("DELETE FROM bodies WHERE digest NOT IN (SELECT digest FROM parts)")


def _conditions(selection: HistoryFilter) -> tuple[list[str], list[Any]]:
    """Return the conditions of a query, and the values that are bound to them."""
    conditions: list[str] = []
    values: list[Any] = []
    if selection.names:
        marks = ", ".join("?" * len(selection.names))
        conditions.append(f"(run IN ({marks}) OR experiment IN ({marks}) OR run_id IN ({marks}))")
        values += [*selection.names] * 3
    if selection.states:
        conditions.append(f"state IN ({', '.join('?' * len(selection.states))})")
        values += selection.states
    equal: Mapping[str, str | None] = {
        "owner": selection.owner or None,
        "backend": selection.backend or None,
        "context": selection.context,
    }
    for name, value in equal.items():
        if value is not None:
            conditions.append(f"{name} = ?")
            values.append(value)
    if selection.since:
        conditions.append("started >= ?")
        values.append(selection.since)
    if selection.touched_since is not None:
        conditions.append("(started > ? OR ended > ? OR state = 'running')")
        values += [selection.touched_since] * 2
    return conditions, values


def _entry_of(row: Sequence[Any]) -> HistoryEntry:
    values = dict(zip(_COLUMNS, row, strict=True))
    try:
        values["state"] = RunOutcome(values["state"])
    except ValueError:  # written by a newer version
        values["state"] = RunOutcome.LOST
    dirty = values["is_dirty"]
    values["is_dirty"] = None if dirty is None else bool(dirty)
    return HistoryEntry(**values)


def _is_damage(error: sqlite3.Error) -> bool:
    """Return True for a file that is damaged or not an SQLite file; False for a full disk or a lock."""
    code = getattr(error, "sqlite_errorcode", 0) or 0
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
