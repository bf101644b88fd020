"""Test of a run's alerts: a message to each target, sent by the run's learner, or from this machine before there is
one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from msgspec import Struct

from l2rtui.backends.base import Backend
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import UsageError
from l2rtui.services.metrics import learner_of
from runtime.base.alert_delivery import DeliveryError, Sender, deliver
from runtime.base.alert_rules import AlertMessage, AlertRule, distinct_targets

_TEST_COMMAND = ("l2r-runtime", "alert", "--test")
_SENTENCE = "test: alerts of this run arrive here"


class Delivery(Struct, frozen=True):
    """Result of a test message: description of the target, and the problem as a sentence; empty on success."""

    target: str
    problem: str = ""


async def from_here(spec: RunSpec, environ: Mapping[str, str]) -> tuple[Delivery, ...]:
    """Send a message to each target of a spec from this machine, with its variables."""
    rules = distinct_targets(spec.alerts)
    return tuple([await asyncio.to_thread(_deliver, rule, spec, environ) for rule in rules])


def _deliver(rule: AlertRule, spec: RunSpec, environ: Mapping[str, str]) -> Delivery:
    try:
        deliver(AlertMessage(rule, "test", _SENTENCE), Sender(spec.name, "", spec.seed), environ, time.time())
    except DeliveryError as error:
        return Delivery(rule.target, str(error))
    return Delivery(rule.target)


async def from_run(backend: Backend, snapshot: ClusterSnapshot, run: str) -> tuple[int, str]:
    """Let a run's learner send a message to each of its targets; return the exit code and the output.

    Raises:
        L2RError: the run has no running learner, or no command can be run in its pod.
    """
    learner = learner_of(snapshot, run)
    if not learner.ready:
        sentence = f"{learner.name} does not run, so it can send nothing."
        raise UsageError(sentence, "`l2rtui alerts test FILE` sends from here, by the spec file.")
    output = await backend.capture(learner, _TEST_COMMAND)
    text = (output.out + output.err).decode(errors="replace")
    return output.code, "\n".join(sanitize(line) for line in text.splitlines() if line.strip())
