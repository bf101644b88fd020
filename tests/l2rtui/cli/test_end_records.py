"""Ends of runs in the place for records, with real processes and with neither an app nor a command running."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from l2rtui.services.history.place import decode
from tests.l2rtui.cli.conftest import eventually, processes_of
from tests.l2rtui.cli.test_queue import keepers, kill

pytestmark = pytest.mark.process

SPEC = """\
kind: job
name: {name}
job: {{command: [sh, -c, "{script}"], slots: 1, restart: Never}}
{more}
"""
SCRIPTS = {
    "well": ("echo the last word; while [ ! -e GATE ]; do sleep 0.05; done", ""),
    "badly": ("while [ ! -e GATE ]; do sleep 0.05; done; exit 3", ""),
    "limited": ("sleep 600", "limits: {wall: 3s}"),
    "queued": ("true", ""),
}


@pytest.fixture
def placed(local):
    """This machine with three slots, and a folder for records."""
    local.env |= {"L2RTUI_SLOTS_PER_CORE": "3", "L2RTUI_MAX_CPU_SLOTS": "3"}
    # The keeper starts in the root folder: this checkout need not be the installed one.
    local.env |= {"L2RTUI_HISTORY_TO": str(local.home / "shared"), "PYTHONPATH": str(Path.cwd())}
    yield local
    (local.home / "gate").touch()
    local.run("destroy", "--all-mine", "--grace", "0", "--purge", "--yes")
    eventually(lambda: not processes_of(local.home), "the keeper ends when no end is to be recorded")


def launch(cli, name):
    script, more = SCRIPTS[name]
    path = cli.home / f"{name}.yaml"
    path.write_text(SPEC.format(name=name, script=script.replace("GATE", str(cli.home / "gate")), more=more))
    cli.json("launch", "-f", str(path), "--queue", "--yes")


def records(cli):
    """Records of ended runs in the place, by the name of their run."""
    found = [decode(path.read_bytes()) for path in (cli.home / "shared").glob("*.ended.json.gz")]
    return {record.entry.run: record for record in found}


@pytest.mark.slow
def test_a_run_that_ends_by_itself_is_recorded_with_nothing_open(placed):
    for name in SCRIPTS:
        launch(placed, name)
    assert len(list((placed.home / "shared").glob("*.launched.json.gz"))) >= 1
    # Without a keeper as well: the supervisor of a run that ends starts another. From here on no command runs until
    # all records are in the place.
    assert kill(keepers(placed)) == 1
    (placed.home / "gate").touch()
    eventually(lambda: set(records(placed)) == set(SCRIPTS), "every end in the place")
    ended = records(placed)
    assert {name: str(record.ending.state) for name, record in ended.items()} == {
        "well": "done",
        "badly": "failed",
        "limited": "done",
        "queued": "done",
    }
    assert dict(ended["well"].ending.logs)["well-job-0"] == ("the last word",)
    eventually(lambda: not processes_of(placed.home), "the keeper ends when no end is to be recorded")
    states = Counter(row["state"] for row in placed.json("history"))
    assert states == {"done": 3, "failed": 1}
