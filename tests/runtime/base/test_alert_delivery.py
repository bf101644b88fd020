"""Delivery of alerts by real requests and processes: received messages and refusals; no address is shown."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from runtime.base import alert_delivery
from runtime.base.alert_delivery import MAX_QUEUED, AlertSender, DeliveryError, Sender, deliver
from runtime.base.alert_rules import AlertMessage, AlertRule
from tests.fakes.webhook import Webhook

RUN = Sender("cartpole", "u-1", 3)


@pytest.fixture
def hook(monkeypatch) -> Iterator[Webhook]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Webhook() as webhook:
        yield webhook


def message(**fields: object) -> AlertMessage:
    rule = {"to": "webhook", **({} if "url_file" in fields else {"url_from": "HOOK"}), **fields}
    return AlertMessage(AlertRule(("failed",), **rule), "failed", "failed: exit code 1")


def test_a_webhook_gets_the_form_of_slack_or_plain_json(hook):
    environ = {"HOOK": f"{hook.url}/ok\n"}
    deliver(message(), RUN, environ, 7.0)
    deliver(message(form="json"), RUN, environ, 7.0)
    text = "cartpole: failed: exit code 1"
    assert hook.bodies[0] == {"text": text}
    names = {"run": "cartpole", "run_id": "u-1", "seed": 3, "state": "failed", "time": 7.0}
    assert hook.bodies[1] == names | {"sentence": "failed: exit code 1", "text": text}


def test_the_address_may_stand_in_a_file(hook, tmp_path):
    (tmp_path / "hook").write_text(f"{hook.url}/ok\n")
    deliver(message(url_file=str(tmp_path / "hook")), RUN, {}, 0.0)
    assert len(hook.bodies) == 1
    with pytest.raises(DeliveryError, match=r"the file /.*/missing cannot be read: No such file"):
        deliver(message(url_file=str(tmp_path / "missing")), RUN, {}, 0.0)


def test_a_webhook_that_fails_or_redirects_is_named_by_its_variable_alone(hook):
    for path, sentence in (("fail", "it answered 500"), ("moved", "redirects are not followed")):
        with pytest.raises(DeliveryError, match=sentence) as caught:
            deliver(message(), RUN, {"HOOK": f"{hook.url}/{path}"}, 0.0)
        assert "127.0.0.1" not in str(caught.value)
    assert hook.paths == ["/fail", "/moved"]
    assert hook.bodies == []


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("", "the variable HOOK is empty or not set"),
        ("file:///etc/passwd", "holds no address that begins with https"),
        ("ftp://T0K", "holds no address"),
        ("http://T0K/a b\r\nX: y", "holds no address"),
        ("http://127.0.0.1:1/T0K", "it cannot be reached: Connection refused"),
        ("http://[T0K", "it cannot be reached: ValueError"),
        ("http://127.0.0.1:T0K/", "it cannot be reached: "),
    ],
)
def test_what_is_no_webhook_is_refused_without_its_address(monkeypatch, address, sentence):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(DeliveryError, match=sentence) as caught:
        deliver(message(), RUN, {"HOOK": address}, 0.0)
    assert "T0K" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.process
def test_a_command_gets_the_message_and_is_ended_in_time(tmp_path, monkeypatch):
    target = tmp_path / "message"
    rule = {"to": "command", "url_from": ""}
    deliver(message(**rule, command=("tee", str(target))), RUN, {"PATH": "/usr/bin:/bin"}, 0.0)
    assert json.loads(target.read_text())["run"] == "cartpole"
    with pytest.raises(DeliveryError, match="it ended with code 1"):
        deliver(message(**rule, command=("false",)), RUN, {"PATH": "/usr/bin:/bin"}, 0.0)
    with pytest.raises(DeliveryError, match="it cannot be started: No such file"):
        deliver(message(**rule, command=(str(tmp_path / "missing"),)), RUN, {}, 0.0)
    monkeypatch.setattr(alert_delivery, "TIMEOUT_SECONDS", 0.2)
    with pytest.raises(DeliveryError, match="it did not end within"):
        deliver(message(**rule, command=("sleep", "600")), RUN, {"PATH": "/usr/bin:/bin"}, 0.0)


@pytest.fixture
def mail_file(tmp_path, monkeypatch):
    """The file into which the host's sendmail, a script, writes the latest mail."""
    program, target = tmp_path / "sendmail", tmp_path / "mail"
    program.write_text(f"#!/bin/sh\ncat > {target}\n")
    program.chmod(0o755)
    monkeypatch.setattr(alert_delivery, "_SENDMAIL", (str(program),))
    return target


@pytest.mark.process
def test_a_mail_goes_to_the_hosts_sendmail(mail_file, monkeypatch):
    deliver(message(to="mail", url_from="", address="ada@lab.org"), RUN, {}, 0.0)
    text = mail_file.read_text()
    assert "To: ada@lab.org" in text
    assert "Subject: [l2r] cartpole: failed: exit code 1" in text
    monkeypatch.setattr(alert_delivery, "_SENDMAIL", ())
    with pytest.raises(DeliveryError, match="sendmail is not installed here"):
        deliver(message(to="mail", url_from="", address="ada@lab.org"), RUN, {}, 0.0)


def test_a_webhook_that_hangs_delays_nobody_and_what_waits_too_long_is_dropped(hook):
    said: list[str] = []
    is_dropped = threading.Event()

    def say(sentence: str) -> None:
        said.append(sentence)
        if "alert dropped" in sentence:
            is_dropped.set()

    sender = AlertSender(RUN, {"HOOK": f"{hook.url}/hang"}, say)
    began = time.monotonic()
    for _ in range(MAX_QUEUED + 2):
        sender.send(message())
    assert is_dropped.wait(60)
    sender.close(0.01)
    # Far less than the ten seconds of one attempt, even on a loaded machine.
    assert time.monotonic() - began < 8
    assert any("are lost" in sentence for sentence in said)


@pytest.mark.process
def test_a_mail_that_cannot_be_written_does_not_keep_later_ones(mail_file):
    said: list[str] = []
    sender = AlertSender(RUN, {}, said.append)
    mail = message(to="mail", url_from="", address="ada@lab.org")
    sender.send(replace(mail, sentence="failed: no folder \udcff"))  # a file name that is not UTF-8
    sender.send(mail)
    sender.close(60)
    assert said[0] == "alert not delivered to mail to ada@lab.org: UnicodeEncodeError"
    assert "failed: exit code 1" in mail_file.read_text()


def test_a_failing_webhook_is_tried_again_and_then_named(hook, monkeypatch):
    monkeypatch.setattr(alert_delivery, "_RETRY_SECONDS", (0.0, 0.0))
    said: list[str] = []
    sender = AlertSender(RUN, {"HOOK": f"{hook.url}/fail"}, said.append)
    sender.send(message())
    sender.close(60)
    assert said == ["alert not delivered to webhook of HOOK: it answered 500"]
    assert hook.paths == ["/fail"] * 3
