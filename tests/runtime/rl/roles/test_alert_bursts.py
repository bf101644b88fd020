"""A thousand changes of state a minute: messages follow the rules, without duplicates, and no target delays a
run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import IO, Any

import pytest

from runtime.base import contract
from runtime.base.alert_delivery import ATTEMPTS, TIMEOUT_SECONDS
from runtime.base.alert_rules import AlertRule, rules_text
from runtime.base.limits import Limits
from runtime.rl.roles.run_watch import DIED, FAREWELL_SECONDS
from tests.fakes.watched_changes import CHANGES, LEARNED_AT, RETURN
from tests.fakes.webhook import Webhook

WHEN = ("stalled", "failed", "done", f"learned={RETURN:g}", "limit")
KILLED_AT = 2 * LEARNED_AT
DEADLINE_SECONDS = 120.0


def started(folder: Path, hook: Webhook, first: int, last: int, paths: tuple[str, ...]) -> subprocess.Popen[str]:
    rules = [AlertRule(WHEN, "webhook", url_from=path.upper(), after_seconds=0.05) for path in paths]
    environ = {
        contract.ENV_ENDPOINT: f"ipc://{folder}",
        contract.ENV_DIR: str(folder),
        contract.ENV_RUN: "r",
        contract.ENV_RUN_ID: "u-1",
        contract.ENV_ALERTS: rules_text(rules),
        # Near at 55.8 s of the minute, and not reached.
        contract.ENV_LIMITS: Limits(wall=62).text(0),
        "no_proxy": hook.host,
        **{path.upper(): f"{hook.url}/{path}" for path in paths},
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.watched_changes", str(first), str(last)],
        env=os.environ | environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(stream: IO[str] | None) -> dict[str, Any]:
    assert stream is not None
    fields: dict[str, Any] = json.loads(stream.readline())
    return fields


@pytest.mark.process
@pytest.mark.timeout(DEADLINE_SECONDS)
@pytest.mark.parametrize("others", [(), ("hang", "fail")])
def test_a_thousand_changes_send_each_message_once_over_a_death_beside_targets_that_hang_or_fail(
    tmp_path, wait_until, others
):
    paths = ("ok", *others)
    took: list[float] = []
    with Webhook() as hook:
        with started(tmp_path, hook, 0, KILLED_AT, paths) as killed:
            took += answer(killed.stdout)["took"]
            wait_until(lambda: len(hook.texts) == 2, "the messages of the first process")
            killed.kill()
        with started(tmp_path, hook, KILLED_AT, CHANGES, paths) as process:
            took += answer(process.stdout)["took"]
            out, _ = process.communicate("\n")
        ended = json.loads(out)
        assert len(took) == CHANGES
        assert sorted(hook.texts) == sorted(
            f"r: {sentence}"
            for sentence in (
                "stalled: no update for 0.1 s",
                f"learned: return {RETURN:g}",
                f"failed: {DIED}",
                "limit near: 90 % of limit wall 1 min 2 s",
                "done: 1000 changes",
            )
        )
        requests = Counter(hook.paths)
        assert requests["/ok"] == 5
        # Only unfinished or refused attempts are repeated, never an accepted message.
        assert requests["/hang"] <= 5
        assert requests["/fail"] <= 5 * ATTEMPTS
        assert set(requests) == {f"/{path}" for path in paths}
    # One wait for a hanging target would show up here.
    assert max(took) < TIMEOUT_SECONDS / 2, max(took)
    assert ended["closed"] < 2 * FAREWELL_SECONDS
    assert bool(others) == any("are lost" in line for line in ended["said"])
