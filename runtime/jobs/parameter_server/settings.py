"""Settings of a parameter-server run: from the launcher's JSON, or from the plain variables of old charts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from runtime.base import bounded_json, contract
from runtime.base.errors import SetupError


@dataclass(frozen=True, slots=True)
class PsSettings:
    """Hyperparameters and length of a run."""

    batch_size: int = 20
    """Images per gradient."""
    learning_rate: float = 0.001
    """Step size of Adam."""
    train_steps: int = 200
    """Steps of each server, over all workers; 0 for no limit."""
    hidden_units: int = 128
    max_staleness: int = 8
    """Number of steps by which a gradient's weights may be older than the weights that it changes."""
    seed: int = 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> PsSettings:
        """Return the settings from the variables; unknown ones are for other programs. Raises SetupError."""
        try:
            overrides = bounded_json.loads(environ.get(contract.ENV_CONFIG) or "{}")
        except ValueError as error:
            raise SetupError(f"{contract.ENV_CONFIG} is no JSON: {error}") from error
        if not isinstance(overrides, dict):
            raise SetupError(f"{contract.ENV_CONFIG} must be a JSON object")
        overrides = {"seed": environ.get(contract.ENV_SEED) or 0, **overrides}
        values = {
            setting.name: _number(
                setting.name, overrides.get(setting.name, environ.get(setting.name.upper()) or setting.default)
            )
            for setting in fields(cls)
        }
        integers = {name: int(value) for name, value in values.items() if name != "learning_rate"}
        settings = cls(learning_rate=values["learning_rate"], **integers)
        if settings.learning_rate <= 0 or settings.batch_size < 1 or settings.hidden_units < 1:
            raise SetupError("batch_size, hidden_units and learning_rate must be above 0")
        return settings


def _number(name: str, value: object) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf or (name != "learning_rate" and number != int(number)):
        kind = "number" if name == "learning_rate" else "whole number"
        raise SetupError(f"{name} is {value!r}; it must be a {kind} from 0")
    return number
