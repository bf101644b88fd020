"""Settings of a parameter-server run: from the launcher's JSON, or from plain variables as old charts set them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from runtime import contract
from runtime.process import UsageError


@dataclass(frozen=True, slots=True)
class Hyper:
    """What is trained and for how long."""

    batch_size: int = 20
    """Pictures in a gradient."""
    learning_rate: float = 0.001
    """Step size of Adam."""
    train_steps: int = 200
    """Steps of each server, over all workers; 0 goes on for ever."""
    hidden_units: int = 128
    max_staleness: int = 8
    """Steps that the weights of a gradient may be behind those that it moves."""
    seed: int = 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Hyper:
        """Return the settings that the variables state; unknown ones are for other programs. Raises UsageError."""
        try:
            given = json.loads(environ.get(contract.ENV_CONFIG) or "{}")
        except ValueError as error:
            raise UsageError(f"{contract.ENV_CONFIG} is no JSON: {error}") from error
        if not isinstance(given, dict):
            raise UsageError(f"{contract.ENV_CONFIG} must be a JSON object")
        given = {"seed": environ.get(contract.ENV_SEED) or 0, **given}
        values = {
            each.name: _number(each.name, given.get(each.name, environ.get(each.name.upper()) or each.default))
            for each in fields(cls)
        }
        whole = {name: int(value) for name, value in values.items() if name != "learning_rate"}
        made = cls(learning_rate=values["learning_rate"], **whole)
        if made.learning_rate <= 0 or made.batch_size < 1 or made.hidden_units < 1:
            raise UsageError("batch_size, hidden_units and learning_rate must be above 0")
        return made


def _number(name: str, value: object) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf or (name != "learning_rate" and number != int(number)):
        kind = "number" if name == "learning_rate" else "whole number"
        raise UsageError(f"{name} is {value!r}; it must be a {kind} from 0")
    return number
