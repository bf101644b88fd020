"""Games of several agents: rows of agents that leave early, full episodes, and sentences for impossible
settings.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from runtime.base.errors import SetupError
from runtime.rl.buffers.rollout_buffer import Rollouts, rollout_layout
from runtime.rl.datasets.episode_files import EpisodeFile
from runtime.rl.datasets.recorder import EpisodeRecorder
from runtime.rl.envs.base import VectorEnv
from runtime.rl.envs.registry import make_vector_env
from runtime.rl.roles.rollout import Rollout
from tests.packages import needed

GAME = '''
from gymnasium.spaces import Box, Discrete


class Walk:
    """Three walkers; each sees its number and its steps, the second falls at step 2 and the game ends at step 4."""

    metadata = {"render_fps": 10}
    possible_agents = ["first", "second", "third"]

    def __init__(self, reward=1.0, odd=False):
        self.reward, self.odd = reward, odd

    def observation_space(self, agent):
        return Box(-1, 9, (3 if self.odd and agent == "third" else 2,))

    def action_space(self, agent):
        return Discrete(2)

    def _seen(self, agents):
        return {agent: [self.possible_agents.index(agent) + 1, self.steps] for agent in agents}

    def reset(self, seed=None, options=None):
        self.agents, self.steps = list(self.possible_agents), 0
        return self._seen(self.agents), {}

    def step(self, actions):
        assert set(actions) == set(self.agents), "those who play, and nobody else"
        self.steps += 1
        acted = self.agents
        ended = {agent: self.steps == 2 and agent == "second" for agent in acted}
        cut = {agent: self.steps == 4 for agent in acted}
        self.agents = [agent for agent in acted if not (ended[agent] or cut[agent])]
        rewards = {agent: self.reward * (1 + actions[agent]) for agent in acted}
        return self._seen(acted), rewards, ended, cut, {agent: {} for agent in acted}


parallel_env = Walk
'''


@pytest.fixture
def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "walking_game.py").write_text(GAME)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "pettingzoo:walking_game"


def zeros(env: VectorEnv) -> np.ndarray:
    return np.zeros((env.num_envs, 1), np.int32)


def test_rows_of_an_agent_that_left_are_padding_until_its_game_begins_anew(walk: str) -> None:
    env = make_vector_env(walk, 6, options={"reward": 2.0})
    assert (env.obs_space.vector, env.action_space.choices, env.step_seconds) == (2, (2,), 0.1)
    assert env.reset(0)[:, 0].tolist() == [1, 2, 3, 1, 2, 3]
    results = [env.step(np.array([[0], [1]] * 3, np.int32)) for _ in range(5)]
    second = [result.obs[1].tolist() for result in results]
    assert second == [[2, 1], [0, 0], [0, 0], [2, 0], [2, 1]]
    assert [result.final_obs[1].tolist() for result in results] == [[2, 1], [2, 2], [0, 0], [0, 0], [2, 1]]
    assert [result.reward[1] for result in results] == [4, 4, 0, 0, 4]
    assert [bool(result.terminated[1]) for result in results] == [False, True, True, True, False]
    assert [result.absent is not None and result.absent.tolist() for result in results] == [
        *(False, False),
        *[[False, True, False, False, True, False]] * 2,
        False,
    ]
    assert [result.truncated.tolist() for result in results][3] == [True, False, True] * 2
    assert results[3].final_obs[0].tolist() == [1, 4]
    assert results[3].obs[0].tolist() == [1, 0]
    episodes = [(episode.env, episode.steps, episode.return_) for result in results for episode in result.episodes]
    assert episodes == [(1, 2, 8), (4, 2, 4), (0, 4, 8), (2, 4, 8), (3, 4, 16), (5, 4, 16)]


def test_padding_reaches_no_value_no_return_and_no_record(walk: str, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    env = make_vector_env(walk, 3, options={})
    layout = rollout_layout(env.obs_space, env.action_space)
    store = Rollouts(layout, 3, 24, 24)
    with EpisodeRecorder(str(tmp_path / "episodes"), env, walk) as recorder:
        rollout = Rollout(env, layout, 8, 0, recorder=recorder)
        finished = None
        while finished is None:
            finished = rollout.step(lambda _: (zeros(env), np.zeros(3, np.float32)), 1)
    assert (finished.segment.episodes, finished.segment.return_sum) == (6, 20)
    store.put(layout.columns(finished.memory.view, 24, finished.segment.tail))
    batch = store.take()
    assert batch is not None
    assert batch.ended[:, 1].tolist() == [0, 1, 1, 1, 0, 1, 1, 1]
    assert batch.ended[:, 0].tolist() == [0, 0, 0, 2, 0, 0, 0, 2]
    assert batch.absent is not None
    assert batch.absent.T.tolist() == [[False] * 8, [False, False, True, True] * 2, [False] * 8]
    assert batch.next_obs[3, 0].tolist() == [1, 4]
    recorded = [episode for path in (tmp_path / "episodes").iterdir() for episode in EpisodeFile(path).read()]
    assert sorted(len(episode.reward) for episode in recorded) == [2, 2, 4, 4, 4, 4]
    assert all(episode.obs[0, 0] > 0 for episode in recorded)


def test_agents_that_differ_and_copies_that_make_no_whole_game_are_sentences(walk: str) -> None:
    with pytest.raises(ValueError, match=r"observations of first are .* and those of third .* must be alike"):
        make_vector_env(walk, 3, options={"odd": True})
    with pytest.raises(ValueError, match="has 3 agents, each a copy, and 4 copies make no whole games"):
        make_vector_env(walk, 4, options={})
    with pytest.raises(ValueError, match="cannot be made with the options"):
        make_vector_env(walk, 3, options={"size": 1})
    with pytest.raises(ValueError, match="cannot take the option frame_stack"):
        make_vector_env(walk, 3, options={"frame_stack": 2})
    spaces_alone = make_vector_env(walk, 1, options={})
    assert spaces_alone.obs_space.vector == 2
    with pytest.raises(SetupError, match="take a multiple of 3 for num_envs and eval_episodes"):
        spaces_alone.reset(0)


def test_what_is_no_module_of_games_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ValueError, match=r"no_such_game cannot be imported .* pip install pettingzoo"):
        make_vector_env("pettingzoo:no_such_game", 2, options={})
    with pytest.raises(ValueError, match="the module has no parallel_env"):
        make_vector_env("pettingzoo:json", 2, options={})


@pytest.mark.packages
def test_particles_of_pettingzoo_share_a_policy() -> None:
    needed("mpe2")
    env = make_vector_env("pettingzoo:mpe2.simple_spread_v3", 6, options={"max_cycles": 7})
    first = env.reset(3)
    assert np.array_equal(env.reset(3), first)
    assert first.shape == (6, 18)
    ended = [episode for _ in range(21) for episode in env.step(zeros(env)).episodes]
    assert sorted((episode.env, episode.steps) for episode in ended) == sorted(
        (agent, 7) for agent in range(6) for _ in range(3)
    )
    with pytest.raises(ValueError, match="must be alike"):
        make_vector_env("pettingzoo:mpe2.simple_tag_v3", 4, options={})


@pytest.mark.packages
def test_knights_that_fall_leave_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    needed("pettingzoo")
    needed("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with pytest.raises(ValueError, match="cannot be made with the options"):
        make_vector_env("pettingzoo:butterfly/no_such_game-v1", 4, options={})
    names = "pettingzoo:butterfly.knights_archers_zombies_v11", "pettingzoo:butterfly/knights_archers_zombies_v11"
    # By its module and by its id in the registry.
    env, same = (make_vector_env(name, 4, options={"max_zombies": 20}) for name in names)
    assert same.obs_space == env.obs_space
    env.reset(1)
    rng, absent, lengths = np.random.default_rng(0), 0, 0
    for _ in range(600):
        result = env.step(env.action_space.at_random(4, rng))
        if result.absent is not None:
            absent += int(result.absent.sum())
            assert not result.reward[result.absent].any()
            assert not result.final_obs[result.absent].any()
            assert result.terminated[result.absent].all()
            assert not {episode.env for episode in result.episodes} & set(np.flatnonzero(result.absent))
        lengths += sum(episode.steps for episode in result.episodes)
    assert absent > 0
    assert 0 < lengths <= 4 * 600 - absent
