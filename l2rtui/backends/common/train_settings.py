"""Training settings of a plan's runs, checked by the runtime's own rules, which need no runtime to be installed.

The services give every backend the same findings; where there are none, the local one asks the installed runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.workload import RunSpec
from runtime.base import bounded_json, environments

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


def settings_findings(spec: RunSpec) -> tuple[Finding, ...]:
    """Return a refusal for each mistake in a run's training settings."""
    settings = train_settings(spec)
    return () if settings is None else settings_mistakes(spec.name, settings)


def settings_mistakes(run: str, settings: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return a refusal for each mistake in the training settings of the run of this name."""
    from runtime.base.training_rules import mistakes_in  # 50 ms, which the first frame has no use for

    name = settings.get("environment", environments.DEFAULT)
    # An environment that does not exist has a finding of its own; its data says nothing about the method.
    is_missing = isinstance(name, str) and not environments.is_possible(name)
    checked = {key: value for key, value in settings.items() if key != "environment"} if is_missing else settings
    return tuple(
        Finding(Severity.REFUSAL, "train", f"train of {run}: {sentence}", HINT) for sentence in mistakes_in(checked)
    )
