"""A writer of the history is killed at 200 random moments: at most the record being written is lost."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

MOMENTS = 200
# A separate program: it forks a writer for each moment, which a process with threads should not do.
PROGRAM = """
import json, os, random, signal, sqlite3, sys, time
from contextlib import closing
from pathlib import Path

from l2rtui.domain.history import Ending, HistoryEntry, HistoryRecord, LaunchFacts, RunOutcome, SourceState
from l2rtui.services.history.store import HistoryStore

folder, moments = Path(sys.argv[1]), int(sys.argv[2])
rng = random.Random(7)
ENDING = Ending(RunOutcome.DONE, 9.0, 1e6, 2.0, 1.0, (("mean_return", tuple(range(256))),), receipt="nothing left")

def record(number):
    facts = LaunchFacts(source=SourceState("/r", "c" * 40, "main", f"+{number}\\n" * 2_000))
    return HistoryRecord(HistoryEntry(f"e-s{number}", f"{number:032x}", "e", number, started=float(number)), facts)

def write(path, first, pipe):
    with HistoryStore(path) as store:
        number = first
        while True:
            store.put([record(number)])
            os.write(pipe, b"p%d\\n" % number)
            store.complete(f"{number:032x}", ENDING)
            os.write(pipe, b"c%d\\n" % number)
            number += 1

answers = {"put": 0, "completed": 0, "killed": 0, "unreported": 0, "lost": [], "damaged": []}
for moment in range(moments):
    # Every tenth writer makes its file anew, so that the first steps of a file are interrupted as well.
    path = folder / f"{moment // 10}.db"
    first = moment * 10_000
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        write(path, first, writer)
    os.close(writer)
    time.sleep(rng.random() * 0.12)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    answers["killed"] += os.WIFSIGNALED(status)
    with os.fdopen(reader, "rb") as pipe:
        reported = pipe.read().decode().split("\\n")[:-1]
    put = {int(line[1:]) for line in reported if line[0] == "p"}
    completed = {int(line[1:]) for line in reported if line[0] == "c"}
    with HistoryStore(path) as store:
        if store.problem:
            answers["damaged"].append(store.problem)
        entries = {entry.seed: entry for entry in store.entries() if entry.seed >= first}
        for number in put:
            if number not in entries or store.get(f"{number:032x}").launch != record(number).launch:
                answers["lost"].append(number)
        for number in completed:
            if store.get(f"{number:032x}").ending != ENDING:
                answers["lost"].append(number)
        # What was written when the kill came is there as a whole or not at all.
        extra = entries.keys() - put
        answers["unreported"] = max(answers["unreported"], len(extra))
        for number in extra:
            if store.get(f"{number:032x}").launch != record(number).launch:
                answers["damaged"].append(number)
    with closing(sqlite3.connect(path)) as connection, connection:
        if connection.execute("PRAGMA integrity_check").fetchone() != ("ok",):
            answers["damaged"].append(str(path))
    answers["put"] += len(put)
    answers["completed"] += len(completed)
print(json.dumps(answers))
"""


def test_a_crash_at_any_moment_loses_at_most_the_record_being_written(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(MOMENTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert (answers["lost"], answers["damaged"], answers["killed"]) == ([], [], MOMENTS)
    assert answers["unreported"] <= 1
    assert answers["put"] > MOMENTS
    assert answers["completed"] > MOMENTS
