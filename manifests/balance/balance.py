"""A mass on a line that gusts push away from the middle: an environment of Gymnasium in several files."""

import json
from pathlib import Path

import gymnasium
import numpy as np
from reward import reward

GUSTS = Path(__file__).with_name("gusts.json")


class Balance(gymnasium.Env):
    """Observation: position, speed. Action: force, -1 to 1."""

    observation_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self):
        # Setup writes the file; before it, a check of the environment has no gusts.
        self.gusts = json.loads(GUSTS.read_text()) if GUSTS.exists() else [0.0]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1.0, 1.0, 2)
        self.steps = int(self.np_random.integers(len(self.gusts)))
        return self.state.astype(np.float32), {}

    def step(self, action):
        position, speed = self.state
        self.steps += 1
        force = float(action[0]) + self.gusts[self.steps % len(self.gusts)]
        speed = np.clip(speed + 0.1 * force, -2.0, 2.0)
        position = np.clip(position + 0.1 * speed, -2.0, 2.0)
        self.state = np.array([position, speed])
        return self.state.astype(np.float32), reward(position, speed), False, False, {}


gymnasium.register("Balance-v0", Balance, max_episode_steps=100)
