"""Names and shapes of environments known to launchers, compared with the runtime's."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import runtime.rl.envs.racing_gym  # noqa: F401  (registers its id)
from runtime.base import environments
from runtime.base.environments import data_shape, is_possible, suggestion
from runtime.base.training import Settings
from runtime.rl.envs.gym import GymVectorEnv
from runtime.rl.envs.l2r import L2RVectorEnv
from runtime.rl.envs.l2r_gym import CAMERA
from runtime.rl.envs.l2r_options import L2ROptions
from runtime.rl.envs.registry import DEVICE_ENVS, VECTOR_ENVS, make_vector_env
from runtime.sim.wire.protocol import POSE_VALUES


def test_the_names_are_those_that_the_registry_makes():
    assert set(environments.BUILT_IN) == set(VECTOR_ENVS)
    assert set(environments.COLLECTED_ON_DEVICE) == set(DEVICE_ENVS)
    assert Settings().environment == environments.DEFAULT


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("racing", {}),
        ("racing", {"observation": "view"}),
        ("CartPole-v1", {}),
        ("CartPole-v1", {"frame_stack": 4}),
        ("Pendulum-v1", {}),
        ("runtime.rl.envs.racing_gym:l2r/Racing-v0", {}),
        ("l2r/Racing-v0", {"observation": "view", "frame_stack": 3}),
    ],
)
def test_shapes_are_those_of_the_environments(name, options):
    env, shape = make_vector_env(name, 1, options=options), data_shape(name, options)
    assert shape.numbers == env.obs_space.vector
    assert shape.pictures == env.obs_space.images
    assert shape.observation_bytes == env.obs_space.width * env.obs_space.dtype.itemsize
    assert shape.action_bytes == env.action_space.size * env.action_space.dtype.itemsize


def test_a_simulators_shape_needs_no_simulator():
    assert data_shape("l2r", {"simulator": {"kind": "sidecar"}}).numbers == L2RVectorEnv.obs_dim


@pytest.mark.parametrize("observation", ["", "place", "felt"])
def test_cameras_of_a_simulator_count_as_what_the_worker_makes_of_them(observation):
    cameras = {
        "CameraFrontRGB": {"Width": 128, "Height": 96, "crop": [44, 0, 0, 0], "resize": [32, 64], "grey": True},
        "CameraLeftRGB": {"crop": [100, 4, 0, 12]},
    }
    options = {"cameras": cameras, "observation": observation}
    space, shape = L2ROptions.from_mapping(options).obs_space, data_shape("l2r", options)
    assert (shape.numbers, shape.pictures) == (space.vector, space.images)
    assert data_shape("l2r", {"cameras": {"CameraLeftRGB": {"crop": 3}}}) is None


class Cameras(gymnasium.Env):
    """The spaces of l2r/L2R-v0 with two cameras, without its simulator."""

    def __init__(self):
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(
            {
                "pose": box(-1, 1, (POSE_VALUES,), np.float32),
                "front": box(0, 255, (CAMERA["Height"], CAMERA["Width"], 3), np.uint8),
                "left": box(0, 255, (84, 96, 3), np.uint8),
            }
        )
        self.action_space = box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize("frames", [1, 4])
def test_cameras_are_pictures_of_their_size(frames, monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("Cameras-v0", Cameras)
    monkeypatch.setitem(gymnasium.registry, "Cameras-v0", spec)
    made = GymVectorEnv("Cameras-v0", 1, {"frame_stack": frames}).obs_space
    cameras = {"CameraFront": {}, "CameraLeft": {"Height": 84, "Width": 96}}
    shape = data_shape("runtime.rl.envs.l2r_gym:l2r/L2R-v0", {"cameras": cameras, "frame_stack": frames})
    assert (shape.numbers, shape.pictures) == (made.vector, made.images)
    assert str(shape) == f"384x512x{3 * frames} and 84x96x{3 * frames}"
    named = data_shape("l2r/L2R-v0", {"cameras": ["CameraFront"]})
    assert named.pictures == ((384, 512, 3),)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ALE/Pong-v5", {}),
        ("mine:Task-v0", {}),
        ("CartPole-v1", {"frame_stack": "all"}),
        ("l2r/L2R-v0", {"cameras": "CameraFront"}),
        ("l2r/L2R-v0", {"cameras": {"CameraFront": 84}}),
        ("l2r/L2R-v0", {"cameras": {"CameraFront": {"Height": -1}}}),
    ],
)
def test_what_only_the_environment_knows_is_unknown(name, options):
    assert data_shape(name, options) is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("racing", ""),
        ("CartPole-v1", ""),
        ("CartPole", ""),
        ("ALE/Pong", ""),
        ("module:Task", ""),
        ("racin", "Did you mean racing?"),
        ("Racing", "Did you mean racing?"),
        ("quake", "There are racing, l2r, and ids such as CartPole-v1."),
    ],
)
def test_a_name_that_is_no_environment_has_a_suggestion(name, meant):
    assert is_possible(name) == (not meant)
    if meant:
        assert suggestion(name) == meant
