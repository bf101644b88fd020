"""The racing environment as Gymnasium knows environments: one car, ``gymnasium.make("l2r/Racing-v0")``.

Importing this module registers the id; ``gymnasium.make("runtime.rl.envs.racing_gym:l2r/Racing-v0")`` imports it by
itself (Gymnasium has looked for no entry points of plugins since its version 1.0). It stands apart from ``racing``
because workers drive the vectorised form and need not import Gymnasium.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray

from runtime.rl.envs.racing import RacingVectorEnv
from runtime.rl.envs.racing_rules import OBS_BOUND, RacingOptions

Action = NDArray[np.float32]
Observation = NDArray[np.float32] | dict[str, NDArray[Any]]
"""What is felt and the picture, by name, where there is a picture."""
Info = dict[str, Any]

RACING_ID: Final = "l2r/Racing-v0"


class RacingEnv(gymnasium.Env[Observation, Action]):
    """One car of ``RacingVectorEnv``; keyword arguments as in ``RacingOptions``."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]  # the base has it per instance

    def __init__(self, **options: Any) -> None:
        self._cars = RacingVectorEnv(1, RacingOptions.from_mapping(options))
        obs, box = self._cars.obs_space, gymnasium.spaces.Box
        space: gymnasium.Space[Any] = box(-OBS_BOUND, OBS_BOUND, (obs.vector,), np.float32)
        if obs.images:
            space = gymnasium.spaces.Dict({"felt": space, "view": box(0, 255, obs.images[0], np.uint8)})
        self.observation_space = space
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self._cars.act_dim,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Start an episode; ``options`` are not used, the course is chosen when the environment is made."""
        super().reset(seed=seed, options=options)
        rows = self._cars.reset(int(self.np_random.integers(2**31)))
        return self._seen(rows), {"progress_metres": 0.0}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Drive for a tenth of a second; ``info`` tells progress, and laps at the end of an episode."""
        result = self._cars.step(np.asarray(action, dtype=np.float32)[None])
        info: dict[str, Any] = {"progress_metres": float(self._cars.progress[0])}
        for episode in result.episodes:
            info = {name: getattr(episode, name) for name in ("progress_metres", "laps", "left_track")}
        reward, terminated = float(result.reward[0]), bool(result.terminated[0])
        return self._seen(result.final_obs), reward, terminated, bool(result.truncated[0]), info

    def _seen(self, rows: NDArray[Any]) -> Observation:
        felt, pictures = self._cars.obs_space.split(rows)
        return {"felt": felt[0], "view": pictures[0][0]} if pictures else felt[0]


gymnasium.register(RACING_ID, entry_point=f"{__name__}:RacingEnv")
