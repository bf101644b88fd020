"""Plan of a run: settings and spaces of the environment to network shape, segment schema and balance.

Workers and evaluators import this, so it imports no torch; only ``build`` does, which a learner calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from runtime.exchange.protocol.segment_schema import Layout
from runtime.rl.algos import configs
from runtime.rl.algos.actor import ActorShape, Head, value_shape
from runtime.rl.buffers.device_rollouts import DeviceRollouts
from runtime.rl.buffers.gradient_buffer import Gradients, gradient_layout
from runtime.rl.buffers.host_rows import HostRows
from runtime.rl.buffers.replay import Replay, RowsFactory, transition_layout
from runtime.rl.buffers.rollout_buffer import Rollouts, rollout_layout
from runtime.rl.settings import Settings
from runtime.rl.spaces import ActionSpace, ObsSpace

if TYPE_CHECKING:
    from runtime.rl.algos.impala import Impala
    from runtime.rl.algos.ppo import PPO
    from runtime.rl.algos.sac import SAC
    from runtime.rl.algos.sgd_server import GradientServer

Store = Replay | Rollouts | DeviceRollouts | Gradients
DEVICE_MINIBATCHES: Final = 4
"""Minibatches of an epoch of PPO where the learner collects by itself and the spec says none."""
_NEVER: Final = 2**50
"""Env steps before the first update of algorithm `random`, which never learns."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Balance of collection and learning; see the settings of these names."""

    warmup_steps: int
    updates_per_step: float
    band_steps: int
    max_policy_lag: int
    publish_every: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Values that follow from the settings and the environment's spaces."""

    config: configs.AnyConfig
    action_space: ActionSpace
    shape: ActorShape
    layout: Layout
    """Schema of the segments that workers send."""
    balance: Balance
    segment_transitions: int
    """Items in one segment."""
    item_steps: int = 1
    """Env steps that one item stands for; more than 1 where it is a gradient."""

    @property
    def is_on_policy(self) -> bool:
        """True where data is used once, by the policy that has collected it."""
        return not isinstance(self.config, configs.SACConfig)

    @property
    def sends_gradients(self) -> bool:
        """True where workers compute gradients and the learner applies them."""
        config = self.config
        if isinstance(config, configs.ImpalaConfig):
            return config.sends_gradients
        return isinstance(config, configs.SGDConfig)

    @property
    def gamma(self) -> float:
        """Discount factor of one step."""
        return 1.0 if isinstance(self.config, configs.SGDConfig) else self.config.gamma

    @property
    def n_step(self) -> int:
        """Steps whose rewards a transition sums."""
        return self.config.n_step if isinstance(self.config, configs.SACConfig) else 1


def make_plan(settings: Settings, obs: ObsSpace, action: ActionSpace) -> Plan:
    """Return the plan. ValueError names a setting that is wrong or does not fit the environment."""
    plan = _plan(settings, obs, action)
    if settings.collect == "device" and (
        plan.sends_gradients or settings.remote_inference or settings.lockstep or settings.algorithm == "random"
    ):
        raise ValueError(
            "collect is device: the learner collects by itself and by turns, with sac, ppo or impala; leave out "
            "sends_gradients, remote_inference and lockstep"
        )
    if settings.remote_inference and (plan.sends_gradients or settings.algorithm == "random"):
        raise ValueError(
            "remote_inference works where workers act by a policy and send what they see: sac, ppo, impala"
        )
    return plan


def _plan(settings: Settings, obs: ObsSpace, action: ActionSpace) -> Plan:
    shared = {"hidden": list(settings.hidden)} if settings.hidden is not None else {}
    convolutions = tuple((out, side, stride) for out, side, stride in settings.convolutions)
    method = "sac" if settings.algorithm == "random" else settings.algorithm
    values = {**shared, **getattr(settings, method)}
    if settings.collect == "device" and method in {"ppo", "impala"}:
        values = _device_batch(settings, method, values)
    config = configs.read(method.upper(), values)
    if isinstance(config, configs.SGDConfig):
        return _sgd_plan(settings, obs, action, config)
    if isinstance(config, configs.SACConfig):
        if action.choices and settings.algorithm == "sac":
            raise ValueError(
                f"{settings.environment} takes one of several choices and SAC needs numbers; set algorithm to ppo "
                "or impala"
            )
        head: Head = "categorical" if action.choices else "squashed"
        shape = ActorShape.of(obs, action, config.hidden, head=head, convolutions=convolutions)
        layout = transition_layout(obs, action, config.n_step)
        return Plan(config, action, shape, layout, _off_policy(settings), settings.segment_transitions)
    # A rollout batch is whole segments: a worker never sends a part of one.
    if config.batch_steps % settings.segment_transitions:
        raise ValueError(
            f"{settings.algorithm}: batch_steps is {config.batch_steps}; it must be a multiple of num_envs x "
            f"segment_steps = {settings.segment_transitions}"
        )
    head = "categorical" if action.choices else "gaussian"
    activation: Literal["relu", "tanh"] = "relu" if obs.images else "tanh"
    shape = ActorShape.of(obs, action, config.hidden, head=head, convolutions=convolutions, activation=activation)
    if isinstance(config, configs.ImpalaConfig) and config.sends_gradients:
        # Workers compute gradients of the value network too, so its weights travel behind those of the policy.
        shape = replace(shape, others=value_shape(shape).policy_size)
        count = config.batch_steps // settings.segment_transitions
        lag = 2 * (config.queue_batches + 1) if settings.max_policy_lag is None else settings.max_policy_lag
        balance = _of_gradients(settings, count, config.queue_batches, lag)
        layout = gradient_layout(shape.size)
        return Plan(config, action, shape, layout, balance, 1, item_steps=settings.segment_transitions)
    layout, balance = rollout_layout(obs, action), _on_policy(settings, config)
    return Plan(config, action, shape, layout, balance, settings.segment_transitions)


