"""Command ``l2r-runtime alert``: tests of all targets, and deaths that are reported once by any reporter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.base import contract
from runtime.base.alert_rules import AlertRule, rules_text
from runtime.base.atomic_files import lock_folder
from runtime.base.launch_context import LaunchContext
from runtime.cli import main
from runtime.rl.roles import alert
from runtime.rl.roles.run_watch import RunWatch
from tests.fakes.webhook import Webhook

RULES = [
    AlertRule(("failed", "limit", "done"), "webhook", url_from="HOOK"),
    AlertRule(("failed",), "webhook", url_from="BROKEN_HOOK"),
    # The target of the first rule again: a test reaches it once.
    AlertRule(("stalled",), "webhook", url_from="HOOK", after_seconds=60.0),
]


@pytest.fixture
def hook(monkeypatch) -> Iterator[Webhook]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Webhook() as webhook:
        yield webhook


def variables(folder: Path, hook: Webhook, number: int = 1) -> dict[str, str]:
    return {
        contract.ENV_ENDPOINT: f"ipc://{folder}",
        contract.ENV_DIR: str(folder),
        contract.ENV_RUN: "r",
        contract.ENV_ALERTS: rules_text(RULES[:number]),
        "HOOK": f"{hook.url}/ok",
        "BROKEN_HOOK": f"{hook.url}/fail",
    }


def test_a_test_names_each_target_and_fails_where_one_failed(tmp_path, hook, capsys, monkeypatch):
    for name, value in variables(tmp_path, hook, 3).items():
        monkeypatch.setenv(name, value)
    assert main(["alert", "--test"]) == contract.EXIT_FAILED
    assert capsys.readouterr().out.splitlines() == [
        "sent to webhook of HOOK",
        "not delivered to webhook of BROKEN_HOOK: it answered 500",
    ]
    assert len(hook.texts) == 1
    monkeypatch.setenv(contract.ENV_ALERTS, "")
    assert main(["alert", "--test"]) == contract.EXIT_FAILED
    assert capsys.readouterr().out == "this run has no alerts\n"


def test_a_death_is_told_once_by_whoever_sees_it(tmp_path, hook):
    environ = variables(tmp_path, hook)
    for _ in range(3):
        assert alert.report_death(environ, "exit 137 (SIGKILL)") == contract.EXIT_DONE
    # The successor finds that its predecessor's death was already reported.
    context = LaunchContext.from_environment(environ, "learner")
    RunWatch(context, environ, tmp_path, print).close()
    assert hook.texts == ["r: failed: exit 137 (SIGKILL)"]


def test_a_learner_that_lives_tells_by_itself(tmp_path, hook, monkeypatch):
    monkeypatch.setattr(alert, "LOCK_SECONDS", 0.0)
    with lock_folder(tmp_path, 0.0):
        assert alert.report_death(variables(tmp_path, hook), "exit 1") == contract.EXIT_DONE
    assert hook.texts == []


def test_the_end_by_a_limit_is_told_in_its_words(tmp_path, hook):
    alert.report_death(variables(tmp_path, hook), "ended by limit wall 12 h", is_by_limit=True)
    assert hook.texts == ["r: ended by limit wall 12 h"]
