"""Rules of alerts: invalid ones, the states they select, and a ledger that prevents duplicates."""

from __future__ import annotations

import json
import random
import re

import pytest

from runtime.base.alert_rules import (
    AFTER_SECONDS,
    REARM_SECONDS,
    AlertLedger,
    AlertRule,
    Facts,
    parse_rules,
    rules_text,
)
from runtime.base.limits import LimitNotice

HOOK = "SLACK_URL"
RULE = AlertRule(("stalled", "diverged", "failed", "done", "learned=475", "limit"), "webhook", url_from=HOOK)
NEAR, REACHED = LimitNotice("wall", 60, 0.92), LimitNotice("wall", 60, 1.0)


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (AlertRule((), "mail", address="a@b"), "when is empty"),
        (AlertRule(("broken",), "mail", address="a@b"), "'broken' is not a state"),
        (AlertRule(("learned=much",), "mail", address="a@b"), "'learned=much' is not a state"),
        (AlertRule(("done",), "mail", address="nobody"), "address is not an e-mail address"),
        (AlertRule(("done",), "mail", address="-bp@x"), "address is not an e-mail address"),
        (AlertRule(("done",), "command"), "command is empty"),
        (AlertRule(("done",), "webhook"), "needs url_from"),
        (AlertRule(("done",), "webhook", url_from=HOOK, url_file="/x"), "and not both"),
        (AlertRule(("done",), "webhook", url_file="x"), "begins with /"),
        (AlertRule(("done",), "webhook", url_from="https://hooks/T0K"), "the address itself has no place"),
    ],
)
def test_a_wrong_rule_is_explained_and_no_address_repeated(rule, sentence):
    assert sentence in rule.problem()
    assert "T0K" not in rule.problem()
    with pytest.raises(ValueError, match=re.escape(rule.problem())):
        parse_rules(rules_text([rule]))


def test_rules_travel_as_text():
    mail = AlertRule(("failed",), "mail", address="a@b.org")
    rules = (RULE, mail, AlertRule(("done",), "command", command=("x",)))
    assert parse_rules(rules_text(rules)) == rules
    assert (rules_text(()), parse_rules("")) == ("", ())
    assert [rule.target for rule in rules] == ["webhook of SLACK_URL", "mail to a@b.org", "command x"]


@pytest.mark.parametrize("text", ["{", "{}x", '[{"to":"mail"}]', '[{"when":3}]', "3", '["a"]', "[" * 100_000])
def test_a_variable_that_holds_no_rules_is_refused(text):
    with pytest.raises(ValueError, match="no list of rules"):
        parse_rules(text)


def sentences(ledger: AlertLedger, now: float, **facts: object) -> list[str]:
    return [message.sentence for message in ledger.due([RULE], Facts(**facts), now)]


def test_each_state_is_told_in_its_words():
    ledger = AlertLedger()
    assert sentences(ledger, 0, stalled_seconds=AFTER_SECONDS - 1, best_return=474) == []
    assert sentences(ledger, 1, stalled_seconds=AFTER_SECONDS) == ["stalled: no update for 5 min"]
    assert sentences(ledger, 2, diverged="actor_loss is not finite") == ["diverged: actor_loss is not finite"]
    assert sentences(ledger, 3, best_return=480.5) == ["learned: return 480.5"]
    assert sentences(ledger, 4, limit=NEAR) == ["limit near: 92 % of limit wall 1 min"]
    # The limit that ends a run is reported once, not again as the end of the run.
    assert sentences(ledger, 5, limit=REACHED, done="ended by limit wall 1 min") == ["ended by limit wall 1 min"]
    assert sentences(AlertLedger(), 6, failed="exit code 1", done="") == ["failed: exit code 1"]


def test_a_thousand_changes_a_minute_send_what_the_rules_say_and_nothing_twice():
    ledger, sent = AlertLedger(), []
    for step in range(1000):
        now = step * 0.06
        is_on = step % 2 == 1
        sent += sentences(
            ledger,
            now,
            stalled_seconds=AFTER_SECONDS + step if is_on else 0.0,
            diverged="its return fell" if is_on else "",
            failed=f"exit code {step}" if is_on else "",
            best_return=400.0 + step / 5,
            limit=NEAR if step % 3 else None,
        )
        # Stored and read again, as by a learner that restarts after each change.
        ledger = AlertLedger.from_facts(json.loads(json.dumps(ledger.facts())))
    assert sorted(sentence.partition(":")[0] for sentence in sent) == [
        "diverged",
        "failed",
        "learned",
        "limit near",
        "stalled",
    ]


def test_an_hour_of_a_thousand_changes_a_minute_agrees_with_the_rule_as_written():
    """A state is news if it was not present within the last ten minutes; a lasting state is sent once."""
    rng, ledger, sent, expected = random.Random(7), AlertLedger(), [], []
    is_on = dict.fromkeys(("diverged", "failed", "done"), False)
    latest = dict.fromkeys(is_on, float("-inf"))
    calm_until = 0.0
    for step in range(60_000):
        now = step * 0.06
        if step % 15_000 == 0:  # calm for a while, so that a state can be absent for long enough
            calm_until = now + rng.uniform(0.7, 1.4) * REARM_SECONDS
            is_on = dict.fromkeys(is_on, False)
        elif now >= calm_until:
            name = rng.choice(list(is_on))
            is_on[name] = not is_on[name]
        for name, value in is_on.items():
            if value:
                if now - latest[name] >= REARM_SECONDS:
                    expected.append((step, name))
                latest[name] = float("inf") if name == "done" else now
        reasons = {name: "x" if value else "" for name, value in is_on.items()}
        sent += [(step, sentence.partition(":")[0]) for sentence in sentences(ledger, now, **reasons)]
        if step % 100 == 0:
            ledger = AlertLedger.from_facts(json.loads(json.dumps(ledger.facts())))
    assert sorted(sent) == sorted(expected)
    assert 3 < len(sent) < 9, "some were told again after they were over for long, and some were not"


def test_a_state_that_was_over_for_long_is_news_again_and_a_lasting_one_never():
    ledger = AlertLedger()
    assert sentences(ledger, 0, failed="x", best_return=500)
    assert sentences(ledger, REARM_SECONDS - 1) == []
    assert sentences(ledger, REARM_SECONDS - 1, failed="x") == []
    assert sentences(ledger, 3 * REARM_SECONDS) == []
    assert sentences(ledger, 3 * REARM_SECONDS + 1, failed="y", best_return=501) == ["failed: y"]


def test_each_rule_tells_for_itself():
    rules = [RULE, AlertRule(("failed",), "mail", address="a@b")]
    messages = AlertLedger().due(rules, Facts(failed="x"), 0.0)
    assert [message.rule.to for message in messages] == ["webhook", "mail"]
