"""The settings and an environment's spaces turned into networks, layouts and the balance of both sides.

Workers and evaluators read this too, so it imports no torch; ``build`` does, and only a learner calls it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from runtime.algos import configs
from runtime.algos.actor import ActorShape, value_shape
from runtime.gradients import Gradients, gradient_layout
from runtime.layout import Layout
from runtime.replay import Replay, transition_layout
from runtime.rollouts import Rollouts, rollout_layout
from runtime.settings import Settings
from runtime.spaces import ActionSpace, ObsSpace

if TYPE_CHECKING:
    from runtime.algos.descent import Descent
    from runtime.algos.impala import Impala
    from runtime.algos.ppo import PPO
    from runtime.algos.sac import SAC

Store = Replay | Rollouts | Gradients
_NEVER: Final = 2**50
"""Env steps before the first update of what does not learn."""


@dataclass(frozen=True, slots=True)
class Balance:
    """How collection and learning go beside each other; see the settings of these names."""

    warmup_steps: int
    updates_per_step: float
    band_steps: int
    max_policy_lag: int
    publish_every: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that follows from the settings and the environment's spaces."""

    config: configs.AnyConfig
    action_space: ActionSpace
    shape: ActorShape
    layout: Layout
    """Of what workers send."""
    balance: Balance
    segment_transitions: int
    """Items in one segment."""
    item_steps: int = 1
    """Env steps that one item stands for: many where it is a gradient."""

    @property
    def is_on_policy(self) -> bool:
        """Whether data is used once, by the method that has collected it."""
        return not isinstance(self.config, configs.SACConfig)

    @property
    def sends_gradients(self) -> bool:
        """Whether workers compute gradients, and the learner applies them."""
        config = self.config
        return isinstance(config, configs.SGDConfig) or (
            isinstance(config, configs.ImpalaConfig) and config.sends_gradients
        )

    @property
    def gamma(self) -> float:
        """Discount a step."""
        return 1.0 if isinstance(self.config, configs.SGDConfig) else self.config.gamma

    @property
    def n_step(self) -> int:
        """Steps whose rewards a transition sums."""
        return self.config.n_step if isinstance(self.config, configs.SACConfig) else 1


def make_plan(settings: Settings, obs: ObsSpace, action: ActionSpace) -> Plan:
    """Work everything out. ValueError names a setting that is wrong or does not fit the environment."""
    plan = _plan(settings, obs, action)
    if settings.remote_inference and (plan.sends_gradients or settings.algorithm == "random"):
        raise ValueError(
            "remote_inference works where workers act by a policy and send what they see: sac, ppo, impala"
        )
    return plan


def _plan(settings: Settings, obs: ObsSpace, action: ActionSpace) -> Plan:
    given = {"hidden": list(settings.hidden)} if settings.hidden is not None else {}
    convolutions = tuple((out, side, stride) for out, side, stride in settings.convolutions)
    if settings.algorithm == "sgd":
        return _sgd_plan(settings, obs, action, configs.read(configs.SGDConfig, "SGD", {**given, **settings.sgd}))
    config: configs.SACConfig | configs.PPOConfig | configs.ImpalaConfig
    if settings.algorithm in {"sac", "random"}:
        config = configs.read(configs.SACConfig, "SAC", {**given, **settings.sac})
        if action.choices and settings.algorithm == "sac":
            raise ValueError(
                f"{settings.environment} takes one of several choices and SAC needs numbers; set algorithm to ppo "
                "or impala"
            )
        shape = ActorShape.of(
            obs,
            action,
            config.hidden,
            head="categorical" if action.choices else "squashed",
            convolutions=convolutions,
        )
        layout = transition_layout(obs, action, config.n_step)
        return Plan(config, action, shape, layout, _off_policy(settings), settings.segment_transitions)
    if settings.algorithm == "ppo":
        config = configs.read(configs.PPOConfig, "PPO", {**given, **settings.ppo})
    else:
        config = configs.read(configs.ImpalaConfig, "IMPALA", {**given, **settings.impala})
    if config.batch_steps % settings.segment_transitions:
        raise ValueError(
            f"{settings.algorithm}: batch_steps is {config.batch_steps}; it must be a multiple of num_envs x "
            f"segment_steps = {settings.segment_transitions}"
        )
    shape = ActorShape.of(
        obs,
        action,
        config.hidden,
        head="categorical" if action.choices else "gaussian",
        convolutions=convolutions,
        activation="relu" if obs.images else "tanh",
    )
    if isinstance(config, configs.ImpalaConfig) and config.sends_gradients:
        shape = replace(shape, others=value_shape(shape).policy_size)
        count = config.batch_steps // settings.segment_transitions
        lag = 2 * (config.queue_batches + 1) if settings.max_policy_lag is None else settings.max_policy_lag
        balance = _of_gradients(settings, count, config.queue_batches, lag)
        layout = gradient_layout(shape.size)
        return Plan(config, action, shape, layout, balance, 1, item_steps=settings.segment_transitions)
    return Plan(
        config,
        action,
        shape,
        rollout_layout(obs, action),
        _on_policy(settings, config),
        settings.segment_transitions,
    )


