"""Training settings: a frozen dataclass, created from the JSON object in `L2R_CONFIG` (stdlib only).

Every setting documents its unit, its default and when to change it; `l2r-runtime config` prints this. An unknown
key, a wrong type or a value out of range is rejected with a sentence, so that a typing error never trains for a
day.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from runtime.base import replay_memory
from runtime.base.environments import CLASS_NAME


class SettingsError(ValueError):
    """Settings are invalid; the sentence names the key and its allowed values."""


ALGORITHMS: Final = ("sac", "dqn", "td3", "ppo", "impala", "bc", "sgd", "random")
_OFF_POLICY: Final = ("sac", "dqn", "td3")
"""Methods that learn from a replay; settings about the replay apply to them."""


def _setting(default: Any, meaning: str, *, least: float | None = None, one_of: Sequence[str] = ()) -> Any:
    """Declare a setting; `least` is the minimum of numbers. A float with `least` 0 must be above it."""
    metadata = {"meaning": meaning, "least": least, "one_of": tuple(one_of)}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """Training settings of a run. Its learner, workers and evaluator get the same settings."""

    # --- task and method ---
    environment: str = _setting(
        "racing",
        "Name of the environment: racing, or an id that Gymnasium knows; package.module:Class is one's own on "
        "tensors, for collect: device.",
    )
    environment_options: Mapping[str, Any] = _setting({}, "Options of the environment, by name.")
    algorithm: str = _setting(
        "sac",
        "How it is learned: sac where steps are dear, beside it dqn for choices and td3 for numbers; ppo where "
        "steps are cheap, impala where many workers are far away; bc imitates recorded episodes; sgd learns from "
        "examples, random nothing; "
        "package.module:Class is one's own.",
        one_of=ALGORITHMS,
    )
    method: Mapping[str, Any] = _setting({}, "Settings of a method of one's own, by name.")
    hidden: tuple[int, ...] | None = _setting(
        None,
        "Widths of the hidden layers of the networks; null takes the algorithm's own. Wider costs time before it "
        "helps on a CPU.",
        least=1,
    )
    convolutions: tuple[tuple[int, int, int], ...] = _setting(
        replay_memory.CONVOLUTIONS,
        "Channels, kernel side and stride of each convolution that an image goes through. Fewer for small images.",
        least=1,
    )
    encoder: str | Mapping[str, Any] | None = _setting(
        None,
        "What pictures go through: convolutions, which the run learns; or an encoder that was trained before and "
        "stays as it is, so that replay and networks see its latents alone: an object with name vae and weights, a "
        "path in each worker (l2r-runtime encode makes them), or package.module:Class of one's own. Of vae "
        "frozen: false learns it further, in the place of convolutions.",
    )
    network: str | Mapping[str, Any] | None = _setting(
        None,
        "Network of one's own between an observation and the hidden layers, in the place of convolutions: "
        "package.module:Class of torch, or an object with name and its options. Where layers of another form fit "
        "better; workers then need torch.",
    )
    memory: str | Mapping[str, Any] | None = _setting(
        None,
        "Memory of a policy of ppo, impala or sac, for what one observation does not show: gru, lstm, or an object "
        "with kind and size (64). It is learned over the steps of a segment: take segment_steps at least as long "
        "as what it should remember.",
    )
    normalise_observations: bool = _setting(
        False,
        "Shift and scale the numbers of observations by their running mean and deviation over all workers, which "
        "travel with the policy and stand in checkpoints. For continuous control with ppo or impala (with their "
        "normalise_returns); pictures have a range already.",
    )
    sac: Mapping[str, Any] = _setting(
        {}, "Settings of soft actor-critic, by name; what is left out is tuned for racing."
    )
    dqn: Mapping[str, Any] = _setting({}, "Settings of the deep Q-network, by name.")
    td3: Mapping[str, Any] = _setting({}, "Settings of TD3, by name.")
    ppo: Mapping[str, Any] = _setting({}, "Settings of PPO, by name.")
    impala: Mapping[str, Any] = _setting({}, "Settings of IMPALA, by name.")
    bc: Mapping[str, Any] = _setting({}, "Settings of behaviour cloning, by name.")
    sgd: Mapping[str, Any] = _setting({}, "Settings of gradient descent on examples, by name.")
    # --- collection ---
    collect: str = _setting(
        "workers",
        "Who collects: workers, in processes of their own; or device, the learner itself, with copies of the "
        "environment beside its networks (racing, CartPole-v1, Pendulum-v1, or a class of one's own): for "
        "thousands of copies on a GPU; or nobody: dataset, where the "
        "learner reads recorded episodes.",
        one_of=("workers", "device", "dataset"),
    )
    dataset: str | None = _setting(
        None, "Folder of recorded episodes that the learner reads with collect: dataset, as algorithm bc does."
    )
    record_experience: str | None = _setting(
        None,
        "Folder into which workers write the episodes that they drive, as HDF5 in Minari's form; null writes none. "
        "Costs the disk of all observations.",
    )
    clip_rewards: float | None = _setting(
        None,
        "Bound of the rewards that are learned from, on both sides (1 for Atari); returns in records are of the "
        "rewards as they were. Where games score so differently that no step size serves all.",
        least=0,
    )
    num_envs: int | str = _setting(
        replay_memory.NUM_ENVS,
        "Copies of the environment in each worker, stepped together; 1,024 in a learner that collects by itself, "
        "where a GPU wants 4,096 and more. auto lets each worker measure at its start how many are enough.",
        least=1,
        one_of=(replay_memory.AUTO_NUM_ENVS,),
    )
    segment_steps: int = _setting(
        replay_memory.SEGMENT_STEPS,
        "Steps of all copies in one message. Fewer for fresher data, more for slow networks.",
        least=1,
    )
    warmup_steps: int = _setting(
        5_000, "With a replay: env steps with random actions before the first update, over all workers.", least=0
    )
    remote_inference: bool = _setting(
        False,
        "The learner answers what the policy says to each observation, for all workers together, and none of them "
        "gets the weights: for large image policies where the learner has a GPU and workers have little CPU.",
    )
    # --- balance of collection and learning ---
    updates_per_step: float = _setting(
        1 / 16,
        "With a replay: gradient updates for each env step. Raise it where steps are dear (a simulator), lower it "
        "where they are cheap.",
        least=0,
    )
    band_steps: int = _setting(
        8_192,
        "With a replay: env steps that collection may run ahead of learning; workers wait beyond it. At least two "
        "segments.",
        least=1,
    )
    max_policy_lag: int | None = _setting(
        None,
        "Policy versions that a segment may be behind before it is refused; null takes the algorithm's own: 1,000 "
        "with a replay, a few for impala, none for ppo.",
        least=0,
    )
    publish_every: int = _setting(50, "With a replay: updates between two published policy versions.", least=1)
    lockstep: bool = _setting(
        False, "Collect and learn by turns: with one worker the same seed gives the same run, but slowly."
    )
    # --- learner ---
    replay_capacity: int = _setting(
        replay_memory.REPLAY_CAPACITY, "Transitions in the replay buffer; the oldest make room.", least=1
    )
    replay_device: str = _setting(
        "auto",
        "Where replay and rollouts live: device is the GPU that learns, host this machine's memory; auto takes the "
        "device if they fit. Host leaves the GPU's memory to large networks.",
        one_of=("auto", "device", "host"),
    )
    device: str = _setting(
        "auto",
        "Where the learner computes; auto takes a GPU if there is one.",
        one_of=("auto", "cpu", "cuda", "mps"),
    )
    devices: int = _setting(
        1,
        "GPUs among which the learner shares each batch: equal parts, the mean of their gradients. For networks "
        "that keep one GPU busy; the batch must have so many equal parts.",
        least=1,
    )
    precision: str = _setting(
        "auto",
        "Of the learner's products of matrices and convolutions: float32 is exact, tf32 rounds their inputs to 3 "
        "digits where a GPU can, bfloat16 rounds weights and activations as well, to 2 digits, and is the fastest "
        "for large networks. auto is tf32 for pictures on a GPU, float32 elsewhere.",
        one_of=("auto", "float32", "tf32", "bfloat16"),
    )
    cuda_graphs: bool = _setting(
        True,
        "On a GPU the learner launches each update as one CUDA graph; false launches its kernels one by one, which "
        "is slower for all but very large networks.",
    )
    updates_per_launch: int = _setting(
        8,
        "With a replay on the GPU: updates in one CUDA graph, as far as the data allows them. More for small "
        "networks, whose updates take less than their launch; 1 where each update should see the newest data.",
        least=1,
    )
    compile: bool | str = _setting(
        "auto",
        "With collect: device: torch compiles the environment's step before the learner captures it, so that one "
        "large kernel does what many small ones did. It takes half a minute the first time; auto compiles on a "
        "GPU from 4,096 copies on, true always, false never.",
        one_of=("auto",),
    )
    threads: int = _setting(
        1, "Numerical threads of the learner, at most L2R_CPUS. Small networks are fastest with 1.", least=1
    )
    # --- end of the run ---
    total_env_steps: int | None = _setting(None, "End when this many env steps are taken; null trains on.", least=1)
    total_updates: int | None = _setting(None, "End when this many updates are done; null trains on.", least=1)
    max_seconds: float | None = _setting(
        None, "End this learner process after so many seconds; null trains on.", least=0
    )
    # --- checkpoints ---
    checkpoint_seconds: float = _setting(30.0, "Seconds between checkpoints.", least=0)
    checkpoints_kept: int = _setting(3, "Checkpoints kept; the oldest are removed.", least=1)
    checkpoint_replay_bytes: int = _setting(
        32 * 1024 * 1024, "Bytes of the newest experience in a checkpoint; 0 leaves experience out.", least=0
    )
    artifacts: str | None = _setting(
        None,
        "Where each checkpoint is copied to as well, under RUN/RUN_ID: s3://BUCKET/PREFIX or a folder of a volume. "
        "A learner that finds none in its own folder goes on from there.",
    )
    resume_from: str | None = _setting(
        None,
        "Checkpoints of another run to begin with: s3://BUCKET/PREFIX/RUN/RUN_ID or a folder. Taken only where "
        "this run has none of its own.",
    )
    init_policy: str | None = _setting(
        None,
        "A checkpoint, its folder or its bucket's URL, whose policy this run begins with, for example one of bc. "
        "Optimisers, critics and counters begin anew. Taken only where this run has no checkpoint of its own.",
    )
    # --- evaluation ---
    eval_seconds: float = _setting(15.0, "Seconds between two evaluations, from start to start.", least=0)
    eval_episodes: int = _setting(8, "Episodes in one evaluation, driven at the same time.", least=1)
    eval_options: Mapping[str, Any] | None = _setting(
        None,
        "Options of the environment for evaluation, over environment_options; null takes the environment's own: "
        "for racing one lap from the line.",
    )

    @property
    def measures_copies(self) -> bool:
        """True if each worker measures at startup how many copies to use."""
        return self.num_envs == replay_memory.AUTO_NUM_ENVS

    @property
    def copies(self) -> int:
        """Copies of the environment per worker; if workers measure the number, the minimum, 1."""
        return self.num_envs if isinstance(self.num_envs, int) else 1

    @property
    def segment_transitions(self) -> int:
        """Transitions in a full segment."""
        return self.copies * self.segment_steps

    @property
    def fits_band(self) -> bool:
        """True if `band_steps` has room for two segments, where a learner with a replay makes workers wait."""
        has_band = self.collect == "workers" and self.algorithm in _OFF_POLICY
        return not has_band or 2 * self.segment_transitions <= self.band_steps


_KINDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "str": ((str,), "a text"),
    "str | None": ((str, type(None)), "a text or null"),
    "int": ((int,), "a whole number"),
    "int | str": ((int, str), "a whole number or auto"),
    "bool | str": ((bool, str), "true, false or auto"),
    "float": ((int, float), "a number"),
    "int | None": ((int, type(None)), "a whole number or null"),
    "float | None": ((int, float, type(None)), "a number or null"),
    "bool": ((bool,), "true or false"),
    "tuple[int, ...] | None": ((list, tuple, type(None)), "a list of whole numbers or null"),
    "tuple[tuple[int, int, int], ...]": ((list, tuple), "a list of lists of three whole numbers"),
    "Mapping[str, Any]": ((dict,), "an object"),
    "str | Mapping[str, Any] | None": ((str, dict, type(None)), "a text, an object or null"),
    "Mapping[str, Any] | None": ((dict, type(None)), "an object or null"),
}
"""Types that JSON may use for an annotation, and their names in a sentence."""


def parse(text: str) -> Settings:
    """Return the settings in a JSON text; an empty text means the defaults. Raises SettingsError."""
    return from_mapping(read_object(text))


def read_object(text: str) -> dict[str, Any]:
    """Return the JSON object in a text; an empty text is an empty object. Raises SettingsError."""
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
    """Return the default settings with `overrides` applied. Raises SettingsError."""
    declared = {setting.name: setting for setting in fields(Settings)}
    values: dict[str, Any] = {}
    for name, value in overrides.items():
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(declared)}"
            raise SettingsError(f"there is no setting {name!r}; {hint}")
        _check(name, value, str(declared[name].type), declared[name].metadata)
        values[name] = _frozen(value)
    if values.get("collect") == "device":
        values.setdefault("num_envs", replay_memory.DEVICE_NUM_ENVS)
    if values.get("algorithm") == "bc":
        values.setdefault("collect", "dataset")
    settings = Settings(**values)
    if not settings.fits_band:
        raise SettingsError(
            f"band_steps is {settings.band_steps}; it must hold at least two segments of num_envs x segment_steps "
            f"= {settings.segment_transitions} env steps"
        )
    return settings


def _frozen(value: Any) -> Any:
    """Return ``value`` with lists turned into tuples at every depth."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _check(name: str, value: Any, declared: str, metadata: Mapping[str, Any]) -> None:
    """Raise SettingsError unless `value` is allowed for the setting."""
    numbers: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    types, kind = _KINDS[declared]
    wrong = SettingsError(f"{name} is {json.dumps(value)}; it must be {kind}")
    if (isinstance(value, bool) and bool not in types) or not isinstance(value, types):
        raise wrong
    if declared.startswith("tuple[tuple"):
        if not all(isinstance(triple, list | tuple) and len(triple) == 3 for triple in numbers):
            raise wrong
        numbers = [number for triple in numbers for number in triple]
    if declared.startswith("tuple") and value is not None and not all(type(number) is int for number in numbers):
        raise wrong
    least, one_of = metadata["least"], metadata["one_of"]
    above = declared.startswith("float")
    for number in numbers:
        if least is None or number is None or isinstance(number, str):
            continue
        if number <= least if above else number < least:
            raise SettingsError(f"{name} is {number}; it must be {'above' if above else 'at least'} {least:g}")
    is_own = name == "algorithm" and re.fullmatch(CLASS_NAME, str(value)) is not None
    if one_of and isinstance(value, str) and value not in one_of and not is_own:
        expected = f"one of {', '.join(one_of)}" if declared == "str" else kind
        raise SettingsError(f"{name} is {value!r}; it must be {expected}")


def describe(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Yield name, value as JSON, and description of every setting."""
    for setting in fields(Settings):
        value = getattr(settings, setting.name)
        text = json.dumps(list(value) if isinstance(value, tuple) else value)
        yield setting.name, text, setting.metadata["meaning"]
