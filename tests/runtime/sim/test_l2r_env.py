"""The environments over running simulators: the same task as in process, and losses that only cost an episode."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.utils.env_checker import check_env

import runtime.rl.envs.l2r_gym
from runtime.rl.envs.base import HoldsProcesses, StepResult, closing_env
from runtime.rl.envs.l2r import L2RVectorEnv
from runtime.rl.envs.l2r_options import L2ROptions
from runtime.rl.envs.racing import RacingVectorEnv
from runtime.rl.envs.racing_rules import FELT, RacingOptions
from runtime.rl.envs.registry import make_vector_env
from runtime.sim.wire import protocol
from runtime.sim.wire.errors import BudgetError, LostError, SimulatorError, StartError
from runtime.tracks.maps import own_map
from tests.runtime.sim.conftest import ROOT, carrying, eventually

pytestmark = pytest.mark.process

QUICK = {
    "backoff_seconds": 0.05,
    "hung_seconds": 2.0,
    "heartbeat_seconds": 0.5,
    "pose_seconds": 2.0,
    "grace_seconds": 0.5,
}

PATIENT = {"hung_seconds": 30.0, "heartbeat_seconds": 5.0, "pose_seconds": 30.0}
"""Long timeouts, for tests in which a slow simulator must not be mistaken for a hanging one."""


@pytest.fixture
def make(monkeypatch):
    """Make an environment whose processes are counted when it is closed."""
    monkeypatch.setenv("L2R_RUN_ID", mark := f"env-{time.monotonic_ns()}")
    made = []

    def factory(num_envs: int = 1, **options: object) -> L2RVectorEnv:
        simulator = {**QUICK, **options.pop("simulator", {})}
        env = make_vector_env("l2r", num_envs, options={**options, "simulator": simulator})
        made.append(env)
        return env

    yield factory
    for env in made:
        env.close()
    assert carrying(mark) == []


def steer(obs: np.ndarray) -> np.ndarray:
    """Keep to the centre line, slowly."""
    action = np.zeros((len(obs), 2), np.float32)
    action[:, 0] = -0.3 * obs[:, 0] - 0.8 * obs[:, 1]
    action[:, 1] = np.where(obs[:, 3] < 0.5, 0.5, 0.0)
    return action


def plain_place(obs: np.ndarray) -> np.ndarray:
    """A place to steer by, if observations are of another kind."""
    return np.zeros((len(obs), 23), np.float32)


def lose(env: L2RVectorEnv, obs: np.ndarray, row: int = 0) -> StepResult:
    """Kill the simulator of a copy and step until the loss is visible."""
    handle = env.drives[row].supervisor.handle
    handle.signal(9)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        result = env.step(steer(obs))
        if result.is_lost:
            return result
        obs = result.obs if result.obs.dtype == np.float32 else plain_place(result.obs)
    raise AssertionError("the loss was never seen")


def test_the_wire_carries_the_very_task_that_runs_in_process(make):
    wire, here = make(start="line"), RacingVectorEnv(1, RacingOptions(start="line"))
    obs = wire.reset(3)
    assert obs == pytest.approx(here.reset(3), abs=2e-3)
    for _ in range(200):
        action = steer(obs)
        result, expected = wire.step(action), here.step(action)
        assert result.final_obs == pytest.approx(expected.final_obs, abs=2e-3)
        assert result.reward == pytest.approx(expected.reward, abs=2e-3)
        assert bool(result.terminated[0]) == bool(expected.terminated[0])
        obs = result.obs


def test_the_same_seed_and_actions_give_the_same_episode(make):
    def episode() -> np.ndarray:
        env.reset(5)
        return np.vstack([env.step(np.array([[0.1, 0.4]], np.float32)).final_obs for _ in range(15)])

    env = make()
    assert np.array_equal(episode(), episode())


def test_a_crash_costs_the_episode_and_nothing_is_learned_from_it(make):
    env = make(2)
    obs = env.reset(0)
    result = lose(env, obs)

    assert result.obs.shape == (2, env.obs_space.width)
    assert np.isfinite(result.obs).all()
    assert not any(each.env == 0 for each in result.episodes)
    assert not env.step(steer(result.obs)).is_lost, "the next episode runs"
    report = env.report()
    assert report["simulator_restarts"] == 1
    assert report["simulator_state"] == "ready"
    assert "SIGKILL" in report["simulator_error"]


def test_an_error_of_reading_poses_costs_the_episode_and_is_named(make, monkeypatch):
    env, unpack = make(simulator=PATIENT), protocol.unpack_pose
    obs = env.reset(0)
    failures = iter(["steering"])
    monkeypatch.setattr(
        protocol, "unpack_pose", lambda data: {}[name] if (name := next(failures, "")) else unpack(data)
    )
    result = env.step(steer(obs))
    assert result.is_lost
    assert not env.step(steer(result.obs)).is_lost, "the next episode runs"
    report = env.report()
    assert report["simulator_restarts"] == 1
    sentence = "the simulator's poses can no longer be read: KeyError: 'steering', test_l2r_env.py line "
    assert report["simulator_error"].startswith(sentence)


def test_a_receiver_that_fails_ends_the_worker_with_its_error_and_not_with_that_of_a_simulator(make, monkeypatch):
    class FailingSelector(selectors.DefaultSelector):
        has_failed = False

        def select(self, timeout: float | None = None):
            ready = super().select(timeout)
            if self.has_failed:
                raise OSError(5, "Input/output error")
            return ready

    monkeypatch.setattr(selectors, "DefaultSelector", FailingSelector)
    env = make(simulator=PATIENT)
    obs = env.reset(0)
    FailingSelector.has_failed = True
    sentence = r"poses and images can no longer be received \(OSError: \[Errno 5\]"
    with pytest.raises(SimulatorError, match=sentence):
        env.step(steer(obs))
    assert env.report()["simulator_restarts"] == 1


CAMERAS = {
    "CameraFrontRGB": {"Width": 64, "Height": 48, "crop": [20, 0, 0, 0], "resize": [14, 32], "grey": True},
    "CameraLeftSegm": {"Width": 32, "Height": 24},
}


def test_cameras_show_the_road_beside_what_a_car_feels(make):
    env, plain = make(start="line", cameras=CAMERAS, simulator=PATIENT), make(start="line", simulator=PATIENT)
    obs, place = env.reset(3), plain.reset(3)
    assert env.obs_space == L2ROptions(cameras=CAMERAS).obs_space
    assert env.obs_space.images == ((14, 32, 1), (24, 32, 3))
    first = env.obs_space.split(obs)[1]
    for _ in range(30):
        action = steer(place)
        result, expected = env.step(action), plain.step(action)
        place = expected.obs
        felt, pictures = env.obs_space.split(result.final_obs)
        assert felt == pytest.approx(expected.final_obs[:, FELT], abs=2e-3)
        assert result.reward == pytest.approx(expected.reward, abs=2e-3)
        assert all(picture.std() > 10 for picture in pictures)
    assert np.abs(pictures[0].astype(int) - first[0]).mean() > 1, "the road moves"
    assert plain.obs_space.split(place)[1] == []


def test_behind_an_end_the_pictures_are_those_of_the_next_start(make):
    env = make(start="line", max_seconds=2.0, cameras=CAMERAS, simulator=PATIENT)
    start = env.obs_space.split(env.reset(3))[1][0]
    result = env.step(np.array([[0.0, 1.0]], np.float32))
    while not result.truncated[0]:
        result = env.step(np.array([[0.0, 1.0]], np.float32))
    behind, ahead = (env.obs_space.split(rows)[1][0] for rows in (result.obs, result.final_obs))
    assert (behind == start).all()
    assert (ahead != start).any()


def test_with_cameras_a_crash_costs_the_episode_as_well(make):
    env = make(cameras=CAMERAS, simulator=PATIENT)
    result = lose(env, plain_place(env.reset(0)))
    assert result.obs.shape == (1, env.obs_space.width)
    assert all(picture.any() for picture in env.obs_space.split(result.obs)[1])
    assert not env.step(np.zeros((1, 2), np.float32)).is_lost
    assert env.report()["simulator_restarts"] == 1


@pytest.mark.parametrize("fault", ["hang@1", "freeze@1", "garbage@1"])
def test_a_simulator_that_hangs_is_replaced_and_episodes_go_on(make, fault):
    env = make(simulator={"arguments": ["--fault", fault]})
    obs, lost, deadline = env.reset(0), 0, time.monotonic() + 90
    while not lost and time.monotonic() < deadline:
        result = env.step(steer(obs))
        obs, lost = result.obs, lost + result.is_lost
    assert lost
    # Its successor has the same fault, a second after its start.
    assert env.report()["simulator_restarts"] >= 1
    assert "hangs" in env.report()["simulator_error"]
    eventually(lambda: not env.step(steer(obs)).is_lost, "a step that is not lost")


def test_a_simulator_that_fails_too_often_ends_the_worker_clearly(make):
    env = make(simulator={"arguments": ["--fault", "refuse"], "start_seconds": 1.5, "restarts": 1})
    with pytest.raises(BudgetError, match="more than 1 failures"):
        env.reset(0)
    assert env.report()["simulator_state"] == "given up"


def test_a_worker_that_is_to_stop_does_not_wait_for_a_start(make):
    env = make(simulator={"arguments": ["--fault", "refuse"]})
    assert isinstance(env, HoldsProcesses)
    with closing_env(env, lambda: True):
        env.reset(0)
    with pytest.raises(StartError), closing_env(env, lambda: False):
        raise StartError("of another reason")


def test_in_real_time_a_step_takes_a_tenth_of_a_second(make):
    env = make(simulator={"fast": False})
    obs = env.reset(0)
    env.step(steer(obs))
    began = time.monotonic()
    for _ in range(10):
        env.step(np.array([[0.0, 1.0]], np.float32))

    assert time.monotonic() - began == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize(
    "options",
    [{"track": "monza"}, {"start": "nowhere"}, {"simulator": {"kind": "x"}}, {"simulator": 3}, {"laps": "x"},
     {"max_steering": 2.0}, {"observation": "felt"}, {"observation": "x"}, {"cameras": ["CameraTop"]},
     {"colour": "red"}, {"min_acceleration": -17}],
    ids=str,
)  # fmt: skip
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(ValueError, match=r"\w"):
        L2ROptions.from_mapping(options)


# --- Gymnasium ------------------------------------------------------------------------------------------


@pytest.fixture
def car(tmp_path, request):
    """One car with a small camera, on a track from a file; the parameter sets its simulator's response time."""
    (tmp_path / "field.json").write_text(json.dumps(own_map("meadow").to_json()))
    env = gymnasium.make(
        runtime.rl.envs.l2r_gym.L2R_ID,
        track=str(tmp_path / "field.json"),
        cameras={"CameraFrontRGB": {"Width": 96, "Height": 64}},
        simulator={**QUICK, **getattr(request, "param", PATIENT)},
        start="line",
    )
    yield env.unwrapped
    env.close()


