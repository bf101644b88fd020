"""Memory use of a learner (replay, batches, rollouts, updates), and where the data fits; pure arithmetic.

The app computes it before launch and the learner at its start, with the same functions: both only need sizes. Sizes
of observations are as on the wire: 4 bytes for each number of a vector, 1 for each channel of a pixel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal

from msgspec import Struct

from runtime.base import presets

REPLAY_CAPACITY: Final = 500_000
"""Default of the setting ``replay_capacity``, transitions."""
NUM_ENVS: Final = 16
"""Default of the setting ``num_envs``."""
SEGMENT_STEPS: Final = 16
"""Default of the setting ``segment_steps``."""
SAC_BATCH_SIZE: Final = 256
"""Default of SAC's ``batch_size``."""
MEMORY_SIZE: Final = 64
"""Default of the size of the setting ``memory``."""
PPO_BATCH_STEPS: Final = 2_048
"""Default of PPO's ``batch_steps``."""
IMPALA_BATCH_STEPS: Final = 1_024
"""Default of IMPALA's ``batch_steps``."""

DEVICE_NUM_ENVS: Final = 1_024
"""Default of ``num_envs`` if the learner collects itself. It is the same on every device, so that a run can resume
elsewhere with the same copies; on one CPU core more are not faster.
"""

CONVOLUTIONS: Final = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Default of the setting ``convolutions``: output channels, kernel size and stride of each."""
HIDDEN: Final = (64, 64)
"""Default of a method's ``hidden``."""
SAC_HIDDEN: Final = (256, 256)
"""Default of SAC's ``hidden``."""
PPO_MINIBATCH_SIZE: Final = 256
"""Default of PPO's ``minibatch_size``."""
DEVICE_MINIBATCHES: Final = 4
"""Number of minibatches of PPO's update if the learner collects itself, unless ``minibatch_size`` is set."""

DEVICE_RESERVE_BYTES: Final = 4 * 2**30
"""Minimum device memory left to networks, updates (the shared pool of their graphs) and CUDA itself."""
CONTEXT_BYTES: Final = 2**30
"""Device memory of CUDA's context, the libraries' workspaces and the copies of weights and checkpoints."""
_PICTURE_COPIES: Final = 3.5
"""Number of copies of a row's pixels, as floats and convolution outputs, that an update holds. The measured peaks
are 2.2 for SAC and DQN, and 3.3 for PPO and IMPALA, which also evaluate the next observations.
"""
_NUMBER_COPIES: Final = 6.0
"""Number of copies of a row's inputs and outputs of dense layers that an update holds: 4.9 in SAC, 2.6 in
IMPALA.
"""
_WEIGHT_COPIES: Final = 16
"""Number of copies of a network's weights; the maximum is SAC's and TD3's critics, targets, moments and
gradients.
"""
HOST_RESERVE_BYTES: Final = 2**30
"""Host memory left to the learner itself: torch takes half of it."""
MARGIN_BYTES: Final = 64 * 2**20
MARGIN_ROWS: Final = 4_096
"""Maximum rows, and their bytes, that a ring has beyond its capacity: written while a batch is read."""
_SMALL_BYTES: Final = 4 + 1 + 1 + 8
"""Reward, end, number of summed steps and index of the next observation of a transition."""
_PRIORITY_BYTES: Final = 24
"""Priority of a transition, its entry in a sum, and on the device a second index of the next observation."""

Place = Literal["device", "host"]


class DataMemory(Struct, frozen=True):
    """Sizes of a learner's data; parts that a method does not have are 0."""

    replay_bytes: int
    """The whole ring. On the device it is allocated at the start."""
    filled_bytes: int
    """The part of the ring that the run can fill; on the host only that part is ever touched."""
    batch_bytes: int
    """Two batches of transitions: one is learned from while the next is copied."""
    rollout_bytes: int
    """Segments that wait for an on-policy update, and the batch that is built from them."""
    update_bytes: int = 0
    """Networks and one update; on a GPU its graphs share one pool for it."""

    @property
    def device_bytes(self) -> int:
        """Bytes on the device if all data is there."""
        return self.replay_bytes + self.batch_bytes + self.rollout_bytes

    @property
    def reserve_bytes(self) -> int:
        """Bytes of the device that are reserved for everything except the data."""
        return max(DEVICE_RESERVE_BYTES, CONTEXT_BYTES + self.update_bytes)

    @property
    def host_bytes(self) -> int:
        """Bytes on the host if all data is there."""
        return self.filled_bytes + self.batch_bytes + self.rollout_bytes


