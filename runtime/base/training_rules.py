"""Rules of training settings: the method's own values, and what goes together.

Each rule is a sentence only about settings, or about the shape of an environment where that is known without it.
Learners raise the first that is broken, launchers show all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Self

from msgspec import Struct

from runtime.base import environments, presets
from runtime.base.environments import CLASS_NAME, DataShape, Environment
from runtime.base.methods import (
    METHODS,
    RECURRENT,
    BCConfig,
    Head,
    ImpalaConfig,
    MethodConfig,
    PPOConfig,
    ReplayConfig,
    RolloutConfig,
    SACConfig,
)
from runtime.base.replay_memory import (
    DEVICE_MINIBATCHES,
    MEMORY_SIZE,
    PPO_BATCH_STEPS,
    PPO_MINIBATCH_SIZE,
    DataMemory,
    memory_of_settings,
)
from runtime.base.setting import Count, read_fields, setting
from runtime.base.training import Settings, read

CONVOLUTIONS: Final = "convolutions"
"""Name of the encoder that a run learns itself, from nothing; the default."""
VAE: Final = "vae"
BEGIN_WITH_POLICY: Final = ("ppo", "impala", "sac", "td3")
"""Methods that can begin with a policy of another run."""
LEARN_ENCODERS: Final = ("sac", "dqn", "td3", "ppo", "impala", "bc")
"""Methods that can learn a trained encoder further."""


@dataclass(frozen=True, slots=True)
class MemoryForm:
    """Form of the setting ``memory``."""

    kind: Annotated[Literal["gru", "lstm"], setting("Cell; an LSTM has twice the state.")]
    size: Annotated[Count, setting("Numbers that the last layer reads.")] = MEMORY_SIZE

    @classmethod
    def of(cls, value: str | Mapping[str, Any] | None) -> Self | None:
        """Return the memory that the setting names; None without any. ValueError for a wrong one."""
        if value is None:
            return None
        form = {"kind": value} if isinstance(value, str) else {"kind": None, **value}
        fields, mistakes = read_fields(cls, form, "memory")
        if mistakes:
            # A wrong name is why the kind is missing.
            raise ValueError(mistakes[-1] if "kind" not in value else mistakes[0])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class EncoderForm:
    """Form of the setting ``encoder``."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_frozen: bool = True
    """False where its weights are the first ones of the run's networks, which learn them further."""

    @classmethod
    def of(cls, value: str | Mapping[str, Any] | None) -> Self | None:
        """Return the frozen encoder that a setting names; None for convolutions. ValueError for a wrong one."""
        options = {"name": value} if isinstance(value, str) else dict(value or {"name": CONVOLUTIONS})
        name = options.pop("name", None)
        if name == CONVOLUTIONS:
            for option in options:
                raise ValueError(
                    f"encoder: {CONVOLUTIONS} has no option {option!r}; their layers are in train.convolutions"
                )
            return None
        if not isinstance(name, str) or (name != VAE and re.fullmatch(CLASS_NAME, name) is None):
            raise ValueError(f"encoder: name is {name!r}; it must be {CONVOLUTIONS}, {VAE} or package.module:Class")
        is_frozen = options.pop("frozen", True)
        if type(is_frozen) is not bool or not (is_frozen or name == VAE):
            raise ValueError(
                f"encoder: frozen is {is_frozen!r}; it must be true or false, and of {name} "
                f"{'either' if name == VAE else 'true alone: a network of your own (train.network) learns'}"
            )
        if name == VAE and not isinstance(options.get("weights"), str):
            raise ValueError(
                "encoder: vae needs weights, the path of a state dict in each worker; l2r-runtime encode makes one"
            )
        return cls(name, options, is_frozen)


def network_name(value: str | Mapping[str, Any]) -> str:
    """Return the class that the setting ``network`` names. ValueError for a wrong one."""
    name = value if isinstance(value, str) else value.get("name")
    if not isinstance(name, str) or re.fullmatch(CLASS_NAME, name) is None:
        raise ValueError(f"network: name is {name!r}; it must be package.module:Class")
    return name


class TrainingFacts(Struct, frozen=True):
    """Facts about training settings that need neither the environment nor the runtime.

    Attributes:
        data: Bytes of the learner's data; None if settings have a wrong type, or the method keeps no data.
        mistakes: A sentence for each mistake; a name that no environment can have is not among them.
    """

    environment: Environment
    data: DataMemory | None
    mistakes: tuple[str, ...]


