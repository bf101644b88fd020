"""Rules by which a run sends alerts, the ledger that prevents duplicate alerts, and the trend of the return.

A launcher provides the rules in ``contract.ENV_ALERTS``. The learner applies them; if it dies, the process that
notices that applies them with the same ledger. Pure: no clock, no I/O. Secret addresses are only referred to by
name here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from runtime.base import bounded_json
from runtime.base.durations import duration_text
from runtime.base.limits import LimitNotice

FALLEN_SECONDS: Final = 120.0
"""Time for which a return must be far below its best to count as divergence: exploration causes dips too."""
_SMOOTHING_SECONDS: Final = 60.0
"""Time constant of the smoothed return: single episodes and evaluations vary strongly."""
_FALLEN: Final = 0.2
"""Fraction of the way from its first to its best return below which a return has collapsed; 0.4 ends that."""
_RECOVERED: Final = 0.4
_NOISES: Final = 4.0
"""Number of mean deviations by which a smoothed return must differ from its best: less may be chance."""


class ReturnTrend(Struct, frozen=True):
    """Return of a run, exponentially smoothed, against its own best.

    Attributes:
        level: Smoothed return. noise: Smoothed absolute deviation from it.
        first, best: Level once the smoothing has reached its time constant, and the highest since; None before.
        fallen_since: Time since which the level is far below the best; otherwise 0.
    """

    level: float
    began: float
    time: float
    noise: float = 0.0
    first: float | None = None
    best: float | None = None
    fallen_since: float = 0.0

    def after(self, value: float, time: float) -> ReturnTrend:
        """Return the trend after one more value."""
        gap = time - self.time
        if gap <= 0:  # a clock that was set back: the time between is unknown
            return self
        weight = 1.0 - math.exp(-gap / _SMOOTHING_SECONDS)
        level = self.level + weight * (value - self.level)
        noise = self.noise + weight * (abs(value - self.level) - self.noise)
        if time - self.began < _SMOOTHING_SECONDS:
            return replace(self, level=level, noise=noise, time=time)
        first = level if self.first is None else self.first
        best = level if self.best is None else max(self.best, level)
        edge = first + (_RECOVERED if self.fallen_since else _FALLEN) * (best - first)
        has_fallen = level < edge and best - level > _NOISES * noise
        since = (self.fallen_since or time) if has_fallen else 0.0
        return ReturnTrend(level, self.began, time, noise, first, best, since)


STATES: Final = ("stalled", "diverged", "failed", "done", "limit")
LEARNED: Final = "learned="
"""State with a value: ``learned=475`` is reached when the return is at least that high."""
AFTER_SECONDS: Final = 300.0
"""Default time for which a run must have stalled before an alert."""
REARM_SECONDS: Final = 600.0
"""Time after the end of a state from which its return causes another alert; a flapping state causes only one."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MAIL: Final = re.compile(r"[^\s@,<>-][^\s@,<>]*@[^\s@,<>]+", re.ASCII)
_LASTING: Final = ("done", "learned", "limit")
"""States that cannot become false again: they cause one alert in the life of a run."""


class AlertRule(Struct, frozen=True):
    """Rule: which states cause an alert, and to whom.

    Attributes:
        when: States, of ``STATES`` or ``learned=VALUE``.
        to: webhook, mail or command.
        url_from: Variable with the address of the webhook. url_file: File with the address.
        form: Body of the request, slack, mattermost or json.
        address: Mail address. command: argv, which gets the message as JSON on standard input.
        after_seconds: Time for which a run must have stalled.
    """

    when: tuple[str, ...]
    to: str
    url_from: str = ""
    url_file: str = ""
    form: str = "slack"
    address: str = ""
    command: tuple[str, ...] = ()
    after_seconds: float = AFTER_SECONDS

    def problem(self) -> str:
        """Return a sentence on the first mistake, without values that may be secret; empty if valid."""
        if not self.when:
            return "when is empty: name states, such as failed"
        if wrong := next((state for state in self.when if not _is_state(state)), ""):
            return f"when: {wrong[:40]!r} is not a state: write {', '.join(STATES)} or learned=475"
        if self.to == "webhook":
            return self._webhook_problem()
        if self.to == "mail":
            return "" if _MAIL.fullmatch(self.address) else "address is not an e-mail address, such as ada@lab.org"
        return "" if self.command and all(self.command) else "command is empty: write it as a list"

    def _webhook_problem(self) -> str:
        if bool(self.url_from) == bool(self.url_file):
            return "a webhook needs url_from, the variable of a secret, or url_file, and not both"
        if self.url_from and not _VARIABLE.fullmatch(self.url_from):
            # The likeliest mistake is the address itself, which is a secret.
            return "url_from names a variable of a secret (SLACK_URL); the address itself has no place in a spec"
        if self.url_file and not self.url_file.startswith("/"):
            return "url_file is the path of a file in the container and begins with /"
        return ""

    @property
    def target(self) -> str:
        """Description of the target without a secret: ``webhook of SLACK_URL``."""
        if self.to == "webhook":
            return f"webhook of {self.url_from or self.url_file}"
        return f"mail to {self.address}" if self.to == "mail" else f"command {self.command[0]}"


