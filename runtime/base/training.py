"""Training settings of a run as typed data: ``train`` of a spec, which a launcher passes in `L2R_CONFIG`.

Learner, workers, evaluator and the app read the same declaration, so a mistake has the same sentence wherever it is
found first. What goes together is in `runtime.base.training_rules`.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from runtime.base import environments, presets, replay_memory
from runtime.base.environments import CLASS_NAME
from runtime.base.methods import METHODS, SACConfig
from runtime.base.setting import Count, Natural, Positive, Widths, read_fields, setting, types_of, unknown


class SettingsError(ValueError):
    """The settings cannot be used; each line names a setting and the valid values."""


ALGORITHMS: Final = ("sac", "dqn", "td3", "ppo", "impala", "bc", "random")
_OFF_POLICY: Final = ("sac", "dqn", "td3")
"""Methods that learn from a replay, for which settings that speak of it hold."""
Options = dict[str, Any]
"""Options by name; the values of each are their owner's."""
_ONE_OF: Final = f"one of {', '.join(ALGORITHMS)}"
Algorithm = Annotated[
    str,
    Meta(
        pattern=f"^({'|'.join(ALGORITHMS)}|{CLASS_NAME})$",
        extra={"kind": _ONE_OF, "sentence": f"it must be {_ONE_OF}"},
        extra_json_schema={"anyOf": [{"enum": list(ALGORITHMS)}, {"pattern": f"^{CLASS_NAME}$"}]},
    ),
]
Kernels = tuple[tuple[Count, Count, Count], ...]


def _method(words: str) -> Meta:
    return setting(f"Settings of {words}, by name.", when="Each has a default.")