def _sgd_plan(settings: Settings, obs: ObsSpace, action: ActionSpace, config: configs.SGDConfig) -> Plan:
    if obs.images or len(action.choices) != 1:
        raise ValueError(f"{settings.environment} has no examples; sgd learns from digits")
    shape = ActorShape.of(obs, action, config.hidden, head="categorical")
    balance = _of_gradients(settings, config.gradients_per_update, 2, config.max_staleness)
    return Plan(config, action, shape, gradient_layout(shape.size), balance, 1, item_steps=config.batch_size)


def _of_gradients(settings: Settings, count: int, batches: int, lag: int) -> Balance:
    """`count` gradients make an update, each is published, and `batches` may wait."""
    updates_per_gradient = (1 + 1e-12) / count
    if settings.lockstep:
        return Balance(0, updates_per_gradient, 0, 0, 1)
    return Balance(0, updates_per_gradient, batches * count, lag, 1)


def _off_policy(settings: Settings) -> Balance:
    if settings.algorithm == "random":
        return Balance(_NEVER, 1.0, 0, 0, 1)
    if settings.lockstep:
        return Balance(settings.warmup_steps, settings.updates_per_step, 0, 0, settings.publish_every)
    return Balance(
        settings.warmup_steps,
        settings.updates_per_step,
        settings.band_steps,
        1_000 if settings.max_policy_lag is None else settings.max_policy_lag,
        settings.publish_every,
    )


def _on_policy(settings: Settings, config: configs.PPOConfig | configs.ImpalaConfig) -> Balance:
    """An update uses a batch up, and each one is published; so much is not a matter of settings."""
    # A hair more, so that the last step of a batch is never missed for a rounding.
    updates_per_step = (1 + 1e-12) / config.batch_steps
    synchronous = settings.lockstep or (isinstance(config, configs.PPOConfig) and config.is_synchronous)
    if synchronous:
        return Balance(0, updates_per_step, 0, 0, 1)
    lag = 2 * (config.queue_batches + 1) if settings.max_policy_lag is None else settings.max_policy_lag
    return Balance(0, updates_per_step, config.queue_batches * config.batch_steps, lag, 1)


def make_store(plan: Plan, settings: Settings, seed: int, *, pinned: bool = False) -> Store:
    """Make the place where segments go at the learner."""
    config = plan.config
    if isinstance(config, configs.SGDConfig):
        return Gradients(plan.layout, config.gradients_per_update)
    if isinstance(config, configs.ImpalaConfig) and config.sends_gradients:
        return Gradients(plan.layout, config.batch_steps // plan.item_steps)
    if not isinstance(config, configs.SACConfig):
        return Rollouts(plan.layout, settings.num_envs, plan.segment_transitions, config.batch_steps)
    priority = (config.priority_exponent, config.priority_correction) if config.prioritised else None
    return Replay(settings.replay_capacity, plan.layout, seed, priority=priority, pinned=pinned)


def build(plan: Plan, seed: int, device: str) -> SAC | PPO | Impala | Descent:
    """Make the learner's method."""
    if isinstance(plan.config, configs.SGDConfig):
        from runtime.algos.descent import descent_on_examples

        return descent_on_examples(plan.shape, plan.config, seed, device)
    if isinstance(plan.config, configs.ImpalaConfig) and plan.sends_gradients:
        from runtime.algos.descent import descent_of_impala

        return descent_of_impala(plan.shape, plan.config, seed, device)
    if isinstance(plan.config, configs.SACConfig):
        from runtime.algos.sac import SAC

        return SAC(plan.shape, plan.config, seed, device)
    if isinstance(plan.config, configs.PPOConfig):
        from runtime.algos.ppo import PPO

        return PPO(plan.shape, plan.config, seed, device)
    from runtime.algos.impala import Impala

    return Impala(plan.shape, plan.config, seed, device)