def margin_rows(capacity: int, row_bytes: int) -> int:
    """Return the number of extra rows of a host ring beyond its `capacity`."""
    return min(capacity, MARGIN_ROWS, MARGIN_BYTES // max(1, row_bytes))


def tail_rows(capacity: int, num_envs: int, segment_steps: int) -> int:
    """Return the number of rows for observations that start no transition: ends of segments, and truncations.

    This allows for a truncation in one of 32 transitions; a ring with more of them grows.
    """
    segments = math.ceil(capacity / (num_envs * segment_steps)) + 2
    return segments * num_envs + capacity // 32


def update_bytes(
    *,
    numbers: int,
    pictures: Sequence[Sequence[int]],
    convolutions: Sequence[Sequence[int]],
    hidden: Sequence[int],
    gradient_rows: int,
    other_rows: int = 0,
    precision: str = "auto",
) -> int:
    """Return an upper bound of the memory of networks and one update, including its graphs.

    Args:
        numbers: Numbers of an observation without its images. pictures: Height, width and channels of each image.
        convolutions: Output channels, kernel size and stride of each. hidden: Widths of the layers after them.
        gradient_rows: Observations in one gradient step. other_rows: Observations of which only values are
            computed.
        precision: Precision of products; see the setting.
    """
    pixels, features, weights = 0, numbers, 0
    for picture in pictures:
        height, width, channels = picture
        pixels += math.prod(picture)
        for out, side, stride in convolutions:
            weights += side * side * channels * out
            height, width, channels = (height - side) // stride + 1, (width - side) // stride + 1, out
            pixels += height * width * channels
        features += height * width * channels
    widths = (features, *hidden)
    weights += sum(above * below for above, below in pairwise(widths))
    row = _PICTURE_COPIES * pixels + _NUMBER_COPIES * sum(widths)
    size = 2 if precision == "bfloat16" else 4
    return size * int(gradient_rows * row + other_rows * (pixels + sum(widths))) + 4 * _WEIGHT_COPIES * weights


def data_memory(
    *,
    observation_bytes: int,
    action_bytes: int,
    num_envs: int = NUM_ENVS,
    segment_steps: int = SEGMENT_STEPS,
    replay_capacity: int = 0,
    batch_size: int = 0,
    batch_steps: int = 0,
    queue_batches: int = 1,
    total_env_steps: int | None = None,
    state_floats: int = 0,
    prioritised: bool = False,
    update_bytes: int = 0,
) -> DataMemory:
    """Return the bytes of a learner's data.

    Args:
        observation_bytes: Size of one observation. action_bytes: Size of one action, 4 for each number.
        replay_capacity: Transitions in the replay; 0 for on-policy methods. batch_size: Transitions in an update.
        batch_steps: Env steps in an on-policy update; 0 for others. queue_batches: Maximum number of waiting
            batches.
        total_env_steps: End of the run, which may come before the replay is full.
        state_floats: Recurrent state of a policy, stored with each step; see `state_width`.
        prioritised: True for prioritised sampling. update_bytes: Memory of networks and an update, see
            `update_bytes`.
    """
    item_bytes = observation_bytes + action_bytes + _SMALL_BYTES + 4 * state_floats
    if prioritised:
        item_bytes += _PRIORITY_BYTES
    if state_floats and replay_capacity:
        item_bytes += 1  # the end of the step itself, by which states are reset

    def ring(capacity: int) -> int:
        return capacity * item_bytes + tail_rows(capacity, num_envs, segment_steps) * observation_bytes

    replay = ring(replay_capacity) if replay_capacity else 0
    most = replay_capacity if total_env_steps is None else min(replay_capacity, total_env_steps)
    batch = 2 * batch_size * (item_bytes + observation_bytes)
    # Waiting segments have each observation once, plus a last row for each copy; the batch also has the next ones.
    waiting = item_bytes + observation_bytes // segment_steps
    rollouts = batch_steps * (queue_batches * waiting + item_bytes + observation_bytes)
    return DataMemory(replay, ring(most) if most else 0, batch, rollouts, update_bytes)


def memory_of_settings(
    settings: Mapping[str, Any],
    observation_bytes: int,
    action_bytes: int,
    pictures: Sequence[Sequence[int]] = (),
) -> DataMemory:
    """Return the size of a run's data for `settings`, a mapping as in a spec; defaults are filled in.

    ``pictures`` are height, width and channels of each image in an observation. Settings of a wrong form, which are
    refused elsewhere, raise TypeError, ValueError, AttributeError, ArithmeticError or LookupError.
    """
    settings = presets.completed(settings)
    algorithm, is_own = settings.get("algorithm", "sac"), settings.get("collect") == "device"
    method = settings.get(algorithm, {}) or {}
    rows: tuple[int, int] | None = None
    sizes: dict[str, Any] = {
        "observation_bytes": observation_bytes,
        "action_bytes": action_bytes,
        "num_envs": DEVICE_NUM_ENVS if is_own else NUM_ENVS,
        "segment_steps": settings.get("segment_steps", SEGMENT_STEPS),
        "total_env_steps": settings.get("total_env_steps"),
    }
    if settings.get("memory") is not None:
        sizes["state_floats"] = state_width(_state_size(settings["memory"]), sizes["segment_steps"])
    if "num_envs" in settings:
        sizes["num_envs"] = settings["num_envs"]
    if algorithm in {"sac", "dqn", "td3", "bc", "random"}:
        sizes["replay_capacity"] = settings.get("replay_capacity", REPLAY_CAPACITY)
        sizes["batch_size"] = method.get("batch_size", SAC_BATCH_SIZE)
        sizes["prioritised"] = method.get("prioritised", False)
        rows = sizes["batch_size"], 0
    elif algorithm in {"ppo", "impala"} and not method.get("sends_gradients", False):
        default = PPO_BATCH_STEPS if algorithm == "ppo" else IMPALA_BATCH_STEPS
        if is_own:  # a batch is one rollout of all copies
            default = sizes["num_envs"] * sizes["segment_steps"]
        sizes["batch_steps"] = method.get("batch_steps", default)
        sizes["queue_batches"] = method.get("queue_batches", 1 if algorithm == "ppo" else 2)
        count = sizes["batch_steps"]
        shares = count // DEVICE_MINIBATCHES if is_own else PPO_MINIBATCH_SIZE
        rows = (method.get("minibatch_size", shares), count) if algorithm == "ppo" else (count, 0)
    if rows is not None:
        hidden: Sequence[int] = settings.get("hidden") or (SAC_HIDDEN if algorithm == "sac" else HIDDEN)
        sizes["update_bytes"] = update_bytes(
            numbers=(observation_bytes - sum(map(math.prod, pictures))) // 4,
            pictures=pictures,
            convolutions=settings.get("convolutions", CONVOLUTIONS),
            hidden=method.get("hidden", hidden),
            gradient_rows=rows[0],
            other_rows=rows[1],
            precision=settings.get("precision", "auto"),
        )
    return data_memory(**sizes)


def state_size(kind: str, size: int) -> int:
    """Return the size of a policy's recurrent state: outputs, then cells of an LSTM."""
    return 2 * size if kind == "lstm" else size


def state_width(size: int, steps: int) -> int:
    """Return the numbers per step when a state of `size` is spread over the `steps` of a segment."""
    return math.ceil(size / steps)


def _state_size(memory: str | Mapping[str, Any]) -> int:
    """Return the size of a state for the setting ``memory``; an invalid setting is refused elsewhere."""
    if isinstance(memory, str):
        return state_size(memory, MEMORY_SIZE)
    return state_size(memory.get("kind", ""), memory.get("size", MEMORY_SIZE))


def fits_device(memory: DataMemory, free_bytes: int) -> bool:
    """Return true if the device has room for the data in addition to networks and updates."""
    return memory.device_bytes + memory.reserve_bytes <= free_bytes


def fits_host(memory: DataMemory, free_bytes: int | None) -> bool:
    """Return true if the host has room for the data and the learner, or if its free memory is unknown (None)."""
    return free_bytes is None or memory.host_bytes + HOST_RESERVE_BYTES <= free_bytes


def choose_place(setting: str, memory: DataMemory, device_free: int | None, host_free: int | None) -> Place:
    """Return the place of the data for the setting ``replay_device``: auto, device or host.

    Args:
        device_free: Free bytes of the GPU; None if the learner computes on the CPU.
        host_free: Free bytes of the host; None if unknown.

    Raises ValueError with a sentence on the sizes and the setting if the data fits in no allowed place.
    """
    if device_free is not None and setting != "host" and fits_device(memory, device_free):
        return "device"
    if (device_free is None or setting != "device") and fits_host(memory, host_free):
        return "host"
    raise ValueError(refusal(memory, device_free if setting != "host" else None, host_free, setting))


def refusal(memory: DataMemory, device_free: int | None, host_free: int | None, setting: str = "auto") -> str:
    """Return the sentence for data that does not fit anywhere."""
    has = []
    if device_free is not None:
        has.append(f"the card has {size_text(device_free)} free")
    if host_free is not None and not (setting == "device" and device_free is not None):
        has.append(f"the host {size_text(host_free)}")
    if memory.replay_bytes:
        data, remedy = "replay and batches", "lower replay_capacity or the size of the observations"
    else:
        data, remedy = "rollouts and batches", "lower batch_steps or the size of the observations"
    if setting == "device" and device_free is not None:
        remedy += ", or set replay_device to auto"
    needs = memory.host_bytes if device_free is None else memory.device_bytes
    reserves = f"of which {size_text(memory.reserve_bytes)} stay for networks" if device_free is not None else ""
    sentence = f"{data} take {size_text(needs)} and {' and '.join(has)}"
    return f"{sentence}{', ' + reserves if reserves else ''}; {remedy}"


def size_text(count: int) -> str:
    """Format bytes for display: ``26.3 GiB``, ``83 MiB``."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{math.ceil(count / 2**20)} MiB"
