"""Schema of the history file, and the migrations from each earlier one.

``PRAGMA user_version`` counts the steps applied to a file. A step is never edited after a release, since files
exist that have applied it.
"""

from __future__ import annotations

import sqlite3
from typing import Final

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


def version_of(connection: sqlite3.Connection) -> int:
    """Return the schema of a file; 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection) -> None:
    """Apply the missing steps to a file; the caller has it locked against other processes that do the same.

    A step and its number are one transaction: if the process is killed in between, the file is unchanged.
    """
    for number in range(version_of(connection), SCHEMA):
        connection.executescript(f"BEGIN IMMEDIATE;{STEPS[number]};PRAGMA user_version = {number + 1};COMMIT")
