"""Run a script of CleanRL as it is, with evaluations like those of the other parties as JSON records.

Run by `tests.bench.learning_libraries` with another Python, so it imports no code of this project. The scripts are
written for Gymnasium 0.29. What they use of it is given to them here on a newer Gymnasium: vector environments that
start again within a step, a list of last infos, and names and arguments of wrappers.

    python learning_cleanrl.py CHECKOUT SCRIPT EVALUATION_STEPS EPISODES -- ARGUMENTS OF THE SCRIPT
"""

from __future__ import annotations

import json
import runpy
import sys
import tempfile
from collections.abc import Callable
from os import chdir
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

EVALUATION_SEED = 1_000


class Envs(gymnasium.vector.SyncVectorEnv):
    """A vector environment of Gymnasium 0.29 that evaluates the script's policy every so many env steps."""

    evaluation_steps = 0
    episodes = 0
    """Of an evaluation."""
    env_steps = 0

    def __init__(self, makers: list[Callable[[], gymnasium.Env[Any, Any]]]) -> None:
        super().__init__(makers, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
        self.make = makers[0]
        self.next_evaluation = self.evaluation_steps
        self.script: dict[str, Any] = {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all copies; infos of ended episodes are a list with an entry for each copy."""
        self.script = sys._getframe(1).f_globals
        observations, rewards, terminations, truncations, infos = super().step(actions)
        self.env_steps += self.num_envs
        if "final_info" in infos:
            ended, infos["final_observation"] = terminations | truncations, infos["final_obs"]
            episodes = infos["final_info"].get("episode", {"r": [0.0] * self.num_envs, "l": [0] * self.num_envs})
            infos["final_info"] = [
                {"episode": {"r": episodes["r"][at], "l": episodes["l"][at]}} if over else None
                for at, over in enumerate(ended)
            ]
        if self.env_steps > self.next_evaluation:
            self.next_evaluation += self.evaluation_steps
            self.evaluate()
        return observations, rewards, terminations, truncations, infos

    def close_extras(self, **settings: Any) -> None:
        """Evaluate the last policy: a script closes its environments when it has trained."""
        if self.script:
            self.evaluate()
        super().close_extras(**settings)

    def evaluate(self) -> None:
        """Print the mean return of some episodes in a new copy without exploration."""
        state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002  (the scripts use it)
        env, returns = self.make(), []
        for wrapper, training in zip(_wrappers(env), _wrappers(self.envs[0]), strict=True):
            if isinstance(wrapper, gymnasium.wrappers.NormalizeObservation):
                wrapper.obs_rms, wrapper.update_running_mean = training.obs_rms, False
        for episode in range(self.episodes):
            observation, _ = env.reset(seed=EVALUATION_SEED + episode)
            ended, info = False, {}
            while not ended:
                observation, _, terminated, truncated, info = env.step(self.act(observation))
                ended = terminated or truncated
            returns.append(float(info["episode"]["r"]))
        env.close()
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])  # noqa: NPY002  (the scripts use it)
        print(json.dumps({"env_steps": self.env_steps, "mean_return": sum(returns) / len(returns)}), flush=True)

    @torch.no_grad()
    def act(self, observation: Any) -> Any:
        """Return the action without exploration, by the script's network."""
        batch = torch.as_tensor(np.asarray(observation), dtype=torch.float32)[None]
        if "q_network" in self.script:
            return int(self.script["q_network"](batch).argmax())
        if "actor" in self.script:
            return self.script["actor"].get_action(batch)[2][0].numpy()
        agent = self.script["agent"]
        if hasattr(agent, "actor_mean"):
            return agent.actor_mean(batch)[0].numpy()
        return int(agent.actor(agent.network(batch / 255.0)).argmax())


def _wrappers(env: gymnasium.Env[Any, Any]) -> list[gymnasium.Env[Any, Any]]:
    found = [env]
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        found.append(env)
    return found


def main() -> None:
    """Run the script that the command line names."""
    checkout, script = Path(sys.argv[1]).resolve(), sys.argv[2]
    torch.set_num_threads(1)
    Envs.evaluation_steps, Envs.episodes = int(sys.argv[3]), int(sys.argv[4])
    wrappers = dict(vars(gymnasium.wrappers))

    class Wrappers:
        """Names of Gymnasium 0.29."""

        GrayScaleObservation = wrappers["GrayscaleObservation"]
        FrameStack = wrappers["FrameStackObservation"]

        @staticmethod
        def TransformObservation(env: Any, function: Callable[[Any], Any]) -> Any:  # noqa: N802
            return wrappers["TransformObservation"](env, function, env.observation_space)

        def __getattr__(self, name: str) -> Any:
            return wrappers[name]

    gymnasium.vector.SyncVectorEnv = Envs  # type: ignore[misc]
    gymnasium.wrappers = Wrappers()  # type: ignore[assignment]
    if "atari" in script:
        import ale_py  # type: ignore[import-not-found, unused-ignore]

        gymnasium.register_envs(ale_py)
    sys.path.insert(0, str(checkout))
    sys.argv = [script, *sys.argv[6:]]
    with tempfile.TemporaryDirectory() as folder:
        chdir(folder)  # Its scripts write to the folder `runs`.
        runpy.run_path(str(checkout / "cleanrl" / script), run_name="__main__")
        chdir("/")


if __name__ == "__main__":
    main()
