"""Settings of the methods, as a spec writes them: frozen values with their bounds, without torch.

A worker reads some of them (how many steps a reward is summed over, how large a segment must be), so they stand
apart from the methods.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from runtime.base import replay_memory

_HOLDS: Final = {"above": operator.gt, "at least": operator.ge, "at most": operator.le}
"""Comparisons that a bound may ask for, by their words in a sentence."""
_SHARE: Final = {"above": 0.0, "at most": 1.0}
_POSITIVE: Final = {"above": 0.0}
_COUNT: Final = {"at least": 1.0}
_NOT_NEGATIVE: Final = {"at least": 0.0}


def _number(default: Any, bounds: Mapping[str, float]) -> Any:
    return field(default=default, metadata={"bounds": bounds})


@dataclass(frozen=True, slots=True)
class SACConfig:
    """Soft actor-critic. The defaults were chosen on the racing environment, see tests/bench/racing.py."""

    hidden: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers of actor and critics. Wider costs time before it costs quality on a CPU."""
    batch_size: int = _number(replay_memory.SAC_BATCH_SIZE, _COUNT)
    """Transitions in one update."""
    gamma: float = _number(0.98, _SHARE)
    """Discount a step; 1 / (1 - gamma) steps is how far ahead the policy cares: 50, or 5 s of driving."""
    tau: float = _number(0.01, _SHARE)
    """Share of the critics that the target critics take over in one update; the paper's 0.005 is calmer."""
    actor_lr: float = _number(5e-4, _POSITIVE)
    """Step size of the actor (Adam). 1e-3 laps as soon, but forgets how to again and again in a long run."""
    critic_lr: float = _number(5e-4, _POSITIVE)
    """Step size of the critics (Adam). Lower both to 3e-4 where the returns swing."""
    alpha_lr: float = _number(1e-3, _POSITIVE)
    """Step size of the temperature's logarithm (Adam)."""
    init_alpha: float = _number(0.1, _POSITIVE)
    """Temperature at the start; a few percent of the largest reward explores without drowning it."""
    target_entropy: float | None = None
    """Entropy that the temperature holds, nats; None means minus the number of action dimensions."""
    n_step: int = _number(1, _COUNT)
    """Steps whose rewards are summed before a critic is asked. 3 spreads a late reward sooner, at the price of
    looking at what an older policy did."""
    prioritised: bool = False
    """Draw what the critics still misjudge more often (Schaul et al. 2016). Pays where rewards are rare."""
    priority_exponent: float = _number(0.6, _NOT_NEGATIVE)
    """How strongly; 0 draws evenly."""
    priority_correction: float = _number(0.4, _NOT_NEGATIVE)
    """How far the weights undo the uneven drawing; 1 undoes it fully."""

    def __post_init__(self) -> None:
        """Refuse values that cannot learn, with a ValueError that says what they may be."""
        _check("SAC", self)


@dataclass(frozen=True, slots=True)
class PPOConfig:
    """Proximal policy optimisation. The defaults are those of the paper's successors for small networks."""

    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of actor and value."""
    batch_steps: int = _number(replay_memory.PPO_BATCH_STEPS, _COUNT)
    """Env steps in one update, over all workers; a multiple of num_envs x segment_steps."""
    epochs: int = _number(10, _COUNT)
    """Times that an update goes over its batch."""
    minibatch_size: int = _number(256, _COUNT)
    """Env steps in one gradient step."""
    gamma: float = _number(0.99, _SHARE)
    """Discount a step."""
    gae_lambda: float = _number(0.95, _SHARE)
    """How far the advantage looks past the value's own guess; 1 trusts the rewards alone."""
    clip: float = _number(0.2, _POSITIVE)
    """How far the probability of an action may move in one update before its slope is cut."""
    lr: float = _number(3e-4, _POSITIVE)
    """Step size (Adam)."""
    anneal_updates: int | None = _number(None, _COUNT)
    """Updates over which the step size falls to nothing; None keeps it."""
    entropy_cost: float = _number(0.0, _NOT_NEGATIVE)
    """Reward for a policy that stays random, a nat."""
    value_cost: float = _number(0.5, _POSITIVE)
    """Weight of the value's error."""
    max_grad_norm: float = _number(0.5, _POSITIVE)
    """Largest norm of the gradient; longer ones are scaled down."""
    target_kl: float | None = _number(None, _POSITIVE)
    """End an update once the policy has moved so far, nats; None goes through all epochs."""
    is_synchronous: bool = True
    """Workers wait for each new policy, as the paper has it. False collects the next batches meanwhile: faster
    where the update takes long, and some versions behind."""
    queue_batches: int = _number(1, _COUNT)
    """Batches that collection may be ahead of learning where it is not synchronous. More hides a slow network, at
    the price of older data."""

    def __post_init__(self) -> None:
        """Refuse values that cannot learn, with a ValueError that says what they may be."""
        _check("PPO", self)