@dataclass(frozen=True, slots=True)
class Settings:
    """Training settings of a run. Learner, workers and evaluator of a run get the same settings."""

    # --- task and method ---
    environment: Annotated[
        str,
        setting(
            "Name of the environment: racing, l2r, or an id that Gymnasium knows; package.module:Class is "
            "your own on tensors, for collect: device.",
            example="CartPole-v1",
        ),
    ] = environments.DEFAULT
    environment_options: Annotated[
        Options, setting("Options of the environment, by name.", example={"observation": "view"})
    ] = field(default_factory=dict)
    algorithm: Annotated[
        Algorithm,
        setting(
            "Method that learns; package.module:Class is your own.",
            when="Expensive steps: sac, dqn for choices, td3 for numbers. Cheap steps: ppo. Many distant workers: "
            "impala. Recorded episodes: bc. random does not learn.",
        ),
    ] = "sac"
    preset: Annotated[
        Literal["sb3", "cleanrl", "cleanrl-continuous", "cleanrl-atari"] | None,
        setting(
            "Defaults of another library for ppo, sac, td3 or dqn, instead of those here; values in the spec take "
            "precedence. null takes the defaults of this page; for racing and l2r those that were tuned on racing.",
            when="To compare a run with published ones. cleanrl-continuous and cleanrl-atari are PPO of "
            "ppo_continuous_action.py and ppo_atari.py.",
            source="Stable-Baselines3 2.x; CleanRL, the script of each method",
            example="sb3",
        ),
    ] = None
    method: Annotated[Options, setting("Settings of a method of your own, by name.", example={"lr": 0.001})] = (
        field(default_factory=dict)
    )
    hidden: Annotated[
        Widths | None,
        setting(
            "Widths of the hidden layers of the networks; null takes the algorithm's own.",
            when="Wider costs time before it helps on a CPU.",
            unit="units",
            example=[256, 256],
        ),
    ] = None
    convolutions: Annotated[
        Kernels,
        setting(
            "Channels, kernel side and stride of each convolution that an image goes through.",
            when="Fewer for small images.",
            source="Mnih et al. 2015, doi:10.1038/nature14236",
        ),
    ] = replay_memory.CONVOLUTIONS
    encoder: Annotated[
        str | Options | None,
        setting(
            "Encoder of pictures: convolutions, which the run learns, or a frozen encoder that was trained before; "
            "replay and networks then see only its latents. Write an object with name vae and weights, a path in "
            "each worker (l2r-runtime encode makes them), or package.module:Class of your own.",
            when="vae with frozen: false is trained further and replaces convolutions.",
            example={"name": "vae", "weights": "/data/vae.safetensors"},
        ),
    ] = None
    network: Annotated[
        str | Options | None,
        setting(
            "Network of your own between an observation and the hidden layers, instead of convolutions: "
            "package.module:Class of torch, or an object with name and its options.",
            when="If other layers fit better; workers then need torch.",
            example="my_network:Attention",
        ),
    ] = None
    memory: Annotated[
        str | Options | None,
        setting(
            "Memory of a policy of ppo, impala or sac, for what one observation does not show: gru, lstm, or an "
            "object with kind and size (64).",
            when="It is learned over the steps of a segment: segment_steps must cover the time that it should "
            "remember.",
            source="Cho et al. 2014, arXiv:1406.1078; Hochreiter & Schmidhuber 1997",
            example="gru",
        ),
    ] = None
    normalise_observations: Annotated[
        bool,
        setting(
            "Shift and scale the numbers of observations by their running mean and deviation over all workers, "
            "which "
            "travel with the policy and are in checkpoints.",
            when="For continuous control with ppo or impala (with their normalise_returns); pictures have a range "
            "already.",
        ),
    ] = False
    sac: Annotated[Options, _method("soft actor-critic")] = field(default_factory=dict)
    dqn: Annotated[Options, _method("the deep Q-network")] = field(default_factory=dict)
    td3: Annotated[Options, _method("TD3")] = field(default_factory=dict)
    ppo: Annotated[Options, _method("PPO")] = field(default_factory=dict)
    impala: Annotated[Options, _method("IMPALA")] = field(default_factory=dict)
    bc: Annotated[Options, _method("behaviour cloning")] = field(default_factory=dict)
    # --- collection ---
    collect: Annotated[
        Literal["workers", "device", "dataset"],
        setting(
            "Source of experience. workers: separate processes. device: the learner, with copies of the "
            "environment on its device (racing, CartPole-v1, Pendulum-v1, or a class of your own). dataset: the "
            "learner reads recorded episodes.",
            when="device for thousands of copies on a GPU.",
        ),
    ] = "workers"
    dataset: Annotated[
        str | None,
        setting(
            "Folder of recorded episodes that the learner reads with collect: dataset, as algorithm bc does.",
            example="/data/episodes",
        ),
    ] = None
    record_experience: Annotated[
        str | None,
        setting(
            "Folder into which workers write the episodes that they drive, as HDF5 in Minari's form; null writes "
            "none.",
            when="Costs the disk of all observations.",
            example="/data/episodes",
        ),
    ] = None
    clip_rewards: Annotated[
        Positive | None,
        setting(
            "Bound of the rewards that are learned from, on both sides; returns in records are of the rewards as "
            "they "
            "were.",
            when="1 for Atari; where games score so differently that no step size serves all.",
            unit="reward",
            source="Mnih et al. 2015, doi:10.1038/nature14236",
            example=1.0,
        ),
    ] = None
    num_envs: Annotated[
        Count,
        setting(
            "Copies of the environment in each worker, stepped together; 1,024 with collect: device.",
            when="`l2r-runtime config --copies` measures how many are enough; a GPU with collect: device wants "
            "4,096 and more.",
            unit="copies",
        ),
    ] = replay_memory.NUM_ENVS
    segment_steps: Annotated[
        Count,
        setting(
            "Steps of all copies in one message.",
            when="Fewer for fresher data, more for slow networks.",
            unit="env steps of each copy",
        ),
    ] = replay_memory.SEGMENT_STEPS
    warmup_steps: Annotated[
        Natural,
        setting(
            "With a replay: env steps with random actions before the first update, over all workers.",
            when="More if random actions find states that the policy would not.",
            unit="env steps",
        ),
    ] = 5_000
    remote_inference: Annotated[
        bool,
        setting(
            "The learner computes the policy for the observations of all workers, and workers get no weights.",
            when="For large image policies, if the learner has a GPU and workers have little CPU.",
            source="SEED RL, Espeholt et al. 2020, arXiv:1910.06591",
        ),
    ] = False
    # --- the balance of the two ---
    updates_per_step: Annotated[
        Positive,
        setting(
            "With a replay: gradient updates for each env step.",
            when="Raise it where steps are dear (a simulator), lower it where they are cheap.",
            unit="updates an env step",
        ),
    ] = 1 / 16
    band_steps: Annotated[
        Count,
        setting(
            "With a replay: env steps that collection may run ahead of learning; workers wait beyond it. At least "
            "two "
            "segments.",
            when="More where workers wait although the learner is not busy.",
            unit="env steps",
        ),
    ] = 8_192
    max_policy_lag: Annotated[
        Natural | None,
        setting(
            "Policy versions that a segment may be behind before it is refused; null takes the algorithm's own: "
            "1,000 "
            "with a replay, a few for impala, none for ppo.",
            when="More where far workers are refused.",
            unit="policy versions",
            example=8,
        ),
    ] = None
    publish_every: Annotated[
        Count,
        setting(
            "With a replay: updates between two published policy versions.",
            when="Fewer for fresher policies, more for slow networks.",
            unit="updates",
        ),
    ] = 50
    lockstep: Annotated[
        bool,
        setting(
            "Collect and learn by turns: with one worker the same seed gives the same run, but slowly.",
            when="To repeat a run exactly.",
        ),
    ] = False
    # --- the learner ---
    replay_capacity: Annotated[
        Count,
        setting(
            "Transitions in the replay buffer; the oldest make room.",
            when="Less where memory is short, more for long runs.",
            unit="transitions",
        ),
    ] = replay_memory.REPLAY_CAPACITY
    replay_device: Annotated[
        Literal["auto", "device", "host"],
        setting(
            "Where replay and rollouts live: device is the GPU that learns, host this machine's memory; auto takes "
            "the device if they fit.",
            when="Host leaves the GPU's memory to large networks.",
        ),
    ] = "auto"
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"],
        setting("Where the learner computes; auto takes a GPU if there is one.", when="cpu to leave the GPU free."),
    ] = "auto"
    devices: Annotated[
        Count,
        setting(
            "Ranks of the learner, one process for each GPU: each learns from an equal part of the batch, and all "
            "step by the mean of their gradients. learner.nodes and learner.gpus set this number; set it yourself "
            "for ranks on a CPU, or for a learner that you start without a spec.",
            when="For networks that keep one GPU busy.",
            unit="GPUs",
        ),
    ] = 1
    precision: Annotated[
        Literal["auto", "float32", "tf32", "bfloat16"],
        setting(
            "Of the learner's products of matrices and convolutions: float32 is exact, tf32 rounds their inputs "
            "to 3 "
            "digits where a GPU can, bfloat16 rounds weights and activations as well, to 2 digits. auto is tf32 "
            "for "
            "pictures on a GPU, float32 elsewhere.",
            when="bfloat16 is the fastest for large networks.",
        ),
    ] = "auto"
    cuda_graphs: Annotated[
        bool,
        setting(
            "On a GPU the learner launches each update as one CUDA graph.",
            when="False launches its kernels one by one, which is slower for all but very large networks.",
        ),
    ] = True
    updates_per_launch: Annotated[
        Count,
        setting(
            "With a replay on the GPU: updates in one CUDA graph, as far as the data allows them.",
            when="More for small networks, whose updates take less than their launch; 1 where each update should "
            "see "
            "the newest data.",
            unit="updates",
        ),
    ] = 8
    compile: Annotated[
        bool | Literal["auto"],
        setting(
            "With collect: device: torch compiles the environment's step before the learner captures it, so that "
            "one "
            "large kernel does what many small ones did. It takes half a minute the first time.",
            when="auto compiles on a GPU from 4,096 copies on, true always, false never.",
        ),
    ] = "auto"
    threads: Annotated[
        Count,
        setting(
            "Numerical threads of the learner, at most L2R_CPUS.",
            when="Small networks are fastest with 1.",
            unit="threads",
        ),
    ] = 1
    # --- the end ---
    total_env_steps: Annotated[
        Count | None,
        setting(
            "End when this many env steps are taken; null trains on.",
            when="Set it to end runs automatically.",
            unit="env steps",
            example=1_000_000,
        ),
    ] = None
    total_updates: Annotated[
        Count | None,
        setting(
            "End when this many updates are done; null trains on.",
            when="Set it to compare runs by their updates.",
            unit="updates",
            example=100_000,
        ),
    ] = None
    max_seconds: Annotated[
        Positive | None,
        setting(
            "End this learner process after so many seconds; null trains on.",
            when="For trials; limits.wall of the spec bounds a run over restarts.",
            unit="seconds",
            example=3600,
        ),
    ] = None
    # --- checkpoints ---
    checkpoint_seconds: Annotated[
        Positive,
        setting(
            "Time between checkpoints.",
            when="More for large replays, less where pods are often lost.",
            unit="seconds",
        ),
    ] = 30.0
    checkpoints_kept: Annotated[
        Count,
        setting("Checkpoints kept; the oldest are removed.", when="More to go back further.", unit="checkpoints"),
    ] = 3
    checkpoint_replay_bytes: Annotated[
        Natural,
        setting(
            "Size of the newest experience in a checkpoint; 0 leaves experience out.",
            when="More where experience is dear, 0 where checkpoints are copied far.",
            unit="bytes",
        ),
    ] = 32 * 1024 * 1024
    log_to: Annotated[
        Literal["wandb", "mlflow"] | None,
        setting(
            "Tracker to which the learner's and the evaluator's metrics go while it trains; its package must be "
            "installed where the learner runs. null: none.",
            when="wandb reads WANDB_API_KEY, mlflow MLFLOW_TRACKING_URI: docs/guides/trackers.md.",
            example="wandb",
        ),
    ] = None
    artifacts: Annotated[
        str | None,
        setting(
            "Second place for each checkpoint, under RUN/RUN_ID: s3://BUCKET/PREFIX or a folder of a volume. A "
            "learner that finds none in its own folder continues from there.",
            example="s3://my-bucket/l2r",
        ),
    ] = None
    resume_from: Annotated[
        str | None,
        setting(
            "Checkpoints of another run to begin with: s3://BUCKET/PREFIX/RUN/RUN_ID or a folder. Taken only where "
            "this run has none of its own.",
            example="s3://my-bucket/l2r/racing-sac/3f2a",
        ),
    ] = None
    init_policy: Annotated[
        str | None,
        setting(
            "Checkpoint, its folder or its bucket's URL: this run starts with its policy, such as one of bc, "
            "and with new optimisers, critics and counters. Ignored if this run has its own checkpoint.",
            example="/data/cloned/checkpoints",
        ),
    ] = None
    # --- evaluation ---
    eval_seconds: Annotated[
        Positive,
        setting(
            "Time between two evaluations, from start to start.",
            when="More where an evaluation takes long.",
            unit="seconds",
        ),
    ] = 15.0
    eval_episodes: Annotated[
        Count,
        setting(
            "Episodes in one evaluation, driven at the same time.",
            when="More for a surer mean.",
            unit="episodes",
        ),
    ] = 8
    eval_options: Annotated[
        Options | None,
        setting(
            "Options of the environment for evaluation, over environment_options; null takes the environment's "
            "own: "
            "for racing one lap from the line.",
            example={"laps": 3},
        ),
    ] = None

    @property
    def segment_transitions(self) -> int:
        """Transitions in a full segment."""
        return self.num_envs * self.segment_steps

    @property
    def fits_band(self) -> bool:
        """True if `band_steps` has room for two segments, where a learner with a replay waits for workers by it."""
        has_band = self.collect == "workers" and self.algorithm in _OFF_POLICY
        return not has_band or 2 * self.segment_transitions <= self.band_steps


