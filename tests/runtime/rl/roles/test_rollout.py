"""A worker's collection over an environment that breaks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.base.errors import NotFiniteError
from runtime.rl.buffers.replay import Replay, transition_layout
from runtime.rl.buffers.rollout_buffer import Rollouts, rollout_layout
from runtime.rl.envs.base import StepResult
from runtime.rl.roles.rollout import Rollout
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.fakes.segments import held_by

LAYOUT = transition_layout(ObsSpace(1), ActionSpace(1))


class Breaking:
    """Two copies of an environment that counts its steps, and returns `value` as the reward of the third."""

    num_envs, step_seconds = 2, 0.1
    obs_space, action_space = ObsSpace(1), ActionSpace(1)

    def __init__(self, value: float) -> None:
        self.steps = 0
        self.value = value

    def reset(self, seed: int) -> np.ndarray:
        return np.zeros((2, 1), dtype=np.float32)

    def step(self, action: np.ndarray) -> StepResult:
        self.steps += 1
        obs = np.full((2, 1), self.steps, dtype=np.float32)
        reward = np.full(2, self.value if self.steps == 3 else 1.0, dtype=np.float32)
        no = np.zeros(2, dtype=bool)
        return StepResult(obs, reward, no, no, obs, ())


def act(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    return np.zeros((len(obs), 1), dtype=np.float32), None


def test_steps_become_a_segment_in_order() -> None:
    rollout = Rollout(Breaking(7.0), LAYOUT, 4, seed=0)
    *before, finished = [rollout.step(act, version) for version in (3, 3, 4, 5)]
    assert before == [None, None, None]
    segment = finished.segment
    assert (segment.transitions, segment.policy_version_min, segment.policy_version_max) == (8, 3, 5)
    obs, _, reward, _, tail = LAYOUT.columns(finished.memory.view, 8, segment.tail)
    assert obs[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert tail[:, 0].tolist() == [4, 4], "each observation once"
    assert finished.memory.nbytes == LAYOUT.segment_bytes(8, 2)
    assert reward.tolist() == [1, 1, 1, 1, 7, 7, 1, 1]


def test_rewards_are_clipped_for_the_learner_and_not_in_the_recording() -> None:
    recorded: list[np.ndarray] = []

    class Recorder:
        def add(self, obs: np.ndarray, action: np.ndarray, result: StepResult) -> None:
            recorded.append(result.reward)

    rollout = Rollout(Breaking(-7.0), LAYOUT, 4, seed=0, recorder=Recorder(), clip_rewards=0.5)
    finished = [rollout.step(act, 1) for _ in range(4)][-1]
    _, _, reward, _, _ = LAYOUT.columns(finished.memory.view, 8, finished.segment.tail)
    assert reward.tolist() == [0.5, 0.5, 0.5, 0.5, -0.5, -0.5, 0.5, 0.5]
    assert [row.tolist() for row in recorded] == [[1, 1], [1, 1], [-7, -7], [1, 1]]


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_an_environment_that_gives_no_numbers_ends_the_worker_with_a_sentence(value: float) -> None:
    rollout = Rollout(Breaking(value), LAYOUT, 4, seed=0)
    assert [rollout.step(act, 1) for _ in range(3)] == [None, None, None]
    with pytest.raises(NotFiniteError, match="environment gave observations or rewards that are not finite"):
        rollout.step(act, 1)


class Scripted:
    """One copy whose observation is the number of its step, and whose episodes end as listed in `ends`."""

    num_envs, step_seconds = 1, 0.1
    obs_space, action_space = ObsSpace(1), ActionSpace(1)

    def __init__(self, ends: dict[int, str]) -> None:
        self.steps = 0
        self.ends = ends

    def reset(self, seed: int) -> np.ndarray:
        return np.zeros((1, 1), dtype=np.float32)

    def step(self, action: np.ndarray) -> StepResult:
        self.steps += 1
        after = np.full((1, 1), self.steps, dtype=np.float32)
        terminated = np.array([self.ends.get(self.steps) == "terminated"])
        truncated = np.array([self.ends.get(self.steps) == "truncated"])
        next_obs = after + 100 if terminated[0] or truncated[0] else after
        reward = np.array([10.0**self.steps], dtype=np.float32)
        return StepResult(next_obs, reward, terminated, truncated, after, ())


def test_rewards_of_several_steps_are_summed_up_to_the_end_of_the_episode_or_the_segment() -> None:
    layout = transition_layout(ObsSpace(1), ActionSpace(1), n_step=3)
    env = Scripted({4: "terminated", 6: "truncated"})
    rollout = Rollout(env, layout, 8, seed=0, n_step=3, gamma=0.5)
    (finished,) = [segment for _ in range(8) if (segment := rollout.step(act, 1))]
    columns = layout.columns(finished.memory.view, 8, finished.segment.tail)
    replay = Replay(8, layout, 0)
    replay.put(columns)
    told = held_by(replay)
    assert [each.steps for each in told] == [3, 3, 2, 1, 2, 1, 2, 1]
    assert [each.next_obs for each in told] == [3, None, None, None, 6, 6, 8, 8]
    assert [each.terminated for each in told] == [False, True, True, True, False, False, False, False]
    expected = [10 + 50 + 250, 100 + 500 + 2500, 1000 + 5000, 1e4, 1e5 + 5e5, 1e6, 1e7 + 5e7, 1e8]
    assert [each.reward for each in told] == pytest.approx(expected)


def test_rollouts_keep_steps_in_order_and_ends_apart_and_wait_for_enough() -> None:
    layout = rollout_layout(ObsSpace(1), ActionSpace(1))
    rollout = Rollout(Scripted({2: "truncated", 3: "terminated"}), layout, 4, seed=0)
    store = Rollouts(layout, num_envs=1, segment_transitions=4, batch_steps=8)

    def certain(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return obs, -obs[:, 0]

    for _ in range(4):
        finished = rollout.step(certain, 1)
    store.put(layout.columns(finished.memory.view, 4, finished.segment.tail))
    assert store.take() is None
    for _ in range(4):
        finished = rollout.step(certain, 1)
    store.put(layout.columns(finished.memory.view, 4, finished.segment.tail))
    resumed = Rollouts(layout, num_envs=1, segment_transitions=4, batch_steps=8)
    resumed.load_state(store.state())
    for rollouts in (store, resumed):
        assert len(rollouts) == 8
        batch = rollouts.take()
        assert len(rollouts) == 0
        assert batch.obs[:, :, 0].T.tolist() == [[0, 1, 102, 103], [4, 5, 6, 7]]
        # The third step terminated: its successor is not needed.
        assert batch.next_obs[[0, 1, 3], :, 0].T.tolist() == [[1, 2, 4], [5, 6, 8]]
        assert batch.ended.T.tolist() == [[0, 2, 1, 0], [0, 0, 0, 0]]
        assert (batch.log_prob == -batch.action[:, :, 0]).all()


def test_a_batch_that_segments_do_not_fill_is_refused() -> None:
    with pytest.raises(
        ValueError, match="batch_steps is 10; it must be a multiple of num_envs x segment_steps = 4"
    ):
        Rollouts(rollout_layout(ObsSpace(1), ActionSpace(1)), 1, 4, 10)


@pytest.mark.parametrize("steps", [0, 3, 8])
def test_a_rollout_of_another_length_than_a_segment_is_refused(steps):
    layout = rollout_layout(ObsSpace(1), ActionSpace(1))
    store = Rollouts(layout, 1, 4, 8)
    with pytest.raises(ValueError, match="segments of 4"):
        store.put(
            tuple(np.zeros((steps, *field.shape_tail), field.dtype) for field in (*layout.fields, layout.tail))
        )
    assert len(store) == 0


class Losing(Scripted):
    """Two copies; the simulator is lost at step 3, after the first copy was truncated at step 2."""

    num_envs = 2

    def reset(self, seed: int) -> np.ndarray:
        return np.zeros((2, 1), dtype=np.float32)

    def step(self, action: np.ndarray) -> StepResult:
        self.steps += 1
        after = np.array([[self.steps], [self.steps + 0.5]], dtype=np.float32)
        truncated = np.array([self.steps == 2, False])
        both = np.array([self.steps == 4, False])
        obs = np.where((truncated | both)[:, None], after + 100, after)
        reward = np.ones(2, dtype=np.float32)
        if self.steps == 3:
            no = np.zeros(2, dtype=bool)
            return StepResult(after + 200, reward, no, no, after, (), is_lost=True)
        return StepResult(obs, reward, both, truncated | both, after, ())


def test_steps_before_a_lost_simulator_are_truncated_and_an_end_of_both_kinds_is_terminated() -> None:
    layout = rollout_layout(ObsSpace(1), ActionSpace(1))
    rollout = Rollout(Losing({}), layout, 3, seed=0)
    store = Rollouts(layout, num_envs=2, segment_transitions=6, batch_steps=6)
    finished = None
    while finished is None:
        finished = rollout.step(lambda obs: (obs, -obs[:, 0]), 1)
    store.put(layout.columns(finished.memory.view, 6, finished.segment.tail))
    batch = store.take()
    assert batch.ended.tolist() == [[0, 0], [2, 2], [1, 0]]
    assert batch.obs[:, :, 0].tolist() == [[0, 0], [1, 1.5], [203, 203.5]]
    assert batch.next_obs[0, :, 0].tolist() == [1, 1.5]
    assert batch.next_obs[1, :, 0].tolist() == [2, 2.5], "from before the reset, and before the loss"
    assert batch.next_obs[2, 1, 0].item() == 4.5


@given(
    st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=12, max_size=12),
    st.sampled_from([1, 2, 3]),
    st.integers(1, 3),
)
def test_batches_of_any_ends_have_what_followed_each_step(ends: list[int], copies: int, count: int) -> None:
    """Of several segments side by side; the tensors of earlier checkpoints give the same."""
    layout = rollout_layout(ObsSpace(1), ActionSpace(1))
    store, old = (Rollouts(layout, copies, 12, 12 * count) for _ in range(2))
    states, expected = [], []
    for number in range(count):
        serial = 100 * number + np.arange(12, dtype=np.float32)
        ended = np.array(ends[number:] + ends[:number], dtype=np.uint8)
        following = np.concatenate([serial[copies:], serial[-copies:] + 0.5])
        following[ended == 2] = serial[ended == 2] + 0.25
        tail = np.concatenate([serial[-copies:] + 0.5, serial[ended == 2] + 0.25]).astype(np.float32)
        columns = (serial[:, None], serial[:, None], serial, serial, ended)
        store.put((*columns, tail[:, None]))
        states.append((*columns, following[:, None].astype(np.float32)))
        expected.append(np.where(ended == 1, np.nan, following).reshape(-1, copies))
    names = (*layout.names, "next_obs")
    old.load_state({n: np.concatenate([s[i] for s in states]) for i, n in enumerate(names)})
    needed = np.concatenate(expected, axis=1)
    for rollouts in (store, old):
        batch = rollouts.take()
        following = batch.next_obs[:, :, 0].numpy()
        assert (following == needed)[~np.isnan(needed)].all()
        assert (batch.obs[:, :, 0] == batch.reward).all()


@pytest.mark.parametrize("copies", [2, 8])
def test_a_segment_of_another_number_of_copies_is_refused(copies: int) -> None:
    layout = rollout_layout(ObsSpace(1), ActionSpace(1))
    store = Rollouts(layout, 4, 12, 12)
    with pytest.raises(ValueError, match="come in segments"):
        store.put(
            tuple(np.zeros((3 * copies, *field.shape_tail), field.dtype) for field in (*layout.fields, layout.tail))
        )
