"""Real learners and workers that end by their limits, and report that to real webhooks."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from runtime.base import contract
from runtime.base.alert_rules import AlertRule, rules_text
from runtime.base.limits import Limits
from tests.fakes.webhook import Webhook
from tests.runtime.conftest import RunUnderTest

pytestmark = pytest.mark.slow
Wait = Callable[..., Any]


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Webhook() as webhook:
        yield webhook


def watched(hook: Webhook, limits: Limits = Limits(), *when: str, path: str = "ok") -> dict[str, str]:  # noqa: B008
    rules = [AlertRule(when, "webhook", url_from="HOOK")] if when else []
    variables = {contract.ENV_LIMITS: limits.text(gpus=1), contract.ENV_ALERTS: rules_text(rules)}
    return {**variables, "HOOK": f"{hook.url}/{path}"}


@pytest.mark.parametrize(
    ("limits", "label"),
    [
        (Limits(wall=6), "limit wall 6 s"),
        (Limits(gpu_hours=0.002), "limit 0.002 GPU-hours"),
        (Limits(no_progress=5), "limit no_progress 5 s"),
    ],
)
def test_a_run_ends_at_its_limit_with_a_checkpoint_and_its_workers(run: RunUnderTest, hook, limits, label):
    learner = run.start("learner", **watched(hook, limits, "limit"))
    worker = run.start("worker")
    assert learner.process.wait(120) == contract.EXIT_DONE
    assert worker.process.wait(60) == contract.EXIT_DONE
    end = learner.last("end")
    assert (end["reason"], end["limit"]) == (f"ended by {label}", True)
    assert json.loads((run.folder / "run" / contract.END_FILE).read_text()) == end
    newest = max((run.folder / "run" / "checkpoints").glob("ckpt-*.safetensors"))
    assert f"{end['updates']:010d}" in newest.name
    assert hook.texts[-1] == f"test: ended by {label}"
    assert len(hook.texts) == len(set(hook.texts)) <= 2


def test_a_learner_whose_workers_have_gone_ends_by_idle(run: RunUnderTest, hook, wait_until: Wait):
    learner = run.start("learner", **watched(hook, Limits(idle=6), "limit", "done"))
    worker = run.start("worker")
    wait_until(lambda: learner.last("learner").get("updates", 0) > 0, "updates", log=learner)
    worker.end(signal.SIGKILL)
    assert learner.process.wait(120) == contract.EXIT_DONE
    assert learner.last("end")["reason"] == "ended by limit idle 6 s"
    assert hook.texts[-1] == "test: ended by limit idle 6 s"


@pytest.mark.parametrize("path", ["hang", "fail"])
def test_a_webhook_that_hangs_or_fails_delays_no_update(run: RunUnderTest, hook, wait_until: Wait, path: str):
    rules = watched(hook, Limits(), "learned=-1e9", "done", path=path)
    learner = run.start("learner", **rules)
    run.start("worker")
    wait_until(lambda: hook.paths, "the first request", log=learner)
    before = learner.last("learner")["updates"]
    wait_until(lambda: learner.last("learner")["updates"] > before + 20, "updates beside it", log=learner)
    assert learner.end() == contract.EXIT_DONE
    assert hook.bodies == []


def test_a_learner_that_the_kernel_kills_is_told_by_its_parent(run: RunUnderTest, hook, wait_until: Wait):
    learner = run.start("learner", **watched(hook, Limits(), "failed"))
    wait_until(lambda: "ready" in learner.text(), "a learner", log=learner)
    (child,) = psutil.Process(learner.process.pid).children()
    child.kill()
    assert learner.process.wait(60) == 137
    assert hook.texts == ["test: failed: killed by SIGKILL (exit 137)"]
    again = run.start("learner", **watched(hook, Limits(), "failed"))
    wait_until(lambda: "ready" in again.text(), "a learner", log=again)
    assert again.end() == contract.EXIT_DONE
    assert len(hook.texts) == 1


def test_a_learner_that_was_killed_is_told_once_by_the_next(run: RunUnderTest, hook, wait_until: Wait):
    rules = watched(hook, Limits(), "failed")
    for _ in range(2):
        learner = run.start("learner", **rules)
        wait_until(lambda log=learner: "ready" in log.text(), "a learner", log=learner)
        learner.end(signal.SIGKILL)
    learner = run.start("learner", **rules)
    wait_until(lambda: "ready" in learner.text(), "a learner", log=learner)
    assert learner.end() == contract.EXIT_DONE
    assert hook.texts == ["test: failed: its learner ended without a word and begins again"]
