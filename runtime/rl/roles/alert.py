"""Command ``l2r-runtime alert``: tests a run's alerts, and reports a learner that died without reporting itself.

The learner's supervisor starts it with the learner's variables.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from runtime.base import contract
from runtime.base.alert_delivery import AlertSender, DeliveryError, Sender, deliver
from runtime.base.alert_rules import AlertMessage, AlertRule, Facts, distinct_targets
from runtime.base.atomic_files import lock_folder
from runtime.base.errors import SetupError
from runtime.base.launch_context import LaunchContext
from runtime.base.limits import LimitNotice, worst_notice
from runtime.base.metrics import Console
from runtime.rl.roles.run_watch import WatchState, from_environment

LOCK_SECONDS = 2.0
"""Longest wait for the folder lock: a process that holds it longer is a live learner, which reports itself."""
PATIENCE_SECONDS = 60.0
"""Longest wait for all deliveries: each has several attempts, and no process waits for this one."""
TEST = "test"


def send_test(environ: Mapping[str, str]) -> int:
    """Send one test message to each target, print the results, and return an exit code."""
    sender, rules = _sender(environ)
    if not rules:
        print("this run has no alerts")
        return contract.EXIT_FAILED
    failures = 0
    for rule in distinct_targets(rules):
        try:
            deliver(AlertMessage(rule, TEST, "test: alerts of this run arrive here"), sender, environ, time.time())
            print(f"sent to {rule.target}")
        except DeliveryError as error:
            failures += 1
            print(f"not delivered to {rule.target}: {error}")
    return contract.EXIT_FAILED if failures else contract.EXIT_DONE


def report_death(
    environ: Mapping[str, str],
    reason: str,
    *,
    is_by_limit: bool = False,
    patience_seconds: float = PATIENCE_SECONDS,
) -> int:
    """Report that a learner has ended without reporting it, unless it or its successor has reported it or will.

    Args:
        reason: Sentence on how it ended.
        is_by_limit: A limit ended it, according to the reason.
        patience_seconds: Longest wait for all deliveries.
    """
    context = LaunchContext.from_environment(environ, "learner")
    sender, rules = _sender(environ)
    limits, *_ = from_environment(environ)
    folder = context.learner_folder()
    try:
        with lock_folder(folder, LOCK_SECONDS):
            state = WatchState.read(folder, context.run_id)
            reached = worst_notice(limits, state.used)
            if reached is not None and reached.is_reached:
                return contract.EXIT_DONE  # it ended by that limit and reported it
            notice = LimitNotice("deadline", 1.0, 1.0) if is_by_limit else None
            facts = Facts(done=reason, limit=notice) if is_by_limit else Facts(failed=reason)
            messages = state.ledger.due(rules, facts, time.time())
            # The successor must not report the same again.
            state.is_running = False
            state.write(folder)
    except BlockingIOError:
        return contract.EXIT_DONE
    console = Console()
    senders = [(message, AlertSender(sender, environ, console.say)) for message in messages]
    for message, own in senders:
        sentence = reason if message.state == "limit" else message.sentence
        own.send(AlertMessage(message.rule, message.state, sentence))
    deadline = time.monotonic() + patience_seconds
    for _, own in senders:
        own.close(max(0.0, deadline - time.monotonic()))
    return contract.EXIT_DONE


def _sender(environ: Mapping[str, str]) -> tuple[Sender, tuple[AlertRule, ...]]:
    """Return the sender with the run's names, and the run's rules. Raises SetupError."""
    _, _, rules = from_environment(environ)
    run = environ.get(contract.ENV_RUN, "")
    try:
        seed = int(environ.get(contract.ENV_SEED) or 0)
    except ValueError as error:
        raise SetupError(f"{contract.ENV_SEED} is no number") from error
    return Sender(run, environ.get(contract.ENV_RUN_ID, run), seed), rules
