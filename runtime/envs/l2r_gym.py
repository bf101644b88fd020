"""Former import path, so that ``gymnasium.make("runtime.envs.l2r_gym:…")`` of existing code keeps working."""

from runtime.rl.envs.l2r_gym import *  # noqa: F403  (registers the id)
