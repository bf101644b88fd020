"""Plan of a run: computes network shape, segment schema and balance from the settings and the environment's
spaces.

A method is one of ours, or a user's class by name, ``package.module:Class``. Workers and evaluators import this
module, so it does not import torch; only ``build`` does, which a learner calls, and a user's module may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import SetupError
from runtime.base.methods import METHODS, BCConfig, ImpalaConfig, SACConfig
from runtime.base.training import Settings
from runtime.base.training_rules import check_rules, config_of, head_of, sends_gradients
from runtime.exchange.protocol.segment_schema import Layout
from runtime.rl.algos.actor import ActorShape, FirstLayers, value_shape
from runtime.rl.algos.memory import Memory
from runtime.rl.algos.method_config import MethodConfig, ReplayConfig, RolloutConfig
from runtime.rl.buffers.host_rows import HostRows
from runtime.rl.buffers.priorities import Priority
from runtime.rl.buffers.replay import Replay, RowsFactory, transition_layout
from runtime.rl.buffers.rollout_buffer import DeviceRollouts, Gradients, Rollouts, gradient_layout, rollout_layout
from runtime.rl.buffers.sequence_replay import SequenceReplay
from runtime.rl.class_names import OwnNetwork, load_class
from runtime.rl.spaces import ActionSpace, ObsSpace

if TYPE_CHECKING:
    from runtime.rl.algos.algorithm import Algorithm

Store = Replay | Rollouts | DeviceRollouts | Gradients
METHOD_CLASSES: Final[Mapping[str, str]] = {
    "sac": "runtime.rl.algos.off_policy.sac:SAC",
    "dqn": "runtime.rl.algos.off_policy.dqn:DQN",
    "td3": "runtime.rl.algos.off_policy.td3:TD3",
    "ppo": "runtime.rl.algos.ppo:PPO",
    "impala": "runtime.rl.algos.impala:Impala",
    "bc": "runtime.rl.algos.cloning:BehaviourCloning",
}
"""Class of each method's learner: by name, so that workers need not import it, and torch with it."""
RECURRENT_CLASSES: Final[Mapping[str, str]] = {
    "ppo": "runtime.rl.algos.recurrent:RecurrentPPO",
    "impala": "runtime.rl.algos.recurrent:RecurrentImpala",
    "sac": "runtime.rl.algos.recurrent:RecurrentSAC",
}
"""Classes for policies with memory."""
DISCRETE_SAC: Final = "runtime.rl.algos.off_policy.sac:DiscreteSAC"
RECURRENT_DISCRETE_SAC: Final = "runtime.rl.algos.recurrent:RecurrentDiscreteSAC"
_ANY_CONVOLUTIONS: Final = ((1, 1, 1),)
"""Convolutions that fit every image; a placeholder until an encoder's replace them."""
_NEVER: Final = 2**50
"""Env steps before the first update of algorithm `random`, which never learns."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Balance of collection and learning; see the settings with these names."""

    warmup_steps: int
    updates_per_step: float
    band_steps: int
    max_policy_lag: int
    publish_every: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Values computed from the settings and the environment's spaces."""

    config: MethodConfig
    action_space: ActionSpace
    shape: ActorShape
    layout: Layout
    """Schema of the workers' segments."""
    balance: Balance
    segment_transitions: int
    """Items in one segment; the largest possible number if workers measure their copies."""
    item_steps: int = 1
    """Env steps per item; more than 1 if an item is a gradient."""
    first_kernels: tuple[NDArray[np.float32], ...] = field(default=(), compare=False, repr=False)
    """Weights of a trained encoder with which the networks start, in the layout of `ActorShape.convolution_parts`;
    () for none.
    """
    method: str = ""
    """Class of the learner's half, ``package.module:Class``; empty if the learner applies gradients of the
    workers.
    """

    @property
    def is_on_policy(self) -> bool:
        """True if data is used once, with the policy that collected it."""
        return not isinstance(self.config, ReplayConfig)

    @property
    def sends_gradients(self) -> bool:
        """True where workers compute gradients and the learner applies them."""
        return sends_gradients(self.config)

    @property
    def gamma(self) -> float:
        """Discount factor per step."""
        return self.config.gamma if isinstance(self.config, ReplayConfig | RolloutConfig) else 1.0

    @property
    def n_step(self) -> int:
        """Number of steps whose rewards a transition sums."""
        return self.config.n_step if isinstance(self.config, ReplayConfig) else 1


