"""Plan of a run: computes network shape, segment schema and balance from the settings and the environment's spaces.

Workers and evaluators import this module, so it does not import torch; only ``build`` does, which a learner calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from runtime.base import environments
from runtime.base.replay_memory import DEVICE_MINIBATCHES
from runtime.exchange.protocol.segment_schema import Layout
from runtime.rl.algos import configs, own
from runtime.rl.algos.actor import ActorShape, FirstLayers, value_shape
from runtime.rl.algos.memory import Memory
from runtime.rl.algos.method_config import MethodConfig, ReplayConfig, RolloutConfig
from runtime.rl.buffers.device_rollouts import DeviceRollouts
from runtime.rl.buffers.gradient_buffer import Gradients, gradient_layout
from runtime.rl.buffers.host_rows import HostRows
from runtime.rl.buffers.priorities import Priority
from runtime.rl.buffers.replay import Replay, RowsFactory, transition_layout
from runtime.rl.buffers.rollout_buffer import Rollouts, rollout_layout
from runtime.rl.buffers.sequence_replay import SequenceReplay
from runtime.rl.class_names import OwnNetwork, load_class
from runtime.rl.settings import Settings
from runtime.rl.spaces import ActionSpace, ObsSpace

if TYPE_CHECKING:
    from runtime.rl.algos.algorithm import Algorithm

Store = Replay | Rollouts | DeviceRollouts | Gradients
_BEGIN_WITH_POLICY: Final = ("ppo", "impala", "sac", "td3")
"""Methods that can start from the policy of another run."""
MOST_COPIES: Final = 512
"""Number of copies beyond which a worker does not measure."""
_SEGMENT_BYTES: Final = 4 * 2**20
"""Size of a segment up to which a worker may choose more copies."""
_SEGMENTS_OF_BATCH: Final = (4, 2)
"""Least number of segments in a batch where workers measure their copies: if workers wait for each new policy and
each contributes to it, and if they do not wait. With one segment per batch, workers and learner take turns where
cores are busy: on two shared cores, two IMPALA workers took a tenth of the env steps that they took with two
segments per batch.
"""
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
        """True if workers compute gradients and the learner applies them."""
        config = self.config
        if isinstance(config, configs.ImpalaConfig):
            return config.sends_gradients
        return isinstance(config, configs.SGDConfig)

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
    if settings.measures_copies:
        settings = replace(settings, num_envs=_most_copies(settings, obs, action))
    if first_layers is not None or network is not None:
        settings = replace(settings, convolutions=_ANY_CONVOLUTIONS)
    plan = _plan(settings, obs, action)
    if first_layers is not None:
        plan = _with_first_layers(plan, settings, first_layers)
    if network is not None:
        plan = _with_network(plan, settings, network)
    if settings.collect == "device" and settings.encoder not in (None, "convolutions") and first_layers is None:
        raise ValueError(
            "encoder: with collect: device the learner sees pictures itself; take workers, or convolutions"
        )
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
    _check_dataset(settings, plan)
    config = plan.config
    is_scaled = isinstance(config, RolloutConfig) and config.normalise_returns
    if plan.sends_gradients and (settings.normalise_observations or is_scaled):
        raise ValueError(
            "the learner takes moments from observations and returns, and here workers send gradients alone; leave "
            "out normalise_observations and normalise_returns, or sends_gradients"
        )
    return plan


def _most_copies(settings: Settings, obs: ObsSpace, action: ActionSpace) -> int:
    """Return the largest number of copies that a worker may choose: a power of two, because it tries only those."""
    config, _ = method_of(settings)
    rows = _SEGMENT_BYTES // (obs.dtype.itemsize * obs.width + action.dtype.itemsize * action.size)
    if isinstance(config, RolloutConfig):
        rows = min(rows, config.batch_steps // _SEGMENTS_OF_BATCH[0 if config.waits_for_policy else 1])
    most = 1
    while 2 * most <= min(MOST_COPIES, rows // settings.segment_steps):
        doubled = replace(settings, num_envs=2 * most)
        fills = not isinstance(config, RolloutConfig) or not config.batch_steps % doubled.segment_transitions
        if not (doubled.fits_band and fills):
            break
        most *= 2
    return most


def _check_measured(settings: Settings, config: MethodConfig) -> None:
    """Raise ValueError if a setting cannot be combined with a measured number of copies."""
    environment, options = settings.environment, settings.environment_options
    hinders = {
        f"collect: {settings.collect}": settings.collect != "workers",
        "lockstep": settings.lockstep,
        "remote_inference": settings.remote_inference,
        "gradients of workers": isinstance(config, configs.SGDConfig)
        or (isinstance(config, configs.ImpalaConfig) and config.sends_gradients),
        f"{environment}, whose copies have processes or threads": environments.has_processes(environment, options),
        f"{environment}, whose copies come in games": environment.startswith(environments.PETTINGZOO),
    }
    for name in (name for name, is_set in hinders.items() if is_set):
        raise ValueError(f"num_envs: auto cannot be combined with {name}; set a number")


def _with_network(plan: Plan, settings: Settings, network: OwnNetwork) -> Plan:
    """Return the plan with a user-defined network instead of convolutions."""
    hinders = {
        "encoder with frozen: false": bool(plan.first_kernels),
        "gradients of workers": plan.sends_gradients,
        "algorithm: random": settings.algorithm == "random",
        f"init_policy and {settings.algorithm}, whose critics teach it": settings.init_policy is not None
        and isinstance(plan.config, ReplayConfig),
    }
    for name in (name for name, is_set in hinders.items() if is_set):
        raise ValueError(f"network: {network.name} cannot be combined with {name}; leave out one of the two")
    return replace(plan, shape=replace(plan.shape, convolutions=(), network=network))


def _with_first_layers(plan: Plan, settings: Settings, layers: FirstLayers) -> Plan:
    """Return the plan with networks that start with the layers of a trained encoder."""
    if plan.sends_gradients or settings.algorithm not in configs.CLASSES:
        names = ", ".join(configs.CLASSES)
        raise ValueError(
            f"encoder: with frozen: false it is learned by {names}, without sends_gradients; leave it frozen"
        )
    shape = replace(plan.shape, convolutions=layers.convolutions, padding=layers.padding, latents=layers.latents)
    return replace(plan, shape=shape, first_kernels=layers.parts(shape.images))


def _check_dataset(settings: Settings, plan: Plan) -> None:
    """Raise ValueError for settings about recorded experience that contradict each other."""
    is_read, config = settings.collect == "dataset", plan.config
    if is_read and not (isinstance(config, ReplayConfig) and config.n_step == 1 and settings.algorithm != "random"):
        raise ValueError("collect is dataset: a learner reads single steps, with bc, sac, dqn or td3 and n_step 1")
    if is_read != (settings.dataset is not None):
        raise ValueError("collect: dataset and dataset: FOLDER go together; set both or neither")
    if isinstance(config, configs.BCConfig) and (not is_read or settings.normalise_observations):
        raise ValueError("bc learns with collect: dataset, and without normalise_observations")
    if settings.record_experience is not None and (settings.collect != "workers" or plan.sends_gradients):
        raise ValueError("record_experience: workers write it, those that send what they see; leave it out here")
    if settings.clip_rewards is not None and (settings.collect != "workers" or plan.sends_gradients):
        raise ValueError("clip_rewards: workers clip what they send; leave it out here")
    if settings.init_policy is None:
        return
    if settings.normalise_observations or settings.algorithm not in _BEGIN_WITH_POLICY:
        names = ", ".join(_BEGIN_WITH_POLICY)
        raise ValueError(f"init_policy is for {names}, without normalise_observations, whose moments stay behind")
    if plan.shape.images and isinstance(config, ReplayConfig):
        raise ValueError(f"init_policy: {settings.algorithm} sees pictures by its critic's convolutions; take ppo")
    if plan.sends_gradients:
        raise ValueError("init_policy: workers that send gradients need a value network too; leave out one of them")


def _plan(settings: Settings, obs: ObsSpace, action: ActionSpace) -> Plan:
    config, method = method_of(settings)
    if isinstance(config, configs.SGDConfig):
        return _sgd_plan(settings, obs, action, config)
    if isinstance(config, ReplayConfig):
        return _replay_plan(settings, obs, action, config, method)
    assert isinstance(config, RolloutConfig)  # noqa: S101  (there is no other family)
    return _rollout_plan(settings, obs, action, config, method)


def method_of(settings: Settings) -> tuple[MethodConfig, str]:
    """Return the settings and the class of the method, built in or user-defined. Raises ValueError for a wrong
    setting.
    """
    config, method = _method_of(settings)
    if settings.measures_copies:
        _check_measured(settings, config)
    memory = Memory.of(settings.memory)
    return config, method if memory is None else _recurrent_method(settings, config)


def _recurrent_method(settings: Settings, config: MethodConfig) -> str:
    """Return the class that trains a policy with memory. Raises ValueError for settings that exclude memory."""
    if settings.algorithm not in configs.RECURRENT:
        raise ValueError(
            f"memory: {settings.algorithm} learns no policy with memory, {', '.join(configs.RECURRENT)} do; "
            "leave memory out, or set algorithm to one of them"
        )
    hinders = {
        "remote_inference": settings.remote_inference,
        "collect: device": settings.collect == "device",
        "sends_gradients": isinstance(config, configs.ImpalaConfig) and config.sends_gradients,
    }
    for name in (name for name, is_set in hinders.items() if is_set):
        raise ValueError(
            f"memory: {name} cannot be combined with it: workers carry the state; leave out one of the two"
        )
    steps = settings.segment_steps
    if isinstance(config, configs.PPOConfig) and config.minibatch_size < steps:
        raise ValueError(
            f"PPO: minibatch_size is {config.minibatch_size}; with memory a minibatch is of whole segments, so it "
            f"must be at least segment_steps = {steps}"
        )
    if isinstance(config, configs.SACConfig):
        _check_sequences(settings, config)
    return configs.RECURRENT[settings.algorithm]


def _check_sequences(settings: Settings, config: configs.SACConfig) -> None:
    """Raise ValueError for settings that cannot be combined with a replay of sequences."""
    hinders = {
        "prioritised": config.prioritised,
        "random_shift": config.random_shift > 0,
        "num_envs: auto": settings.measures_copies,
        "collect: dataset": settings.collect == "dataset",
    }
    for name in (name for name, is_set in hinders.items() if is_set):
        raise ValueError(
            f"memory: {name} cannot be combined with it in sac: sac draws whole segments of equal size with the "
            "states of their workers; leave out one of the two"
        )
    steps = settings.segment_steps
    if config.burn_in >= steps:
        raise ValueError(
            f"SAC: burn_in is {config.burn_in}; it is the first part of a segment, so it must be less than "
            f"segment_steps = {steps}"
        )
    if config.batch_size < steps:
        raise ValueError(
            f"SAC: batch_size is {config.batch_size}; with memory a batch is of whole segments, so it must be at "
            f"least segment_steps = {steps}"
        )
    if settings.replay_capacity < settings.segment_transitions:
        raise ValueError(
            f"replay_capacity is {settings.replay_capacity}; with memory it must be at least num_envs x "
            f"segment_steps = {settings.segment_transitions}"
        )


def _method_of(settings: Settings) -> tuple[MethodConfig, str]:
    shared = {"hidden": list(settings.hidden)} if settings.hidden is not None else {}
    name = "sac" if settings.algorithm == "random" else settings.algorithm
    if name not in configs.METHODS:
        kind = own.method_config(name)
        values = {**shared, **settings.method}
        if settings.collect == "device" and issubclass(kind, RolloutConfig):
            values = _device_batch(settings, "method", values)
        return kind.read(values), name
    values = {**shared, **getattr(settings, name)}
    if name == "bc" and (going_on := configs.METHODS.get(values.get("for_method", "ppo"))) is not None:
        values = {"hidden": list(going_on().hidden), **values}
    if settings.collect == "device" and name in {"ppo", "impala"}:
        values = _device_batch(settings, name, values)
    return configs.METHODS[name].read(values), configs.CLASSES.get(name, "")


def _shape(
    settings: Settings,
    obs: ObsSpace,
    action: ActionSpace,
    config: MethodConfig,
    *,
    activation: Literal["relu", "tanh"] = "relu",
) -> ActorShape:
    """Return the shape of the policy network."""
    is_random = settings.algorithm == "random"
    try:
        head = ReplayConfig.head(action) if is_random else config.head(action)
    except ValueError as error:
        raise ValueError(f"{settings.environment} {error}") from error
    return ActorShape.of(
        obs,
        action,
        config.hidden,
        head=head,
        convolutions=tuple((out, side, stride) for out, side, stride in settings.convolutions),
        activation=activation,
        is_normalised=settings.normalise_observations and not is_random,
        memory=Memory.of(settings.memory),
    )


def _cloned_shape(
    settings: Settings, obs: ObsSpace, action: ActionSpace, config: ReplayConfig
) -> ActorShape | None:
    """Return the shape of the method for which a policy is cloned; None if none is cloned."""
    if not isinstance(config, configs.BCConfig):
        return None
    going_on = replace(configs.METHODS[config.for_method](), hidden=config.hidden)
    is_tanh = isinstance(going_on, RolloutConfig) and not obs.images
    return _shape(settings, obs, action, going_on, activation="tanh" if is_tanh else "relu")


def _replay_plan(settings: Settings, obs: ObsSpace, action: ActionSpace, config: ReplayConfig, method: str) -> Plan:
    shape = _cloned_shape(settings, obs, action, config) or _shape(settings, obs, action, config)
    if isinstance(config, configs.SACConfig) and config.random_shift and not obs.images:
        raise ValueError(f"sac: random_shift shifts pictures, and {settings.environment} shows none; leave it out")
    if settings.algorithm == "sac" and shape.choices:
        method = configs.DISCRETE_SAC if shape.memory is None else configs.RECURRENT_DISCRETE_SAC
    layout = transition_layout(obs, action, config.n_step, _state_width(shape, settings))
    balance = _off_policy(settings)
    return Plan(config, action, shape, layout, balance, settings.segment_transitions, method=method)


def _rollout_plan(
    settings: Settings, obs: ObsSpace, action: ActionSpace, config: RolloutConfig, method: str
) -> Plan:
    # A rollout batch consists of whole segments, because a worker never sends part of one.
    if config.batch_steps % settings.segment_transitions:
        raise ValueError(
            f"{settings.algorithm}: batch_steps is {config.batch_steps}; it must be a multiple of num_envs x "
            f"segment_steps = {settings.segment_transitions}"
        )
    shape = _shape(settings, obs, action, config, activation="relu" if obs.images else "tanh")
    if isinstance(config, configs.ImpalaConfig) and config.sends_gradients:
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


def _device_batch(settings: Settings, method: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the method's settings if one rollout of the learner's own copies is the batch of an update."""
    count = settings.segment_transitions
    if values.get("batch_steps", count) != count:
        raise ValueError(
            f"{method}: batch_steps is {values['batch_steps']}; with collect: device it is num_envs x segment_steps"
            f" = {count}; leave it out"
        )
    # A few large minibatches: between many small ones a GPU is idle.
    shares = {"minibatch_size": max(1, count // DEVICE_MINIBATCHES)} if method == "ppo" else {}
    return {**shares, **values, "batch_steps": count}


def _sgd_plan(settings: Settings, obs: ObsSpace, action: ActionSpace, config: configs.SGDConfig) -> Plan:
    if obs.images or len(action.choices) != 1:
        raise ValueError(f"{settings.environment} has no examples; sgd learns from digits")
    shape = ActorShape.of(obs, action, config.hidden, head="categorical")
    balance = _of_gradients(settings, config.gradients_per_update, 2, config.max_staleness)
    return Plan(config, action, shape, gradient_layout(shape.size), balance, 1, item_steps=config.batch_size)


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
    if isinstance(config, configs.SGDConfig):
        return Gradients(plan.layout, config.gradients_per_update)
    if isinstance(config, configs.ImpalaConfig) and config.sends_gradients:
        return Gradients(plan.layout, config.batch_steps // plan.item_steps)
    if isinstance(config, RolloutConfig):
        if settings.collect == "device":
            return DeviceRollouts(plan.layout)
        where = device or "cpu"
        copies = plan.segment_transitions // settings.segment_steps
        sizes = copies, plan.segment_transitions, config.batch_steps
        return Rollouts(plan.layout, *sizes, where, takes_smaller=settings.measures_copies)
    assert isinstance(config, ReplayConfig)  # noqa: S101  (there is no other family)
    weighting = Priority(config.priority_exponent, config.priority_correction, config.priority_correction_steps)
    priority = weighting if config.prioritised else None
    rows: RowsFactory = partial(HostRows, pinned=pinned)
    if device is not None:
        from runtime.rl.buffers.device_rows import DeviceRows

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
    if isinstance(plan.config, configs.SGDConfig):
        from runtime.rl.algos.sgd_server import gradient_server_for_examples

        return gradient_server_for_examples(plan.shape, plan.config, seed, device)
    if isinstance(plan.config, configs.ImpalaConfig) and plan.sends_gradients:
        from runtime.rl.algos.sgd_server import gradient_server_for_impala

        return gradient_server_for_impala(plan.shape, plan.config, seed, device)
    algorithm: Algorithm = load_class(plan.method)(
        plan.shape, plan.config, seed, device, precision=precision, capture=capture
    )
    if plan.first_kernels:
        algorithm.begin_with_kernels(plan.first_kernels)
    return algorithm
