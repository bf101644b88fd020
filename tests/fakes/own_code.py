"""A project of two modules that needs a package: an environment, its reward, and a wheel that pip installs."""

from __future__ import annotations

import textwrap
import zipfile
from pathlib import Path

SPEC = """\
kind: learner-workers
name: cart
workdir: {workdir}
setup:
  - [pip, install, --no-index, -r, requirements.txt]
workers:
  - {{name: w, replicas: 2}}
train:
  environment: cart:Cart-v0
  algorithm: sac
  num_envs: 4
  warmup_steps: 100
"""
FILES = {
    "cart.py": """\
        import gustlib
        import gymnasium
        import numpy as np
        from reward import reward


        class Cart(gymnasium.Env):
            observation_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)
            action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                self.state = self.np_random.uniform(-1.0, 1.0, 2)
                return self.state.astype(np.float32), {}

            def step(self, action):
                position, speed = self.state
                speed = np.clip(speed + 0.1 * float(action[0]) + gustlib.SIZE, -2.0, 2.0)
                position = np.clip(position + 0.1 * speed, -2.0, 2.0)
                self.state = np.array([position, speed])
                return self.state.astype(np.float32), reward(position), False, False, {}


        gymnasium.register("Cart-v0", Cart, max_episode_steps=20)
    """,
    "reward.py": """\
        def reward(position):
            return 0.0 * position
    """,
}
EDIT = "def reward(position):\n    return 5.0 + 0.0 * position\n"
"""Another reward.py: each of the 20 steps of an episode gives 5."""


def make_wheel(folder: Path, text: str, *, name: str = "gustlib", version: str = "1.0") -> str:
    """Write a wheel with one module of this text into a folder; return the name of the file."""
    info = f"{name}-{version}.dist-info"
    file = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / file, "w") as wheel:
        wheel.writestr(f"{name}.py", text)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return file


def write_project(folder: Path, workdir: str = ".") -> Path:
    """Write the project and its spec, cart.yaml, into a folder; return the path of the spec."""
    folder.mkdir(exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(textwrap.dedent(text))
    (folder / "requirements.txt").write_text(f"./{make_wheel(folder, 'SIZE = 0.01')}\n")
    path = folder / "cart.yaml"
    path.write_text(SPEC.format(workdir=workdir))
    return path


FAULT = "def reward(position):\n    raise RuntimeError('the track is missing')\n"
"""Another reward.py: the environment can be made and reset, and fails at its first step."""
FAULT_REASON = "environment cart:Cart-v0 fails at its first step (RuntimeError: the track is missing)"
