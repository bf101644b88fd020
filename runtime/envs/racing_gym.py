"""Former import path, so that ``gymnasium.make("runtime.envs.racing_gym:…")`` of existing code keeps working."""

from runtime.rl.envs.racing_gym import *  # noqa: F403  (registers the id)