_ALIASES: Final = {
    "algo": "algorithm",
    "alpha": "sac.init_alpha",
    "buffer_size": "replay_capacity",
    "clip_range": "ppo.clip",
    "ent_coef": "ppo.entropy_cost",
    "entropy_coef": "ppo.entropy_cost",
    "env": "environment",
    "env_id": "environment",
    "env_kwargs": "environment_options",
    "epochs": "ppo.epochs",
    "gradient_steps": "updates_per_step",
    "learning_starts": "warmup_steps",
    "max_timesteps": "total_env_steps",
    "n_envs": "num_envs",
    "n_epochs": "ppo.epochs",
    "n_steps": "segment_steps",
    "net_arch": "hidden",
    "num_workers": "num_envs",
    "policy_kwargs": "hidden",
    "rollout_length": "segment_steps",
    "timesteps": "total_env_steps",
    "total_steps": "total_env_steps",
    "total_timesteps": "total_env_steps",
    "train_freq": "updates_per_step",
    "vf_coef": "ppo.value_cost",
}
"""Words of Stable-Baselines3, RLlib and CleanRL, with the setting that they mean."""


def near_setting(name: str, algorithm: str = "sac") -> str:
    """Return the setting that a wrong name may have meant, ``sac.actor_lr`` for ``lr``; empty for none.

    Args:
        algorithm: Its method's settings come first.
    """
    declared, method = types_of(Settings), METHODS.get(algorithm, SACConfig)
    key = algorithm if algorithm in METHODS else "sac"
    word = name.lower().replace("-", "_").replace("learning_rate", "lr")
    alias = _ALIASES.get(word, "")
    # Other libraries name one setting for all methods; here each method has its own.
    if alias.startswith("ppo.") and (own := alias.partition(".")[2]) in types_of(method):
        alias = f"{key}.{own}"
    if alias:
        return alias
    if near := difflib.get_close_matches(word, list(declared), n=1, cutoff=0.8):
        return near[0]
    of_method = list(types_of(method))
    # One part of a longer name is what people remember of it: lr of actor_lr.
    parts = [own for own in of_method if word == own or (len(word) > 1 and word in own.split("_"))]
    if close := parts[:1] or difflib.get_close_matches(word, of_method, n=1, cutoff=0.75):
        return f"{key}.{close[0]}"
    for other, kind in METHODS.items():
        if word in types_of(kind):
            return f"{other}.{word}"
    return next(iter(difflib.get_close_matches(word, declared, n=1, cutoff=0.7)), "")


