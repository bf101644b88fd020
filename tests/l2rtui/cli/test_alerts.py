"""``l2rtui alerts test``: each target by name, no address, and an exit code."""

from __future__ import annotations

import pytest

from l2rtui.cli.main import main
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE
from runtime.base import alert_delivery
from tests.fakes.webhook import Webhook

SPEC = """\
kind: learner-workers
name: r
alerts:
  - {when: [failed], to: webhook, url_from: L2RTEST_HOOK}
  - {when: [done], to: webhook, url_from: L2RTEST_NONE, form: json}
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def run(*words):
        code = main(["alerts", "test", *words, "--backend", "local"])
        written = capsys.readouterr()
        return code, written.out, written.err

    return run


def test_a_file_is_tested_from_here_with_the_variables_of_this_shell(tmp_path, monkeypatch, command):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    with Webhook() as hook:
        monkeypatch.setenv("L2RTEST_HOOK", f"{hook.url}/ok")
        code, out, err = command(str(path))
        assert (code, err) == (EXIT_FAILED, "")
        assert out.splitlines()[0] == "sent to webhook of L2RTEST_HOOK"
        assert "not delivered to webhook of L2RTEST_NONE: the variable L2RTEST_NONE is empty or not set" in out
        monkeypatch.setenv("L2RTEST_NONE", f"{hook.url}/ok")
        assert command(str(path))[0] == EXIT_DONE
        assert hook.url not in out
    assert hook.texts[0] == "r: test: alerts of this run arrive here"


def test_what_cannot_be_tested_is_said(tmp_path, command):
    path = tmp_path / "spec.yaml"
    path.write_text("kind: learner-workers\nname: r\n")
    code, _, err = command(str(path))
    assert code == EXIT_USAGE
    assert "has no alerts" in err
    code, _, err = command("nobody")
    assert code == EXIT_FAILED
    assert "nobody" in err


@pytest.mark.process
def test_a_target_of_several_rules_gets_one_message(tmp_path, monkeypatch, command):
    """Also mail, by a sendmail that is a script, and a command."""
    inbox, message = tmp_path / "inbox", tmp_path / "message"
    sendmail = tmp_path / "sendmail"
    sendmail.write_text(f"#!/bin/sh\ncat >> {inbox}\n")
    sendmail.chmod(0o755)
    monkeypatch.setattr(alert_delivery, "_SENDMAIL", (str(sendmail),))
    path = tmp_path / "spec.yaml"
    path.write_text(
        "kind: learner-workers\nname: r\nalerts:\n"
        "  - {when: [failed], to: mail, address: ada@lab.org}\n"
        "  - {when: [stalled], to: mail, address: ada@lab.org, after: 10m}\n"
        f"  - {{when: [done], to: command, command: [tee, -a, {message}]}}\n"
        f"  - {{when: [limit], to: command, command: [tee, -a, {message}]}}\n"
        "  - {when: [done], to: command, command: ['false']}\n"
    )
    code, out, _ = command(str(path))
    assert code == EXIT_FAILED
    assert out.splitlines() == [
        "sent to mail to ada@lab.org",
        "sent to command tee",
        "not delivered to command false: it ended with code 1",
    ]
    assert inbox.read_text().count("Subject: [l2r] r: test: alerts of this run arrive here") == 1
    assert message.read_text().count('"state": "test"') == 1
