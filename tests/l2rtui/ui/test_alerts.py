"""``:alerts``: the learner of the selected run sends a test to each target, and the app shows how that went."""

from __future__ import annotations

import contextlib
import io

from l2rtui.backends.fake import FakeBackend
from l2rtui.config import user_name
from l2rtui.domain.log import CommandOutput
from runtime.base import contract
from runtime.base.alert_rules import AlertRule, rules_text
from runtime.rl.roles.alert import send_test
from tests.fakes.webhook import Webhook


def with_learner_that_sends(hook: Webhook) -> FakeBackend:
    """Return a backend whose pods run the runtime's own command, with a webhook that answers and one that fails."""
    backend = FakeBackend(owner=user_name())
    rules = tuple(AlertRule(("failed",), "webhook", url_from=name) for name in ("HOOK", "BROKEN"))
    environ = {contract.ENV_ENDPOINT: "ipc:///x", contract.ENV_ALERTS: rules_text(rules)}
    environ |= {contract.ENV_RUN: "r", "HOOK": f"{hook.url}/ok", "BROKEN": f"{hook.url}/fail"}

    async def capture(_, argv):
        assert tuple(argv) == ("l2r-runtime", "alert", "--test")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = send_test(environ)
        return CommandOutput(code, out.getvalue().encode(), b"")

    backend.capture = capture
    return backend


async def test_a_test_is_sent_by_the_learner_and_each_target_gets_a_line(desk, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Webhook() as hook:
        async with desk(backend=with_learner_that_sends(hook)) as one:
            await one.press("colon", *"alerts racing-sac-s0", "enter")
            await one.until(lambda: one.top == "DetailScreen" and "sent to webhook of HOOK" in one.words())
            assert "not delivered to webhook of BROKEN: it answered 500" in one.words()
    assert hook.texts == ["r: test: alerts of this run arrive here"]


async def test_runs_of_others_several_runs_and_no_run_are_refused_with_a_sentence(desk):
    async with desk() as one:
        await one.press("colon", *"alerts nobody", "enter")
        await one.until(lambda: any("names 0 runs" in line for line in one.says()))
        await one.press("colon", *"alerts lidar-ppo", "enter")
        await one.until(lambda: any("Ask the owner" in line for line in one.says()))
        assert one.top == "ClusterScreen"