def parse(text: str) -> Settings:
    """Return the settings in a JSON text; an empty one means the defaults. Raises SettingsError."""
    return from_mapping(read_object(text))


def read_object(text: str) -> dict[str, Any]:
    """Return the JSON object of a text; an empty one is an empty object. Raises SettingsError."""
    if not text.strip():
        return {}
    try:
        values = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except SettingsError:
        raise
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the settings are not JSON: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError("the settings must be one JSON object")
    return values


def _finite(text: str) -> float:
    """Return a number of the JSON text. Python's parser would also accept NaN, and turn 1e999 into infinity."""
    number = float(text)
    if not math.isfinite(number):
        raise SettingsError(f"the settings hold {text}, which is no number to train with")
    return number


def from_mapping(overrides: Mapping[str, Any]) -> Settings:
    """Return the settings with `overrides` over the defaults. SettingsError has a line for each mistake."""
    settings, mistakes = read(overrides)
    if settings is None:
        raise SettingsError("\n".join(mistakes))
    return settings


def read(overrides: Mapping[str, Any]) -> tuple[Settings | None, list[str]]:
    """Return the settings with `overrides` over the defaults, or None and a sentence for each mistake."""
    algorithm = overrides.get("algorithm", "sac")
    declared = {name: value for name, value in overrides.items() if name in types_of(Settings)}
    values, mistakes = read_fields(Settings, declared)
    for name in (name for name in overrides if name not in declared):
        near = near_setting(name, algorithm if isinstance(algorithm, str) else "sac")
        mistakes.append(unknown(name, types_of(Settings), "", near))
    if mistakes:
        return None, mistakes
    try:
        values = presets.completed(values)
    except ValueError as error:
        return None, [str(error)]
    # Defaults that follow from another setting, as long as the settings do not say otherwise.
    if values.get("collect") == "device":
        values.setdefault("num_envs", replay_memory.DEVICE_NUM_ENVS)
    if values.get("algorithm") == "bc":
        values.setdefault("collect", "dataset")
    settings = Settings(**values)
    if not settings.fits_band:
        sentence = (
            f"band_steps is {settings.band_steps}; it must hold at least two segments of num_envs x segment_steps "
            f"= {settings.segment_transitions} env steps"
        )
        return None, [sentence]
    return settings, []


def describe(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Yield name, value as JSON, and meaning of every setting."""
    types = types_of(Settings)
    for declared in fields(Settings):
        value = getattr(settings, declared.name)
        text = json.dumps(list(value) if isinstance(value, tuple) else value)
        yield declared.name, text, _meaning(types[declared.name])


def describe_method(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Yield name, value as JSON, and meaning of every setting of the method in use; none for one's own."""
    if (kind := METHODS.get(settings.algorithm)) is None:
        return
    values = getattr(settings, settings.algorithm)
    for declared in fields(kind):
        text = json.dumps(values.get(declared.name, declared.default))
        yield f"{settings.algorithm}.{declared.name}", text, _meaning(types_of(kind)[declared.name])


def _meaning(hint: Any) -> str:
    return next(str(meta.description) for meta in reversed(hint.__metadata__) if meta.description)