def make_plan(
    settings: Settings,
    obs: ObsSpace,
    action: ActionSpace,
    first_layers: FirstLayers | None = None,
    network: OwnNetwork | None = None,
) -> Plan:
    """Return the plan. Raises ValueError with the name of a setting that is wrong or does not fit the environment.

    ``first_layers`` are the layers of an encoder that the run continues to train; ``network`` is the user-defined
    network. Both come from the settings.
    """
    if first_layers is not None or network is not None:
        settings = replace(settings, convolutions=_ANY_CONVOLUTIONS)
    plan = _plan(settings, obs, action)
    if first_layers is not None:
        plan = _with_first_layers(plan, first_layers)
    if network is not None:
        plan = replace(plan, shape=replace(plan.shape, convolutions=(), network=network))
    if plan.shape.images and settings.init_policy is not None and isinstance(plan.config, ReplayConfig):
        raise ValueError(f"init_policy: {settings.algorithm} sees pictures by its critic's convolutions; take ppo")
    return plan


def _with_first_layers(plan: Plan, layers: FirstLayers) -> Plan:
    """Return the plan with networks that begin with the layers of a trained encoder."""
    shape = replace(plan.shape, convolutions=layers.convolutions, padding=layers.padding, latents=layers.latents)
    return replace(plan, shape=shape, first_kernels=layers.parts(shape.images))


def _plan(settings: Settings, obs: ObsSpace, action: ActionSpace) -> Plan:
    config, method = method_of(settings)
    if isinstance(config, ReplayConfig):
        return _replay_plan(settings, obs, action, config, method)
    assert isinstance(config, RolloutConfig)  # noqa: S101  (there is no other family)
    return _rollout_plan(settings, obs, action, config, method)


def method_of(settings: Settings) -> tuple[MethodConfig, str]:
    """Return the method's settings and its class: built-in or user-defined. ValueError names a wrong setting."""
    name = settings.algorithm
    is_own = name not in METHODS and name != "random"
    methods = {name: method_config(name)} if is_own else METHODS
    config = config_of(settings, methods)
    check_rules(settings, config)
    if settings.memory is not None:
        return config, RECURRENT_CLASSES[name]
    return config, name if is_own else METHOD_CLASSES.get("sac" if name == "random" else name, "")


def _shape(
    settings: Settings,
    obs: ObsSpace,
    action: ActionSpace,
    config: MethodConfig,
    *,
    activation: Literal["relu", "tanh"] = "relu",
) -> ActorShape:
    is_random = settings.algorithm == "random"
    return ActorShape.of(
        obs,
        action,
        config.hidden,
        head=head_of(settings, config, action),
        convolutions=tuple((out, side, stride) for out, side, stride in settings.convolutions),
        activation=activation,
        is_normalised=settings.normalise_observations and not is_random,
        memory=Memory.of(settings.memory),
    )


def _cloned_shape(
    settings: Settings, obs: ObsSpace, action: ActionSpace, config: ReplayConfig
) -> ActorShape | None:
    """Return the shape of the method for which a policy is cloned; None if none is cloned."""
    if not isinstance(config, BCConfig):
        return None
    going_on = replace(METHODS[config.for_method](), hidden=config.hidden)
    is_tanh = isinstance(going_on, RolloutConfig) and not obs.images
    return _shape(settings, obs, action, going_on, activation="tanh" if is_tanh else "relu")


