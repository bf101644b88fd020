"""The racing environment: episodes, rewards, ends, and observations."""

import subprocess
import sys

import numpy as np
import pytest

from runtime.rl.envs.base import EpisodeSummary, StepResult
from runtime.rl.envs.racing import RacingVectorEnv
from runtime.rl.envs.racing_rules import RacingOptions
from runtime.rl.envs.registry import make_vector_env
from runtime.tracks.track import COURSES


def cars(count: int, **options: object) -> RacingVectorEnv:
    env = make_vector_env("racing", count, options=options)
    assert isinstance(env, RacingVectorEnv)
    return env


def constant(env: RacingVectorEnv, steering: float, pedal: float) -> np.ndarray:
    return np.tile(np.array([steering, pedal], dtype=np.float32), (env.num_envs, 1))


def centred(obs: np.ndarray, speed: float) -> np.ndarray:
    """A driver that follows the centre line at ``speed`` m/s, using only the observation."""
    steering = 2.0 * obs[:, 12] * 0.3 - 1.5 * obs[:, 1] - 0.5 * obs[:, 0]
    pedal = 0.5 * (speed - 20.0 * obs[:, 3])
    return np.clip(np.column_stack([steering, pedal]), -1, 1).astype(np.float32)


def until_an_episode_ends(env: RacingVectorEnv, action: np.ndarray) -> tuple[StepResult, EpisodeSummary]:
    for _ in range(2000):
        result = env.step(action)
        if result.episodes:
            return result, result.episodes[0]
    raise AssertionError("no episode ended in 2,000 steps")


def test_shapes_types_and_bounds():
    env = cars(7)
    obs = env.reset(3)
    rng = np.random.default_rng(0)
    for _ in range(300):
        assert obs.shape == (7, env.obs_dim)
        assert obs.dtype == np.float32
        assert np.abs(obs).max() <= 10.0
        result = env.step(rng.uniform(-1, 1, (7, env.act_dim)).astype(np.float32))
        obs = result.obs
        assert result.reward.shape == (7,)
        assert result.reward.dtype == np.float32
        assert result.terminated.dtype == result.truncated.dtype == np.bool_
        assert not (result.terminated & result.truncated).any()
        ended = np.flatnonzero(result.terminated | result.truncated)
        assert [episode.env for episode in result.episodes] == ended.tolist()
    assert env.step_seconds == 0.1


def test_same_seed_and_actions_give_the_same_episodes():
    first, second = cars(16), cars(16)
    rng = np.random.default_rng(1)
    assert (first.reset(5) == second.reset(5)).all()
    for _ in range(200):
        action = rng.uniform(-1, 1, (16, 2)).astype(np.float32)
        a, b = first.step(action), second.step(action)
        assert (a.obs == b.obs).all()
        assert (a.reward == b.reward).all()
        assert a.episodes == b.episodes
    assert not (first.reset(6) == second.reset(7)).all()


def test_a_copy_drives_the_same_alone_as_among_others():
    many, one = cars(5, start="line"), cars(1, start="line")
    many.reset(0)
    one.reset(0)
    action = np.random.default_rng(2).uniform(-1, 1, (100, 1, 2)).astype(np.float32)
    action[:, :, 1] = np.abs(action[:, :, 1])
    for row in action:
        together, alone = many.step(np.repeat(row, 5, axis=0)), one.step(row)
        assert together.obs[3] == pytest.approx(alone.obs[0], abs=1e-5)
        assert together.reward[3] == pytest.approx(alone.reward[0], abs=1e-5)


@pytest.mark.parametrize("track", COURSES)
def test_a_careful_driver_laps_every_course(track):
    env = cars(1, track=track, start="line", laps=1, max_seconds=300.0)
    obs = env.reset(0)
    earned = 0.0
    for _ in range(3000):
        result = env.step(centred(obs, 11.0))
        earned += float(result.reward[0])
        obs = result.obs
        if result.episodes:
            break
    (episode,) = result.episodes
    assert episode.laps == 1
    assert not episode.left_track
    assert result.truncated[0]
    assert episode.progress_metres == pytest.approx(COURSES[track].length, abs=2.0)
    assert episode.return_ == pytest.approx(earned, abs=1e-3)
    assert earned == pytest.approx(0.2 * episode.progress_metres, abs=1e-3)


