"""Training settings of a plan's runs, checked by the runtime's own rules, which need no runtime to be installed.

The services give every backend the same findings; where there are none, the local one asks the installed runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.workload import RunSpec
from runtime.base import bounded_json

if TYPE_CHECKING:
    from runtime.base.training_rules import TrainingFacts

RUNTIME_COMMAND: Final = "l2r-runtime"
HINT: Final = "`l2rtui explain train` names all settings."
_ROLES: Final = ("learner", "worker", "evaluator")
"""Subcommands of the runtime that read the training settings of reinforcement learning."""


def train_settings(spec: RunSpec) -> Mapping[str, Any] | None:
    """Return the settings of a run with processes of the runtime; None for other runs and for invalid text."""
    commands = (set_spec.command[:2] for set_spec in spec.sets if not set_spec.template)
    if not any(
        len(command) == 2 and command[0] == RUNTIME_COMMAND and command[1] in _ROLES for command in commands
    ):
        return None
    try:
        settings = bounded_json.loads(spec.train or "{}")
    except ValueError:  # the runtime refuses it with its own sentence
        return None
    return settings if isinstance(settings, dict) else None


def facts_of(settings: Mapping[str, Any]) -> TrainingFacts:
    """Return the facts about training settings."""
    from runtime.base import training_rules  # 50 ms, which the first frame has no use for

    return training_rules.facts_of(settings)


def settings_findings(spec: RunSpec) -> tuple[Finding, ...]:
    """Return a refusal for each mistake in a run's training settings."""
    settings = train_settings(spec)
    return () if settings is None else refused(spec.name, facts_of(settings))


def refused(run: str, facts: TrainingFacts) -> tuple[Finding, ...]:
    """Return a refusal of a run, by its name, for each mistake in its training settings."""
    return tuple(
        Finding(Severity.REFUSAL, "train", f"train of {run}: {sentence}", HINT) for sentence in facts.mistakes
    )
