"""Updates: SAC, DQN, PPO and IMPALA eager and captured, in each precision, with data in the learner's places.

`loop` draws batches of the replay and updates, like a learner without workers: `device` keeps the replay on the GPU
and launches several updates together, `host` has it in pinned memory with copies ahead. By priority the updates of
`device` draw themselves, and `host` has the sum tree, to which the errors are copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.base.training import Settings, from_mapping
from runtime.rl.algos.algorithm import Algorithm
from runtime.rl.algos.method_config import ReplayConfig
from runtime.rl.algos.off_policy.critics import ReplayMethod
from runtime.rl.algos.off_policy.graph_updates import GraphUpdates
from runtime.rl.algos.plan import Plan, assemble, make_plan, make_store
from runtime.rl.buffers.batch_source import BatchSource
from runtime.rl.buffers.priorities import LatePriorities
from runtime.rl.buffers.replay import Batch, Replay
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.device.staging import DeviceCopier, HostCopy
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.bench.gpu.measuring import Bench, call_seconds, show

SMALL_CONVOLUTIONS = [[16, 5, 2], [32, 3, 2], [32, 3, 2]]
ROWS = 256
"""Transitions in one insertion."""


@dataclass(frozen=True, slots=True)
class Case:
    """Method, observations and sizes of one row."""

    title: str
    obs: ObsSpace
    settings: dict[str, Any]
    rows: int = 20_000
    """Transitions in the replay."""
    seconds: float = field(default=12.0)
    """Approximate duration on a GPU."""


def replayed(
    method: str,
    title: str,
    obs: ObsSpace,
    size: int,
    hidden: list[int],
    rows: int,
    *,
    prioritised: bool = False,
    **more: Any,
) -> Case:
    options = {"batch_size": size, "prioritised": prioritised}
    settings = {"algorithm": method, "hidden": hidden, method: options, "replay_capacity": rows, **more}
    words = f"by priority of {rows:,}, " if prioritised else ""
    return Case(f"{method.upper()} {title}, {words}batch {size}, {hidden}", obs, settings, rows)


sac, dqn = partial(replayed, "sac"), partial(replayed, "dqn")


def ppo(title: str, obs: ObsSpace, steps: int, copies: int, minibatch: int, epochs: int, hidden: list[int]) -> Case:
    sizes = {"batch_steps": steps * copies, "minibatch_size": minibatch, "epochs": epochs}
    shape = {"num_envs": copies, "segment_steps": steps, "hidden": hidden}
    return Case(
        f"PPO {title} {steps} x {copies}, {epochs} epochs", obs, {"algorithm": "ppo", **shape, "ppo": sizes}
    )


def impala(title: str, obs: ObsSpace, steps: int, copies: int, hidden: list[int]) -> Case:
    shape = {"num_envs": copies, "segment_steps": steps, "hidden": hidden}
    settings = {"algorithm": "impala", **shape, "impala": {"batch_steps": steps * copies}}
    return Case(f"IMPALA {title} {steps} x {copies}", obs, settings)


VECTOR, ATARI = ObsSpace(23), ObsSpace(6, ((84, 84, 4),))
CASES = (
    sac("vector", VECTOR, 256, [128, 128], 200_000),
    sac("vector", VECTOR, 8_192, [256, 256], 200_000),
    sac("32x32x1", ObsSpace(6, ((32, 32, 1),)), 256, [128, 128], 100_000, convolutions=SMALL_CONVOLUTIONS),
    sac("84x84x4", ATARI, 256, [256, 256], 20_000),
    sac("vector", VECTOR, 256, [128, 128], 1_000_000, prioritised=True),
    dqn("vector", VECTOR, 256, [128, 128], 1_000_000, prioritised=True),
    sac("144x144x3", ObsSpace(30, ((144, 144, 3),)), 256, [256, 256], 8_000),
    sac("512x384x3", ObsSpace(30, ((384, 512, 3),)), 128, [256, 256], 1_500),
    ppo("vector", VECTOR, 128, 16, 256, 10, [64, 64]),
    ppo("vector", VECTOR, 32, 1_024, 8_192, 4, [256, 256]),
    ppo("84x84x4", ATARI, 32, 64, 512, 4, [512]),
    impala("vector", VECTOR, 64, 16, [64, 64]),
    impala("84x84x4", ATARI, 20, 64, [512]),
)
TINY = (
    sac("vector", VECTOR, 32, [16, 16], 2_000),
    sac("vector", VECTOR, 32, [16, 16], 2_000, prioritised=True),
    dqn("vector", VECTOR, 32, [16, 16], 2_000, prioritised=True),
    ppo("vector", VECTOR, 8, 8, 32, 2, [16]),
)


def measure(bench: Bench) -> None:
    torch.set_num_threads(4)
    for case in TINY if bench.is_tiny else CASES:
        if not bench.has_time(case.seconds, case.title):
            continue
        try:
            figures = row(bench, case)
        except RuntimeError as error:  # includes a lack of memory
            bench.fail(case.title, error)
        else:
            show(case.title, figures)
        if bench.is_gpu:
            torch.cuda.empty_cache()


def row(bench: Bench, case: Case) -> dict[str, Any]:
    """Return the figures of one case: milliseconds per update, then updates or env steps a second."""
    device = bench.device
    plan, settings = planned(case)
    figures: dict[str, Any] = {}
    batch = batch_of(case, plan, settings, device)
    modes = [("eager ms", {"cuda_graphs": False}), ("float32 ms", {})]
    if bench.is_gpu:
        modes += [("tf32 ms", {"precision": "tf32"}), ("bfloat16 ms", {"precision": "bfloat16"})]
    for name, changes in modes:
        learner = learner_of(case, changes, device)
        figures[name] = 1e3 * call_seconds(lambda learner=learner: learner.update(batch), device)
    if not isinstance(plan.config, ReplayConfig):
        return {**figures, "env steps/s": len(batch.reward.flatten()) / min(figures.values()) * 1e3}
    for place in ("device", "host"):
        for precision in ("auto", "bfloat16") if case.obs.images and bench.is_gpu else ("auto",):
            learner = learner_of(case, {"precision": precision}, device)
            turn, updates = loop(bench, case, learner, place)
            name = f"loop {place}, updates/s" if precision == "auto" else f"loop {place}, {precision}"
            figures[name] = updates / call_seconds(turn, device)
    return figures


def planned(case: Case, changes: dict[str, Any] | None = None) -> tuple[Plan, Settings]:
    settings = from_mapping({**case.settings, **(changes or {})})
    action = ActionSpace(1, (4,)) if settings.algorithm == "dqn" else ActionSpace(2)
    return make_plan(settings, case.obs, action), settings


def learner_of(case: Case, changes: dict[str, Any], device: str) -> Algorithm:
    plan, settings = planned(case, changes)
    return assemble(plan, settings, 3, device)


def observations(case: Case, count: int, seed: int) -> NDArray[Any]:
    """Return random observations; images repeat, since only their size matters."""
    rng = np.random.default_rng(seed)
    vector = rng.standard_normal((count, case.obs.vector), dtype=np.float32)
    if not case.obs.images:
        return vector
    pictures = rng.integers(0, 256, (min(count, 64), *case.obs.images[0]), dtype=np.uint8)
    return case.obs.pack(vector, [pictures[rng.integers(0, len(pictures), count)]])


def batch_of(case: Case, plan: Plan, settings: Settings, device: str) -> Any:
    """Return one batch of the method, on the device."""
    rng = np.random.default_rng(1)
    if isinstance(plan.config, ReplayConfig):
        lead: tuple[int, ...] = (plan.config.batch_size,)
    else:
        lead = (settings.segment_steps, settings.num_envs)
    count = int(np.prod(lead))

    def tensor(values: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device).reshape(*lead, *values.shape[1:])

    obs, next_obs = (tensor(observations(case, count, seed)) for seed in (2, 3))
    action = tensor(actions(plan, count, rng)).float()
    reward = tensor(rng.standard_normal(count, dtype=np.float32))
    if isinstance(plan.config, ReplayConfig):
        terminated = tensor((rng.random(count) < 0.1).astype(np.float32))
        weight = torch.ones(count, device=device) if plan.config.prioritised else None
        return Batch(obs, action, reward, next_obs, terminated, weight=weight)
    log_prob = tensor(np.full(count, -2.0, dtype=np.float32))
    ended = tensor(rng.choice(np.array([0] * 30 + [1, 2], dtype=np.uint8), count))
    return RolloutBatch(obs, action, log_prob, reward, next_obs, ended)


def actions(plan: Plan, count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Return random actions (count, act_dim)."""
    space = plan.action_space
    if space.choices:
        return rng.integers(0, space.choices[0], (count, 1)).astype(space.dtype)
    return rng.uniform(-1, 1, (count, space.size)).astype(np.float32)


