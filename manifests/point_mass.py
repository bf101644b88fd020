"""An environment of one's own on tensors: a mass on a plane that is pushed to the middle and held there.

The learner keeps all copies on its device (`collect: device`); docs/gpu.md says what each part is for.
"""

import torch

from runtime.rl.spaces import ActionSpace, ObsSpace

STEP_SECONDS = 0.05
EDGE = 2.0  # m; beyond it the episode is lost


class PointMass:
    obs_space = ObsSpace(4)
    action_space = ActionSpace(2)
    start_draws = 4  # random numbers of a copy that `start` takes
    max_steps = 200
    step_seconds = STEP_SECONDS

    def __init__(self, num_envs, device, *, force=4.0, drag=0.1):
        self.force, self.drag = force, drag

    def start(self, draws):
        even = 2.0 * draws - 1.0
        return {"position": 1.5 * even[:, :2], "velocity": 0.5 * even[:, 2:]}

    def observe(self, state):
        return torch.cat([state["position"], state["velocity"]], dim=1)

    def step(self, state, action):
        push = self.force * action - self.drag * state["velocity"]
        velocity = state["velocity"] + STEP_SECONDS * push
        position = state["position"] + STEP_SECONDS * velocity
        distance = position.square().sum(dim=1).sqrt()
        lost = distance > EDGE
        reward = 0.1 * (1.0 - distance) - 0.01 * action.square().sum(dim=1) - 10.0 * lost
        return {"position": position, "velocity": velocity}, reward, lost, torch.zeros_like(lost)