@dataclass(frozen=True, slots=True)
class ImpalaConfig:
    """Importance-weighted actor-learner; with `clip` it is APPO."""

    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of actor and value."""
    batch_steps: int = _number(replay_memory.IMPALA_BATCH_STEPS, _COUNT)
    """Env steps in one update, over all workers; a multiple of num_envs x segment_steps."""
    queue_batches: int = _number(2, _COUNT)
    """Batches that collection may be ahead of learning. More hides a slow network, at the price of older data."""
    gamma: float = _number(0.99, _SHARE)
    """Discount a step."""
    reward_scale: float = _number(1.0, _POSITIVE)
    """Factor on rewards. A value is learned soonest where returns are near 1; with rewards of 1 a step and few
    updates, try a few times 1 - gamma, and a smaller entropy_cost with it."""
    rho_bar: float = _number(1.0, _POSITIVE)
    """Largest importance weight of a value's target."""
    c_bar: float = _number(1.0, _POSITIVE)
    """Largest importance weight of the trace behind it."""
    lr: float = _number(6e-4, _POSITIVE)
    """Step size (Adam)."""
    anneal_updates: int | None = _number(None, _COUNT)
    """Updates over which the step size falls to nothing; None keeps it."""
    entropy_cost: float = _number(0.01, _NOT_NEGATIVE)
    """Reward for a policy that stays random, a nat."""
    value_cost: float = _number(0.5, _POSITIVE)
    """Weight of the value's error."""
    max_grad_norm: float = _number(40.0, _POSITIVE)
    """Largest norm of the gradient; longer ones are scaled down."""
    clip: float | None = _number(None, _POSITIVE)
    """As in PPO: bound the move of an action's probability; None is plain IMPALA."""
    epochs: int = _number(1, _COUNT)
    """Times that an update goes over its batch; more than one needs `clip`."""
    sends_gradients: bool = False
    """Workers compute the gradient of each of their segments, and the learner applies it. For environments whose
    observations are large and whose networks are small; each worker then needs torch."""

    def __post_init__(self) -> None:
        """Refuse values that cannot learn, with a ValueError that says what they may be."""
        _check("IMPALA", self)
        if self.epochs > 1 and self.clip is None:
            raise ValueError(f"IMPALA: epochs is {self.epochs}; more than one needs clip, for example 0.2")
        if self.epochs > 1 and self.sends_gradients:
            raise ValueError("IMPALA: sends_gradients works with epochs of 1 alone: a gradient is applied once")


@dataclass(frozen=True, slots=True)
class SGDConfig:
    """Asynchronous gradient descent on examples: the learner is a parameter server."""

    hidden: tuple[int, ...] = (64,)
    """Widths of the hidden layers."""
    batch_size: int = _number(64, _COUNT)
    """Examples in one gradient."""
    gradients_per_update: int = _number(1, _COUNT)
    """Gradients whose mean makes one step: 1 applies each as it comes."""
    max_staleness: int = _number(4, _NOT_NEGATIVE)
    """Versions that a gradient's weights may be behind; 0 makes all workers wait for each step."""
    lr: float = _number(0.1, _POSITIVE)
    """Step size."""
    momentum: float = _number(0.0, _NOT_NEGATIVE)
    """Share of the step before that is taken again. Staleness acts like it, so take less with many workers."""
    max_grad_norm: float = _number(10.0, _POSITIVE)
    """Largest norm of the gradient; longer ones are scaled down."""

    def __post_init__(self) -> None:
        """Refuse values that cannot learn, with a ValueError that says what they may be."""
        _check("SGD", self)


AnyConfig = SACConfig | PPOConfig | ImpalaConfig | SGDConfig
METHODS: Final[Mapping[str, type[AnyConfig]]] = {
    "SAC": SACConfig,
    "PPO": PPOConfig,
    "IMPALA": ImpalaConfig,
    "SGD": SGDConfig,
}


def read(method: str, settings: Mapping[str, Any]) -> AnyConfig:
    """Make the config of a method of the settings in a spec; ValueError names a wrong one and what it may be."""
    kind = METHODS[method]
    declared = {setting.name: str(setting.type) for setting in dataclasses.fields(kind)}
    for name, value in settings.items():
        if name not in declared:
            raise ValueError(f"{method} has no setting {name!r}; known are {', '.join(declared)}")
        _check_type(method, name, value, declared[name])
    values = dict(settings)
    if "hidden" in values:
        values["hidden"] = tuple(values["hidden"])
    return kind(**values)


def _check_type(method: str, name: str, value: Any, declared: str) -> None:
    """Raise ValueError unless `value` is of the declared type."""
    if declared.startswith("tuple"):
        if not isinstance(value, list | tuple) or not all(type(item) is int for item in value):
            example = "for example [128, 128]"
            raise ValueError(f"{method}: {name} is {value!r}; it must be a list of whole numbers, {example}")
        return
    if value is None and declared.endswith("None"):
        return
    if declared == "bool":
        if not isinstance(value, bool):
            raise ValueError(f"{method}: {name} is {value!r}; it must be true or false")
        return
    if declared.startswith("int") and type(value) is not int:
        raise ValueError(f"{method}: {name} is {value!r}; it must be a whole number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{method}: {name} is {value!r}; it must be a number")  # noqa: TRY004  (a spec's value)


def _check(method: str, config: Any) -> None:
    """Raise ValueError for values out of bounds."""
    if not config.hidden or any(width < 1 for width in config.hidden):
        raise ValueError(f"{method}: hidden is {config.hidden}; it needs at least one layer, each at least 1 wide")
    for setting in dataclasses.fields(config):
        bounds, value = setting.metadata.get("bounds", {}), getattr(config, setting.name)
        if value is not None and not all(_HOLDS[bound](value, limit) for bound, limit in bounds.items()):
            limits = " and ".join(f"{bound} {limit:g}" for bound, limit in bounds.items())
            raise ValueError(f"{method}: {setting.name} is {value}; it must be {limits}")