def _replay_plan(settings: Settings, obs: ObsSpace, action: ActionSpace, config: ReplayConfig, method: str) -> Plan:
    shape = _cloned_shape(settings, obs, action, config) or _shape(settings, obs, action, config)
    if isinstance(config, SACConfig) and config.random_shift and not obs.images:
        raise ValueError(f"sac: random_shift shifts pictures, and {settings.environment} shows none; leave it out")
    if settings.algorithm == "sac" and shape.choices:
        method = DISCRETE_SAC if shape.memory is None else RECURRENT_DISCRETE_SAC
    layout = transition_layout(obs, action, config.n_step, _state_width(shape, settings))
    balance = _off_policy(settings)
    return Plan(config, action, shape, layout, balance, settings.segment_transitions, method=method)


def _rollout_plan(
    settings: Settings, obs: ObsSpace, action: ActionSpace, config: RolloutConfig, method: str
) -> Plan:
    shape = _shape(settings, obs, action, config, activation="relu" if obs.images else "tanh")
    if isinstance(config, ImpalaConfig) and config.sends_gradients:
        # Workers also compute gradients of the value network, so its weights follow the policy's.
        shape = replace(shape, others=value_shape(shape).policy_size)
        count = config.batch_steps // settings.segment_transitions
        lag = 2 * (config.queue_batches + 1) if settings.max_policy_lag is None else settings.max_policy_lag
        balance = _of_gradients(settings, count, config.queue_batches, lag)
        layout = gradient_layout(shape.size)
        return Plan(config, action, shape, layout, balance, 1, item_steps=settings.segment_transitions)
    width = _state_width(shape, settings)
    layout = rollout_layout(obs, action, has_returns=config.normalise_returns, state_width=width)
    balance = _on_policy(settings, config)
    return Plan(config, action, shape, layout, balance, settings.segment_transitions, method=method)


def _state_width(shape: ActorShape, settings: Settings) -> int:
    """Return the width of the column that holds a memory's states; 0 without memory."""
    return shape.memory.column_width(settings.segment_steps) if shape.memory is not None else 0


def _of_gradients(settings: Settings, count: int, batches: int, lag: int) -> Balance:
    """Balance if `count` gradients make an update, every update is published, and up to `batches` of them may
    wait.
    """
    # Slightly above 1 / count, so that rounding never delays the last gradient of an update.
    updates_per_gradient = (1 + 1e-12) / count
    band, lag = (0, 0) if settings.lockstep else (batches * count, lag)
    return Balance(0, updates_per_gradient, band, lag, 1)


def _off_policy(settings: Settings) -> Balance:
    if settings.algorithm == "random":
        return Balance(_NEVER, 1.0, 0, 0, 1)
    lag = 1_000 if settings.max_policy_lag is None else settings.max_policy_lag
    band, lag = (0, 0) if settings.lockstep else (settings.band_steps, lag)
    return Balance(settings.warmup_steps, settings.updates_per_step, band, lag, settings.publish_every)


def _on_policy(settings: Settings, config: RolloutConfig) -> Balance:
    """Balance if each update consumes one batch and is published at once."""
    # Slightly above 1 / batch_steps, so that rounding never delays the last step of a batch.
    updates_per_step = (1 + 1e-12) / config.batch_steps
    if settings.lockstep or config.waits_for_policy:
        return Balance(0, updates_per_step, 0, 0, 1)
    # Data waits at most for the queue and the current batch; twice that leaves room for segments in transit.
    lag = 2 * (config.queue_batches + 1) if settings.max_policy_lag is None else settings.max_policy_lag
    return Balance(0, updates_per_step, config.queue_batches * config.batch_steps, lag, 1)