def facts_of(settings: Mapping[str, Any]) -> TrainingFacts:
    """Return the facts about training settings, as they are in a spec."""
    environment = environments.of_settings(settings)
    # The data of an environment that does not exist says nothing about the method.
    is_missing = environment.name is not None and not environment.is_possible
    checked = {key: value for key, value in settings.items() if key != "environment"} if is_missing else settings
    data = None if environment.shape is None else _data(settings, environment.shape)
    return TrainingFacts(environment, data, tuple(mistakes_in(checked)))


def _data(settings: Mapping[str, Any], shape: DataShape) -> DataMemory | None:
    try:
        data = memory_of_settings(settings, shape.observation_bytes, shape.action_bytes, shape.pictures)
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError):  # named among the mistakes
        return None
    return data if data.device_bytes else None


def mistakes_in(overrides: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each mistake in training settings, as far as settings and known shapes show them."""
    settings, mistakes = read(overrides)
    if settings is None:
        algorithm = overrides.get("algorithm", "sac")
        block = overrides.get(algorithm) if isinstance(algorithm, str) else None
        # Its method's settings can be judged all the same.
        if isinstance(block, Mapping) and algorithm in METHODS:
            mistakes += read_fields(METHODS[algorithm], block, METHODS[algorithm].label)[1]
        return mistakes
    is_own = settings.algorithm not in METHODS and settings.algorithm != "random"
    try:
        config = None if is_own else config_of(settings, METHODS)
    except ValueError as error:
        return str(error).splitlines()
    # A learner knows the spaces themselves, which its own checks use; before a launch names are all there is.
    about_shapes = _about_environment(settings, config) if config is not None else ()
    return list(dict.fromkeys((*broken_rules(settings, config), *about_shapes)))


def config_of(settings: Settings, methods: Mapping[str, type[MethodConfig]]) -> MethodConfig:
    """Return the settings of the method. ValueError has a line for each wrong one.

    Args:
        methods: Config of each method by its name, including a user-defined one that the settings name.
    """
    shared = {"hidden": list(settings.hidden)} if settings.hidden is not None else {}
    name = "sac" if settings.algorithm == "random" else settings.algorithm
    kind = methods[name]
    block = name if name in METHODS else "method"
    values = {**shared, **getattr(settings, block)}
    if name == "bc" and (going_on := METHODS.get(str(values.get("for_method", "ppo")))) is not None:
        tuned = presets.of_environment(settings.environment, values.get("for_method", "ppo"))
        values = {"hidden": tuned.get("hidden", list(going_on().hidden)), **values}
    batch = values.get("batch_steps", PPO_BATCH_STEPS)
    if kind is PPOConfig and isinstance(batch, int) and batch < PPO_MINIBATCH_SIZE:
        values = {"minibatch_size": batch, **values}
    if settings.collect == "device" and issubclass(kind, RolloutConfig):
        values = _device_batch(settings, block, values)
    return kind.read(values)


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


def sends_gradients(config: MethodConfig | None) -> bool:
    """Return True where workers compute gradients and the learner applies them."""
    return isinstance(config, ImpalaConfig) and config.sends_gradients


def check_rules(settings: Settings, config: MethodConfig) -> None:
    """Raise ValueError for the first rule that is broken."""
    for sentence in broken_rules(settings, config):
        raise ValueError(sentence)


def broken_rules(settings: Settings, config: MethodConfig | None) -> Iterator[str]:
    """Yield a sentence for each rule that the settings break.

    Args:
        config: Settings of the method; None where only its own class knows them.
    """
    try:
        memory, encoder = MemoryForm.of(settings.memory), EncoderForm.of(settings.encoder)
        network = network_name(settings.network) if settings.network is not None else ""
    except ValueError as error:
        yield str(error)
        return
    # The rest reads settings of the right form only.
    if memory is not None:
        yield from _about_memory(settings, config)
    if isinstance(config, RolloutConfig):
        yield from _about_rollouts(settings, config)
    if isinstance(config, ReplayConfig) and settings.collect == "workers":
        yield from _about_sums(settings, config)
    is_tuned = encoder is not None and not encoder.is_frozen
    if is_tuned and (sends_gradients(config) or settings.algorithm not in LEARN_ENCODERS):
        names = ", ".join(LEARN_ENCODERS)
        yield f"encoder: with frozen: false it is learned by {names}, without sends_gradients; leave it frozen"
    if network:
        yield from _about_network(settings, config, network, is_tuned=is_tuned)
    yield from _about_collection(settings, config, is_frozen=encoder is not None and encoder.is_frozen)
    yield from _about_experience(settings, config)
    yield from _about_ranks(settings, config)
    if isinstance(config, RolloutConfig) and sends_gradients(config):
        yield from _about_moments(settings, config)


def _about_memory(settings: Settings, config: MethodConfig | None) -> Iterator[str]:
    if settings.algorithm not in RECURRENT:
        yield (
            f"memory: {settings.algorithm} learns no policy with memory, {', '.join(RECURRENT)} do; "
            "leave memory out, or set algorithm to one of them"
        )
        return
    hinders = {
        "remote_inference": settings.remote_inference,
        "collect: device": settings.collect == "device",
        "sends_gradients": sends_gradients(config),
    }
    for name in (name for name, is_set in hinders.items() if is_set):
        yield f"memory: {name} cannot be combined with it: workers carry the state; leave out one of the two"
    steps = settings.segment_steps
    if isinstance(config, PPOConfig) and config.minibatch_size < steps:
        yield (
            f"PPO: minibatch_size is {config.minibatch_size}; with memory a minibatch is of whole segments, so it "
            f"must be at least segment_steps = {steps}"
        )
    if isinstance(config, SACConfig):
        yield from _about_sequences(settings, config)


def _about_sequences(settings: Settings, config: SACConfig) -> Iterator[str]:
    """Yield sentences about settings that are incompatible with a replay of sequences."""
    hinders = {
        "prioritised": config.prioritised,
        "random_shift": config.random_shift > 0,
        "collect: dataset": settings.collect == "dataset",
    }
    for name in (name for name, is_set in hinders.items() if is_set):
        yield (
            f"memory: {name} cannot be combined with it in sac: sac draws whole segments of equal size with the "
            "states of their workers; leave out one of the two"
        )
    steps = settings.segment_steps
    if config.burn_in >= steps:
        yield (
            f"SAC: burn_in is {config.burn_in}; it is the first part of a segment, so it must be less than "
            f"segment_steps = {steps}"
        )
    if config.batch_size < steps:
        yield (
            f"SAC: batch_size is {config.batch_size}; with memory a batch is of whole segments, so it must be at "
            f"least segment_steps = {steps}"
        )
    if settings.replay_capacity < settings.segment_transitions:
        yield (
            f"replay_capacity is {settings.replay_capacity}; with memory it must be at least num_envs x "
            f"segment_steps = {settings.segment_transitions}"
        )


def _about_rollouts(settings: Settings, config: RolloutConfig) -> Iterator[str]:
    # A rollout batch is whole segments: a worker never sends a part of one.
    if config.batch_steps % settings.segment_transitions:
        yield (
            f"{settings.algorithm}: batch_steps is {config.batch_steps}; it must be a multiple of num_envs x "
            f"segment_steps = {settings.segment_transitions}"
        )
    if isinstance(config, PPOConfig) and config.minibatch_size > config.batch_steps:
        yield (
            f"PPO: minibatch_size is {config.minibatch_size}; a minibatch is part of a batch, so it must be at "
            f"most batch_steps = {config.batch_steps}"
        )
    if isinstance(config, ImpalaConfig) and config.sends_gradients and config.shared_layers:
        yield "IMPALA: shared_layers cannot be combined with sends_gradients; leave out one of the two"


def _about_network(
    settings: Settings, config: MethodConfig | None, network: str, *, is_tuned: bool
) -> Iterator[str]:
    hinders = {
        "encoder with frozen: false": is_tuned,
        "gradients of workers": sends_gradients(config),
        "algorithm: random": settings.algorithm == "random",
        f"init_policy and {settings.algorithm}, whose critics teach it": settings.init_policy is not None
        and isinstance(config, ReplayConfig),
    }
    for name in (name for name, is_set in hinders.items() if is_set):
        yield f"network: {network} cannot be combined with {name}; leave out one of the two"


def _about_collection(settings: Settings, config: MethodConfig | None, *, is_frozen: bool) -> Iterator[str]:
    if settings.collect == "device" and is_frozen:
        yield "encoder: with collect: device the learner sees pictures itself; take workers, or convolutions"
    if settings.collect == "device" and (
        sends_gradients(config) or settings.remote_inference or settings.lockstep or settings.algorithm == "random"
    ):
        yield (
            "collect is device: the learner collects by itself and by turns, with sac, ppo or impala; leave out "
            "sends_gradients, remote_inference and lockstep"
        )
    if settings.remote_inference and (sends_gradients(config) or settings.algorithm == "random"):
        yield "remote_inference works where workers act by a policy and send what they see: sac, ppo, impala"


def _about_ranks(settings: Settings, config: MethodConfig | None) -> Iterator[str]:
    """Yield sentences about settings that several ranks cannot divide."""
    count = settings.devices
    if count > 1 and sends_gradients(config):
        yield "devices: gradients of workers are applied on one device; set it to 1, or leave out sends_gradients"
        return
    for name, size in _shared_sizes(settings, config).items():
        if size % count:
            yield (
                f"devices is {count} and {name} {size}; each rank takes an equal part, so it must be a multiple of "
                f"{count} (learner.nodes and learner.gpus set devices)"
            )


def _shared_sizes(settings: Settings, config: MethodConfig | None) -> dict[str, int]:
    """Return the sizes that are divided among ranks, by the name of their setting."""
    sizes: dict[str, int] = {}
    if isinstance(config, ReplayConfig):
        if settings.memory is None:
            return {"batch_size": config.batch_size}
        return {"batch_size / segment_steps": config.batch_size // settings.segment_steps}
    if isinstance(config, RolloutConfig):
        # A share of a batch is whole segments of some of the copies.
        is_apart = settings.collect == "device"
        copies = settings.num_envs if is_apart else config.batch_steps // settings.segment_steps
        sizes["num_envs" if is_apart else "batch_steps / segment_steps"] = copies
    if isinstance(config, PPOConfig) and settings.memory is None:
        sizes["minibatch_size"] = config.minibatch_size
    elif isinstance(config, PPOConfig):  # with memory minibatches are of whole segments
        sizes["minibatch_size / segment_steps"] = config.minibatch_size // settings.segment_steps
    return sizes


def _about_sums(settings: Settings, config: ReplayConfig) -> Iterator[str]:
    """Yield a sentence where most transitions would sum fewer rewards than asked: a sum ends with its segment."""
    if config.n_step > 1 and config.n_step > settings.segment_steps // 2:
        yield (
            f"{settings.algorithm}: n_step is {config.n_step}; rewards are summed within a segment, so "
            f"segment_steps must be at least {2 * config.n_step}, and it is {settings.segment_steps}"
        )


def _about_experience(settings: Settings, config: MethodConfig | None) -> Iterator[str]:
    """Yield sentences about settings of recorded experience that do not fit each other."""
    is_read = settings.collect == "dataset"
    reads_steps = config is None or (isinstance(config, ReplayConfig) and config.n_step == 1)
    if is_read and not (reads_steps and settings.algorithm != "random"):
        yield "collect is dataset: a learner reads single steps, with bc, sac, dqn or td3 and n_step 1"
    if is_read != (settings.dataset is not None):
        yield "collect: dataset and dataset: FOLDER go together; set both or neither"
    if isinstance(config, BCConfig) and (not is_read or settings.normalise_observations):
        yield "bc learns with collect: dataset, and without normalise_observations"
    is_sent = settings.collect == "workers" and not sends_gradients(config)
    if settings.record_experience is not None and not is_sent:
        yield "record_experience: workers write it, those that send what they see; leave it out here"
    if settings.clip_rewards is not None and not is_sent:
        yield "clip_rewards: workers clip what they send; leave it out here"
    if settings.init_policy is None:
        return
    if settings.normalise_observations or settings.algorithm not in BEGIN_WITH_POLICY:
        names = ", ".join(BEGIN_WITH_POLICY)
        yield f"init_policy is for {names}, without normalise_observations, whose moments stay behind"
    elif sends_gradients(config):
        yield "init_policy: workers that send gradients need a value network too; leave out one of them"


def _about_moments(settings: Settings, config: RolloutConfig) -> Iterator[str]:
    if settings.normalise_observations or config.normalise_returns:
        yield (
            "the learner takes moments from observations and returns, and here workers only send gradients; leave "
            "out normalise_observations and normalise_returns, or sends_gradients"
        )


def _about_environment(settings: Settings, config: MethodConfig) -> Iterator[str]:
    """Yield sentences about a method that cannot take the actions or observations of a known environment."""
    name, options = settings.environment, settings.environment_options
    choices = environments.action_choices(name, options)
    shape = environments.data_shape(name, options)
    if choices is None or shape is None:
        return
    try:
        head_of(settings, config, _KnownActions(choices))
    except ValueError as error:
        yield str(error)
    if isinstance(config, SACConfig) and config.random_shift and not shape.pictures:
        yield f"sac: random_shift shifts pictures, and {name} shows none; leave it out"


@dataclass(frozen=True, slots=True)
class _KnownActions:
    choices: tuple[int, ...]


def head_of(settings: Settings, config: MethodConfig, action: Any) -> Head:
    """Return how actions are drawn. ValueError names the environment whose actions the method cannot take."""
    try:
        return ReplayConfig.head(action) if settings.algorithm == "random" else config.head(action)
    except ValueError as error:
        raise ValueError(f"{settings.environment} {error}") from error