def distinct_targets(rules: Sequence[AlertRule]) -> tuple[AlertRule, ...]:
    """Return the first rule of each target: several rules may send different states to the same target."""
    first: dict[object, AlertRule] = {}
    for rule in rules:
        first.setdefault(replace(rule, when=(), after_seconds=0.0), rule)
    return tuple(first.values())


def _is_state(text: str) -> bool:
    return text in STATES or _learned_value(text) is not None


def _learned_value(state: str) -> float | None:
    """Return the value of ``learned=VALUE``; None for any other state."""
    if not state.startswith(LEARNED):
        return None
    try:
        value = float(state.removeprefix(LEARNED))
    except ValueError:
        return None
    return value if abs(value) < 1e300 else None


def rules_text(rules: Sequence[AlertRule]) -> str:
    """Return the value of the variable; empty without a rule."""
    return json.dumps(to_builtins(rules), separators=(",", ":")) if rules else ""


def parse_rules(text: str) -> tuple[AlertRule, ...]:
    """Parse the rules in the variable. Raises ValueError."""
    try:
        items: list[dict[str, Any]] = bounded_json.loads(text or "[]")
        rules = tuple(
            AlertRule(**{**item, "when": tuple(item["when"]), "command": tuple(item.get("command", ()))})
            for item in items
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError("they are no list of rules") from error
    if problem := next(filter(None, (rule.problem() for rule in rules)), ""):
        raise ValueError(problem)
    return rules


# --- states of a run --------------------------------------------------------------------------------------------
class Facts(Struct, frozen=True):
    """Facts of a run at one moment.

    Attributes:
        stalled_seconds: Time since its latest update; 0 if no update is expected.
        diverged, failed, done: Reason as a sentence; empty if it does not apply.
        best_return: Highest return so far; None before the first.
        limit: Limit that is near or reached.
    """

    stalled_seconds: float = 0.0
    diverged: str = ""
    failed: str = ""
    done: str = ""
    best_return: float | None = None
    limit: LimitNotice | None = None


class AlertCondition(Struct, frozen=True):
    """State that a rule asks for and that currently applies.

    Attributes:
        state: As in the rule. key: The same for every message on the same matter.
    """

    state: str
    key: str
    sentence: str

    @property
    def is_lasting(self) -> bool:
        """True if it causes only one alert in the life of the run."""
        return self.key.partition(":")[0] in _LASTING


def conditions(rule: AlertRule, facts: Facts) -> Iterator[AlertCondition]:
    """Yield the states of a rule that currently apply."""
    for state in rule.when:
        if state == "stalled":
            if facts.stalled_seconds >= rule.after_seconds:
                yield AlertCondition(state, state, f"stalled: no update for {duration_text(facts.stalled_seconds)}")
        elif state == "limit":
            if (notice := facts.limit) is not None:
                stage = "reached" if notice.is_reached else "near"
                yield AlertCondition(state, f"limit:{notice.name}:{stage}", notice.sentence)
        elif (value := _learned_value(state)) is not None:
            if facts.best_return is not None and facts.best_return >= value:
                yield AlertCondition(state, f"learned:{value:g}", f"learned: return {facts.best_return:.6g}")
        elif state == "done" and "limit" in rule.when and facts.limit is not None and facts.limit.is_reached:
            continue  # this rule already reports the limit that has ended the run
        elif reason := getattr(facts, state):
            yield AlertCondition(state, state, f"{state}: {reason}")


# --- messages, none twice ---------------------------------------------------------------------------------------
class AlertMessage(Struct, frozen=True):
    """Message to the target of one rule."""

    rule: AlertRule
    state: str
    sentence: str


@dataclass(slots=True)
class AlertLedger:
    """Sent messages of a run, by rule and matter, with the latest time at which each state applied.

    It is stored with the checkpoints, so that a restarted learner, or the process that reports its death, does not
    repeat them.
    """

    times: dict[str, float] = field(default_factory=dict)

    def due(self, rules: Sequence[AlertRule], facts: Facts, now: float) -> list[AlertMessage]:
        """Return due messages and record them as sent.

        Args:
            now: Seconds since the epoch: the ledger outlives the process and its monotonic clock.
        """
        messages, present = [], set()
        for number, rule in enumerate(rules):
            for condition in conditions(rule, facts):
                key = f"{number}:{condition.key}"
                present.add(key)
                if key not in self.times:
                    messages.append(AlertMessage(rule, condition.state, condition.sentence))
                # A lasting state gets an infinite time, so that it is never dropped below.
                self.times[key] = float("inf") if condition.is_lasting else now
        for key in [key for key, time in self.times.items() if key not in present and now - time >= REARM_SECONDS]:
            del self.times[key]
        return messages

    def facts(self) -> dict[str, float | None]:
        """Return plain values for a file: JSON has no infinity, so null represents it."""
        return {key: None if time == float("inf") else time for key, time in self.times.items()}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> AlertLedger:
        """Return the ledger of a file. Entries without a valid time count as already sent."""
        times = {
            str(key): float(time) if isinstance(time, int | float) else float("inf") for key, time in facts.items()
        }
        return cls(times)