def test_gymnasiums_own_checker_finds_nothing_wrong(car):
    check_env(car, skip_render_check=True)


def test_an_episode_has_poses_images_progress_and_measures(car):
    obs, _ = car.reset(seed=1)
    assert obs["pose"].shape == (30,)
    assert np.hypot(*(obs["pose"][[16, 15]] - own_map("meadow").track.centre[0])) < 1.0, "metres east and north"
    assert obs["CameraFrontRGB"].shape == (64, 96, 3)
    ended, total, frames = False, 0.0, []
    while not ended:
        obs, reward, terminated, truncated, info = car.step(np.array([0.0, 1.0], np.float32))
        ended, total = terminated or truncated, total + reward
        frames.append(obs["CameraFrontRGB"])
        assert obs["pose"][0] == 0.0

    assert info["oob"]
    assert terminated
    assert info["progress_metres"] > 20
    assert np.abs(frames[0].astype(int) - frames[-1]).mean() > 1
    expected = "total_time average_speed_kph num_infractions average_displacement_error movement_smoothness"
    expected += " trajectory_efficiency trajectory_admissibility laps_completed"
    assert set(expected.split()) <= info["metrics"].keys()
    assert car.report()["pose_age_seconds"] < 5


@pytest.mark.parametrize("car", [QUICK], indirect=True, ids=["quick"])
def test_a_reset_after_a_hang_keeps_the_counts(car):
    car.reset(seed=1)
    handle = car.drive.supervisor.handle
    psutil.Process(eventually(lambda: handle.ended() or handle.pid, "a pid")).suspend()
    info, truncated = {}, False
    while not truncated:
        *_, truncated, info = car.step(np.array([0.0, 0.1], np.float32))
    assert "simulator_lost" in info
    obs, _ = car.reset(seed=2)

    assert obs["pose"].shape == (30,)
    assert car.report()["episodes"] == 2
    assert car.report()["simulator_restarts"] == 1
    assert "hangs" in car.report()["simulator_error"]


def test_stepping_before_a_reset_is_refused(car):
    with pytest.raises(gymnasium.error.ResetNeeded):
        car.step(np.zeros(2, np.float32))


def test_nothing_is_driven_without_a_simulator(make):
    env = make()
    with pytest.raises(LostError):
        env.drives[0].act(0.0, 0.0)


@pytest.mark.parametrize(
    ("simulator", "code", "words"),
    [
        (
            {"arguments": ["--fault", "refuse"], "start_seconds": 2, "restarts": 0},
            1,
            "is given up after more than 0",
        ),
        ({"kind": "container", "image": "x"}, 2, "needs socket"),
    ],
    ids=["given up", "wrong"],
)
def test_a_worker_without_a_simulator_ends_with_a_sentence(tmp_path, simulator, code, words):
    options = {"environment": "l2r", "num_envs": 1, "environment_options": {"simulator": simulator}}
    environ = {**os.environ, "L2R_ENDPOINT": f"ipc://{tmp_path}", "L2R_CONFIG": json.dumps(options)}
    command = [sys.executable, "-m", "runtime", "worker"]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == code
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