def test_leaving_the_track_terminates_with_a_fine_that_grows_with_speed():
    fines = []
    for pedal in (0.2, 1.0):
        env = cars(1, start="line")
        env.reset(0)
        result, episode = until_an_episode_ends(env, constant(env, 0.3, pedal))
        assert episode.left_track
        assert result.terminated[0]
        assert not result.truncated[0]
        speed = float(np.hypot(20.0 * result.final_obs[0, 3], 2.0 * result.final_obs[0, 4]))
        gained = float(result.reward[0]) + 0.2 * max(12.5, 2.5 * speed)
        assert 0.0 <= gained < 1.0
        fines.append(-float(result.reward[0]))
    assert fines[1] > fines[0] > 0


def test_final_obs_is_from_before_the_reset():
    env = cars(1, start="line")
    start = env.reset(0)
    result, _ = until_an_episode_ends(env, constant(env, 0.3, 1.0))
    assert abs(result.final_obs[0, 0]) > 1.0
    assert (result.obs == start).all()


def test_a_car_that_stands_still_is_cut_and_not_fined():
    env = cars(2, start="line")
    env.reset(0)
    result, episode = until_an_episode_ends(env, constant(env, 0.0, -1.0))
    assert result.truncated.all()
    assert not result.terminated.any()
    assert episode == EpisodeSummary(0, 50, 0.0, 0.0, 0, left_track=False)


def test_driving_the_wrong_way_terminates():
    env = cars(1, start="line")
    env.reset(0)
    env.state.yaw += np.pi
    result, episode = until_an_episode_ends(env, constant(env, 0.0, 1.0))
    assert result.terminated[0]
    assert not episode.left_track
    assert episode.progress_metres < -10.0
    assert episode.laps == 0


def test_time_cuts_an_episode():
    env = cars(1, start="line", max_seconds=3.0)
    env.reset(0)
    result, episode = until_an_episode_ends(env, constant(env, 0.0, 0.3))
    assert result.truncated[0]
    assert episode.steps == 30


def test_random_starts_spread_over_the_course_and_the_line_does_not():
    spread, line = cars(64, start="random"), cars(64, start="line")
    spread.reset(0)
    line.reset(0)
    assert np.ptp(spread.state.x) > 100.0
    assert np.ptp(line.state.x) == 0.0
    assert (line.state.speed == 0.0).all()
    assert 0 < spread.state.speed.max() <= 25.0


def test_mirrored_driving_on_a_straight_is_seen_mirrored():
    env = cars(2, start="line")
    env.reset(0)
    result = env.step(np.array([[0.5, 1.0], [-0.5, 1.0]], dtype=np.float32))
    left, right = result.obs
    signed = [0, 1, 4, 5, 6, 9]
    assert left[signed] == pytest.approx(-right[signed], abs=1e-4)
    assert left[[2, 3, 10]] == pytest.approx(right[[2, 3, 10]], abs=1e-4)
    assert left[7] == pytest.approx(right[8], abs=1e-4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"trak": "ridge"}, "no option 'trak'; known are observation, track, start, max_seconds, laps"),
        ({"track": "mars"}, "track is 'mars'; known are meadow, harbour, ridge"),
        ({"start": "pit"}, "start is 'pit'; it may be random or line"),
        ({"max_seconds": 0}, "max_seconds is 0"),
        ({"max_seconds": float("nan")}, "max_seconds is nan"),
        ({"laps": -1}, "laps is -1"),
        ({"laps": "two"}, "laps is 'two'"),
    ],
)
def test_wrong_options_are_named(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        RacingOptions.from_mapping(options)


def test_unknown_environment_and_no_copies_are_refused():
    with pytest.raises(ValueError, match=r"unknown environment 'rally'.* there are l2r, racing"):
        make_vector_env("rally", 1, options={})
    with pytest.raises(ValueError, match="at least 1 copy"):
        make_vector_env("racing", 0, options={})


@pytest.mark.process
def test_a_worker_needs_neither_torch_nor_gymnasium():
    code = (
        "import sys; import runtime.rl.algos.actor, runtime.rl.buffers.replay; "
        "from runtime.rl.envs.registry import make_vector_env; "
        "env = make_vector_env('racing', 2, options={}); env.reset(0); "
        "runtime.rl.buffers.replay.transition_layout(env.obs_space, env.action_space); "
        "print([m for m in ('torch', 'gymnasium') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