def make_store(
    plan: Plan,
    settings: Settings,
    seed: int,
    *,
    device: str | None = None,
    pinned: bool = False,
    draws_on_device: bool = False,
) -> Store:
    """Return the learner's buffer for segments, on ``device`` or in host memory (None).

    Batches of a host replay are ``pinned`` if they are copied to a GPU. With ``draws_on_device`` the updates
    themselves draw by priority.
    """
    config = plan.config
    if isinstance(config, ImpalaConfig) and config.sends_gradients:
        return Gradients(plan.layout, config.batch_steps // plan.item_steps)
    if isinstance(config, RolloutConfig):
        if settings.collect == "device":
            return DeviceRollouts(plan.layout)
        where = device or "cpu"
        copies = plan.segment_transitions // settings.segment_steps
        sizes = copies, plan.segment_transitions, config.batch_steps
        return Rollouts(plan.layout, *sizes, where)
    assert isinstance(config, ReplayConfig)  # noqa: S101  (there is no other family)
    weighting = Priority(config.priority_exponent, config.priority_correction, config.priority_correction_steps)
    priority = weighting if config.prioritised else None
    rows: RowsFactory = partial(HostRows, pinned=pinned)
    if device is not None:
        from runtime.rl.buffers.device_replay import DeviceRows

        rows = partial(DeviceRows, device)
    segment = plan.segment_transitions // settings.segment_steps, settings.segment_steps
    if plan.shape.memory is not None:
        return SequenceReplay(settings.replay_capacity, plan.layout, seed, rows=rows, segment=segment)
    options: dict[str, Any] = {"priority": priority, "rows": rows, "draws_on_device": draws_on_device}
    return Replay(settings.replay_capacity, plan.layout, seed, segment=segment, **options)


def build(
    plan: Plan, seed: int, device: str, *, precision: str = "float32", capture: bool | None = None
) -> Algorithm:
    """Return the learner's algorithm on ``device``.

    Args:
        precision: of the matrix products; see the setting. Workers compute their gradients in float32.
        capture: see `runtime.rl.device.captured.CapturedByShape`.
    """
    if isinstance(plan.config, ImpalaConfig) and plan.sends_gradients:
        from runtime.rl.algos.impala import gradient_server_for_impala

        return gradient_server_for_impala(plan.shape, plan.config, seed, device)
    algorithm: Algorithm = load_class(plan.method)(
        plan.shape, plan.config, seed, device, precision=precision, capture=capture
    )
    _check_weights(plan, algorithm.policy_weights())
    if plan.first_kernels:
        algorithm.begin_with_kernels(plan.first_kernels)
    return algorithm


def _check_weights(plan: Plan, weights: Any) -> None:
    """Raise SetupError unless workers can read the weights of a method; they would wait for others for ever."""
    form = f"{getattr(weights, 'dtype', type(weights).__name__)} {tuple(getattr(weights, 'shape', ()))}"
    expected = f"torch.float32 {(plan.shape.size,)}"
    if form != expected:
        raise SetupError(f"{plan.method}: policy_weights returns {form}; expected {expected}")


def assemble(plan: Plan, settings: Settings, seed: int, device: str) -> Algorithm:
    """Return the algorithm of a learner, or of one of its ranks, with the precision that its settings choose."""
    from runtime.rl.device.accelerator import chosen_precision, set_float32_products

    precision = chosen_precision(settings.precision, device, has_images=bool(plan.shape.images))
    set_float32_products(precision)
    return build(plan, seed, device, precision=precision, capture=None if settings.cuda_graphs else False)


METHODS_NEEDED: Final = ("update", "policy_weights", "tensors")
"""Members of `runtime.rl.algos.algorithm.Algorithm` that a method must implement."""


def method_config(name: str) -> type[MethodConfig]:
    """Return the `Config` of a user-defined method. Raises ValueError if the class is not a method."""
    method = load_class(name)
    if not any(base.__module__ == "runtime.rl.algos.algorithm" for base in method.__mro__):
        raise ValueError(f"{name} does not derive from runtime.rl.algos.algorithm.Algorithm")
    for needed in METHODS_NEEDED:
        if getattr(getattr(method, needed), "__isabstractmethod__", False):
            raise ValueError(f"{name} has no method {needed}; docs/own-methods.md says what it returns")
    config = getattr(method, "Config", None)
    if not (isinstance(config, type) and issubclass(config, ReplayConfig | RolloutConfig)):
        sentence = "has no Config that derives from ReplayConfig or RolloutConfig; docs/own-methods.md shows one"
        raise ValueError(f"{name} {sentence}")  # noqa: TRY004  (a spec's value)
    return config