def loop(bench: Bench, case: Case, learner: Algorithm, place: str) -> tuple[Callable[[], object], int]:
    """Return one turn of a learner's loop over a full replay on the device or the host, and its number of
    updates.
    """
    plan, settings = planned(case)
    on_device = place == "device"
    store = make_store(
        plan,
        settings,
        0,
        device=bench.device if on_device else None,
        pinned=bench.is_gpu and not on_device,
        draws_on_device=on_device,
    )
    assert isinstance(store, Replay)
    assert isinstance(plan.config, ReplayConfig)
    fill(store, case, plan, settings)
    size, launched, is_prioritised = plan.config.batch_size, settings.updates_per_launch, plan.config.prioritised
    if on_device:
        method = learner
        assert isinstance(method, ReplayMethod)
        graphs = GraphUpdates(method, store, size, lambda draw: draw(), enabled=bench.is_gpu)
        return lambda: graphs.run(launched), launched
    copier = DeviceCopier(bench.device) if bench.is_gpu else None
    source = BatchSource(store, size, lambda draw: draw(), copier, ahead=True)
    priorities = LatePriorities(lambda rows, errors: store.update_priorities(errors, rows))

    def turn() -> None:
        learner.update(source.take())
        if is_prioritised:
            priorities.add(source.rows, HostCopy({"errors": learner.td_error}), is_exact=False)
        source.prefetch()

    return turn, 1


def fill(store: Replay, case: Case, plan: Plan, settings: Settings) -> None:
    """Put random transitions into the replay until it is full; the last observations belong to each copy."""
    rng = np.random.default_rng(4)
    copies, count = settings.num_envs, plan.segment_transitions
    obs = observations(case, count + copies, 5)
    action = actions(plan, count, rng)
    reward, ended = rng.standard_normal(count, dtype=np.float32), np.zeros(count, dtype=np.uint8)
    for _ in range(0, case.rows, count):
        store.put((obs[:count], action, reward, ended, obs[count:]))
