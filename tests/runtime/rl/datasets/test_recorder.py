"""A recording outlives the process that writes it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from runtime.base.training import from_mapping
from runtime.rl.datasets.episode_files import dataset_files, open_episodes, summary
from runtime.rl.datasets.recorder import EpisodeRecorder
from runtime.rl.envs.base import VectorEnv
from runtime.rl.roles.launch_context import make_environment
from tests.packages import needed

pytest.importorskip("h5py")

DRIVER = """
import sys
from pathlib import Path
from tests.runtime.rl.datasets.test_recorder import cartpole, drive
from runtime.rl.datasets.recorder import EpisodeRecorder
env = cartpole()
recorder = EpisodeRecorder(sys.argv[1], env, "CartPole-v1")
while True:
    drive(env, recorder, 1)
    print(recorder.episodes, flush=True)
"""


def cartpole() -> VectorEnv:
    return make_environment(from_mapping({"environment": "CartPole-v1"}), 4, {})


def drive(env: VectorEnv, recorder: EpisodeRecorder, episodes: int) -> None:
    """Let poles fall until this many further episodes have ended."""
    obs, until = env.reset(recorder.episodes), recorder.episodes + episodes
    recorder.reset()
    action = np.zeros((4, 1), dtype=np.int32)
    while recorder.episodes < until:
        result = env.step(action)
        recorder.add(obs, action, result)
        obs = result.obs


@pytest.mark.process
def test_a_killed_process_leaves_each_episode_that_had_ended(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(50):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        lines = process.stdout.read().split()
    ended = int(lines[-1]) if lines else 50
    assert process.returncode == -signal.SIGKILL
    assert [path.suffix for path in dataset_files(str(tmp_path))] == [".journal"]
    assert summary(str(tmp_path))["episodes"] >= ended


def test_a_failure_writes_the_file_and_a_torn_journal_loses_its_last_episode(tmp_path: Path) -> None:
    def fail(recorder: EpisodeRecorder) -> None:
        with recorder:
            drive(cartpole(), recorder, 3)
            (journal,) = tmp_path.iterdir()
            (tmp_path / "torn.journal").write_bytes(journal.read_bytes()[:-3])
            (tmp_path / "other.journal").write_bytes(b"{}")
            raise RuntimeError("power")

    recorder = EpisodeRecorder(str(tmp_path), cartpole(), "CartPole-v1")
    with pytest.raises(RuntimeError, match="power"):
        fail(recorder)
    paths = {path.suffix + path.stem[:4]: path for path in dataset_files(str(tmp_path))}
    assert sorted(paths)[1:] == [".journalothe", ".journaltorn"], "the recorder's own is gone"
    (whole,) = (path for name, path in paths.items() if name.startswith(".hdf5"))
    torn, file = open_episodes(paths[".journaltorn"]), open_episodes(whole)
    assert torn.episodes == file.episodes - 1
    assert torn.steps == sum(map(len, torn.read()))
    for left, right in zip(torn.read(), file.read(), strict=False):
        for name in ("obs", "action", "reward", "terminated"):
            assert np.array_equal(getattr(left, name), getattr(right, name))
    file.close()
    figures = summary(str(tmp_path))
    assert figures["episodes"] == 2 * recorder.episodes - 1
    assert "other.journal was not recorded by l2r-runtime" in figures["damaged"][0]


@pytest.mark.packages
def test_minari_loads_a_recorded_file(tmp_path: Path) -> None:
    minari = needed("minari")
    serialization = needed("minari.serialization")
    import gymnasium

    env = cartpole()
    folder = tmp_path / "cartpole"
    with EpisodeRecorder(str(folder), env, "CartPole-v1") as recorder:
        drive(env, recorder, 5)
    (recorded,) = folder.glob("*.hdf5")
    recorded.rename(folder / "main_data.hdf5")
    spaces = gymnasium.make("CartPole-v1")
    metadata = {
        "dataset_id": "l2r/cartpole-v0",
        "data_format": "hdf5",
        "total_episodes": recorder.episodes,
        "total_steps": summary(str(folder))["transitions"],
        "minari_version": minari.__version__,
        "observation_space": serialization.serialize_space(spaces.observation_space),
        "action_space": serialization.serialize_space(spaces.action_space),
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))
    dataset = minari.MinariDataset(folder)
    assert (dataset.total_episodes, dataset.total_steps) == (recorder.episodes, metadata["total_steps"])
    for episode in dataset.iterate_episodes():
        count = len(episode.rewards)
        assert episode.observations.shape == (count + 1, 4)
        assert episode.actions.shape == (count,)
        assert (episode.rewards == 1.0).all()
        assert episode.terminations[-1] or episode.truncations[-1]
        assert not (episode.terminations[:-1] | episode.truncations[:-1]).any()
