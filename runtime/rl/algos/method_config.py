"""Settings that all methods have, and those of a family: of methods that learn from a replay, or from rollouts.

A method's config is a frozen value of one of both families, without torch, since workers read it: it says what a
segment holds and how actions are drawn. A method of one's own derives its `Config` from one of them.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

from runtime.base import replay_memory
from runtime.rl.algos.actor import Head
from runtime.rl.spaces import ActionSpace

_HOLDS: Final = {"above": operator.gt, "at least": operator.ge, "at most": operator.le}
"""Comparisons that a bound may ask for, by their words in a sentence."""
SHARE: Final = {"above": 0.0, "at most": 1.0}
WHOLE_SHARE: Final = {"at least": 0.0, "at most": 1.0}
POSITIVE: Final = {"above": 0.0}
COUNT: Final = {"at least": 1.0}
NOT_NEGATIVE: Final = {"at least": 0.0}


def number(default: Any, bounds: Mapping[str, float]) -> Any:
    """Declare a setting that is a number within ``bounds``, for example ``{"above": 0.0}``."""
    return field(default=default, metadata={"bounds": bounds})


def choice(default: str, one_of: Sequence[str]) -> Any:
    """Declare a setting that is one of several words."""
    return field(default=default, metadata={"one_of": tuple(one_of)})


@dataclass(frozen=True, slots=True)
class MethodConfig:
    """Settings of every method."""

    label: ClassVar[str] = "method"
    """Name of the method in sentences."""

    hidden: tuple[int, ...] = replay_memory.HIDDEN
    """Widths of the hidden layers of each network."""

    def __post_init__(self) -> None:
        """Refuse values that cannot learn, with a ValueError that says what they may be."""
        if not self.hidden or any(width < 1 for width in self.hidden):
            sentence = f"hidden is {self.hidden}; it needs at least one layer, each at least 1 wide"
            raise ValueError(f"{self.label}: {sentence}")
        for setting in dataclasses.fields(self):
            bounds, value = setting.metadata.get("bounds", {}), getattr(self, setting.name)
            if (words := setting.metadata.get("one_of")) and value not in words:
                sentence = f"{setting.name} is {value!r}; it must be one of {', '.join(words)}"
                raise ValueError(f"{self.label}: {sentence}")
            if value is not None and not all(_HOLDS[bound](value, limit) for bound, limit in bounds.items()):
                limits = " and ".join(f"{bound} {limit:g}" for bound, limit in bounds.items())
                written = f"{value:g}" if isinstance(value, float) else value
                raise ValueError(f"{self.label}: {setting.name} is {written}; it must be {limits}")

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Self:
        """Return the config of the settings in a spec; ValueError names a wrong one and what it may be."""
        declared = {setting.name: _type_text(setting.type) for setting in dataclasses.fields(cls)}
        for name, value in settings.items():
            if name not in declared:
                raise ValueError(f"{cls.label} has no setting {name!r}; known are {', '.join(declared)}")
            _check_type(cls.label, name, value, declared[name])
        return cls(**{name: _typed(value, declared[name]) for name, value in settings.items()})

    @classmethod
    def head(cls, action: ActionSpace) -> Head:
        """Return how actions are drawn from a policy's outputs.

        ValueError for actions that the method cannot take: a sentence whose subject is the environment.
        """
        return "categorical" if action.choices else "gaussian"


@dataclass(frozen=True, slots=True)
class ReplayConfig(MethodConfig):
    """Settings of a method that learns from batches of transitions, which a replay buffer keeps."""

    batch_size: int = number(replay_memory.SAC_BATCH_SIZE, COUNT)
    """Transitions in one update."""
    gamma: float = number(0.99, SHARE)
    """Discount a step; 1 / (1 - gamma) steps is how far ahead the policy cares."""
    n_step: int = number(1, COUNT)
    """Steps whose rewards are summed before a critic is asked. 3 spreads a late reward sooner, at the price of
    looking at what an older policy did."""
    prioritised: bool = False
    """Draw what the critics still misjudge more often (Schaul et al. 2016). Pays where rewards are rare."""
    priority_exponent: float = number(0.6, NOT_NEGATIVE)
    """How strongly; 0 draws evenly."""
    priority_correction: float = number(0.4, NOT_NEGATIVE)
    """How far the weights undo the uneven drawing at the start; 1 undoes it fully."""
    priority_correction_steps: int | None = number(None, COUNT)
    """Transitions over which that rises to 1 (Schaul et al. 2016, section 3.4); None keeps it, since the length of
    a run is not known before its end. `total_env_steps` is what the paper takes."""

    @classmethod
    def head(cls, action: ActionSpace) -> Head:
        """Return a squashed Gaussian for numbers, logits for choices."""
        return "categorical" if action.choices else "squashed"


@dataclass(frozen=True, slots=True)
class RolloutConfig(MethodConfig):
    """Settings of a method that learns from rollouts, each used in one update."""

    batch_steps: int = number(replay_memory.PPO_BATCH_STEPS, COUNT)
    """Env steps in one update, over all workers; a multiple of num_envs x segment_steps."""
    queue_batches: int = number(1, COUNT)
    """Batches that collection may be ahead of learning where workers do not wait. More hides a slow network, at the
    price of older data."""
    gamma: float = number(0.99, SHARE)
    """Discount a step."""
    normalise_returns: bool = False
    """Divide rewards by the running standard deviation of the discounted returns, over all workers. For continuous
    control, where rewards have any scale; with normalise_observations."""

    @property
    def waits_for_policy(self) -> bool:
        """True if workers wait for each new policy."""
        return True


def check_one_choice(action: ActionSpace, label: str) -> None:
    """Raise ValueError, a sentence whose subject is the environment, for several choices at once."""
    if len(action.choices) > 1:
        raise ValueError(
            f"takes {len(action.choices)} choices at once and {label} one; set algorithm to ppo or impala"
        )


def _type_text(declared: Any) -> str:
    """Return a field's type as it is written; a file without postponed annotations has the type itself."""
    return declared.__name__ if isinstance(declared, type) else str(declared)


def _check_type(method: str, name: str, value: Any, declared: str) -> None:
    """Raise ValueError unless `value` is of the declared type."""
    if declared.startswith("tuple"):
        if not isinstance(value, list | tuple) or not all(type(item) is int for item in value):
            example = "for example [128, 128]"
            raise ValueError(f"{method}: {name} is {value!r}; it must be a list of whole numbers, {example}")
        return
    if value is None and declared.endswith("None"):
        return
    if declared == "str":
        return  # one of the words that the setting declares
    if declared == "bool":
        if not isinstance(value, bool):
            raise ValueError(f"{method}: {name} is {value!r}; it must be true or false")
        return
    if declared.startswith("int") and type(value) is not int:
        raise ValueError(f"{method}: {name} is {value!r}; it must be a whole number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{method}: {name} is {value!r}; it must be a number")  # noqa: TRY004  (a spec's value)
    if declared.startswith("float") and abs(value) > sys.float_info.max:
        raise ValueError(f"{method}: {name} is too large")


def _typed(value: Any, declared: str) -> Any:
    """Return a value that `_check_type` has passed in the declared type: YAML gives 1 for 1.0, and lists."""
    if declared.startswith("tuple"):
        return tuple(value)
    return float(value) if declared.startswith("float") and value is not None else value