def _device_batch(settings: Settings, method: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the method's settings where one rollout of the learner's own copies is the batch of one update."""
    count = settings.segment_transitions
    if values.get("batch_steps", count) != count:
        raise ValueError(
            f"{method}: batch_steps is {values['batch_steps']}; with collect: device it is num_envs x segment_steps"
            f" = {count}; leave it out"
        )
    # A few large minibatches: many small ones leave a GPU idle between two of them.
    shares = {"minibatch_size": max(1, count // DEVICE_MINIBATCHES)} if method == "ppo" else {}
    return {**shares, **values, "batch_steps": count}


def _sgd_plan(settings: Settings, obs: ObsSpace, action: ActionSpace, config: configs.SGDConfig) -> Plan:
    if obs.images or len(action.choices) != 1:
        raise ValueError(f"{settings.environment} has no examples; sgd learns from digits")
    shape = ActorShape.of(obs, action, config.hidden, head="categorical")
    balance = _of_gradients(settings, config.gradients_per_update, 2, config.max_staleness)
    return Plan(config, action, shape, gradient_layout(shape.size), balance, 1, item_steps=config.batch_size)


def _of_gradients(settings: Settings, count: int, batches: int, lag: int) -> Balance:
    """Balance where `count` gradients make an update, every update is published, and `batches` of them may wait."""
    # A hair above 1 / count, so that rounding never delays the last gradient of an update.
    updates_per_gradient = (1 + 1e-12) / count
    band, lag = (0, 0) if settings.lockstep else (batches * count, lag)
    return Balance(0, updates_per_gradient, band, lag, 1)


def _off_policy(settings: Settings) -> Balance:
    if settings.algorithm == "random":
        return Balance(_NEVER, 1.0, 0, 0, 1)
    lag = 1_000 if settings.max_policy_lag is None else settings.max_policy_lag
    band, lag = (0, 0) if settings.lockstep else (settings.band_steps, lag)
    return Balance(settings.warmup_steps, settings.updates_per_step, band, lag, settings.publish_every)


def _on_policy(settings: Settings, config: configs.PPOConfig | configs.ImpalaConfig) -> Balance:
    """Balance where an update uses up one batch and is published at once."""
    # A hair above 1 / batch_steps, so that rounding never delays the last step of a batch.
    updates_per_step = (1 + 1e-12) / config.batch_steps
    if settings.lockstep or (isinstance(config, configs.PPOConfig) and config.is_synchronous):
        return Balance(0, updates_per_step, 0, 0, 1)
    # Data waits for at most the queue and the batch in work; twice that leaves room for segments on their way.
    lag = 2 * (config.queue_batches + 1) if settings.max_policy_lag is None else settings.max_policy_lag
    return Balance(0, updates_per_step, config.queue_batches * config.batch_steps, lag, 1)


def make_store(
    plan: Plan, settings: Settings, seed: int, *, device: str | None = None, pinned: bool = False
) -> Store:
    """Return the buffer that receives segments at the learner, on ``device`` or in the host's memory (None).

    Batches of a replay on the host are ``pinned`` where they are copied to a GPU.
    """
    config = plan.config
    if isinstance(config, configs.SGDConfig):
        return Gradients(plan.layout, config.gradients_per_update)
    if isinstance(config, configs.ImpalaConfig) and config.sends_gradients:
        return Gradients(plan.layout, config.batch_steps // plan.item_steps)
    if not isinstance(config, configs.SACConfig):
        if settings.collect == "device":
            return DeviceRollouts(plan.layout)
        where = device or "cpu"
        return Rollouts(plan.layout, settings.num_envs, plan.segment_transitions, config.batch_steps, where)
    priority = (config.priority_exponent, config.priority_correction) if config.prioritised else None
    rows: RowsFactory = partial(HostRows, pinned=pinned)
    if device is not None:
        from runtime.rl.buffers.device_rows import DeviceRows

        rows = partial(DeviceRows, device)
    segment = settings.num_envs, settings.segment_steps
    return Replay(settings.replay_capacity, plan.layout, seed, priority=priority, rows=rows, segment=segment)


def build(
    plan: Plan, seed: int, device: str, *, precision: str = "float32", capture: bool | None = None
) -> SAC | PPO | Impala | GradientServer:
    """Return the learner's algorithm on ``device``.

    Args:
        precision: of its products; see the setting. Gradients that workers send have been computed in float32.
        capture: see `runtime.rl.device.captured.CapturedByShape`.
    """
    if isinstance(plan.config, configs.SGDConfig):
        from runtime.rl.algos.sgd_server import gradient_server_for_examples

        return gradient_server_for_examples(plan.shape, plan.config, seed, device)
    if isinstance(plan.config, configs.ImpalaConfig) and plan.sends_gradients:
        from runtime.rl.algos.sgd_server import gradient_server_for_impala

        return gradient_server_for_impala(plan.shape, plan.config, seed, device)
    if isinstance(plan.config, configs.SACConfig):
        from runtime.rl.algos.sac import SAC

        return SAC(plan.shape, plan.config, seed, device, precision=precision, capture=capture)
    if isinstance(plan.config, configs.PPOConfig):
        from runtime.rl.algos.ppo import PPO

        return PPO(plan.shape, plan.config, seed, device, precision=precision, capture=capture)
    from runtime.rl.algos.impala import Impala

    return Impala(plan.shape, plan.config, seed, device, precision=precision, capture=capture)
