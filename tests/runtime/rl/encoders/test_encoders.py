"""Frozen encoders: a VAE has torch's latents, an unsuitable file is refused, a user's class runs as documented."""

from __future__ import annotations

import json
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from runtime.base.errors import SetupError
from runtime.base.signals import Stop
from runtime.base.training import Settings, from_mapping
from runtime.cli import main
from runtime.rl.algos.actor import NumpyActor
from runtime.rl.algos.algorithm import Algorithm
from runtime.rl.algos.networks import Network
from runtime.rl.algos.plan import Plan, build
from runtime.rl.buffers.replay import Batch
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.encoders.encoder import EncoderSetting
from runtime.rl.encoders.vae import VAE
from runtime.rl.encoding.training import Autoencoder, Training, train
from runtime.rl.roles.launch_context import environment_plan, make_environment
from runtime.rl.roles.settings_check import check_settings
from tests.runtime.conftest import RunUnderTest

PAGE = Path(__file__).parents[4] / "docs" / "own-methods.md"
VIEW = {"environment": "racing", "environment_options": {"observation": "view"}, "num_envs": 2}


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other on busy cores make small products a hundred times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def lab_file(path: Path, image=(144, 144, 3), training: Training | None = None) -> Autoencoder:
    """Weights of an untrained network of the lab's size, in torch's file format."""
    torch.manual_seed(0)
    model = Autoencoder(image, training or Training())
    torch.save(model.state_dict(), path)
    return model


def test_the_state_dict_has_the_keys_and_sizes_of_learn_to_race(tmp_path):
    model = lab_file(tmp_path / "vae.statedict")
    sizes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items() if key.endswith("weight")}
    assert sizes == {
        "encoder.0.weight": (32, 3, 4, 4),
        "encoder.2.weight": (64, 32, 4, 4),
        "encoder.4.weight": (128, 64, 4, 4),
        "encoder.6.weight": (256, 128, 4, 4),
        "fc1.weight": (32, 20736),
        "fc2.weight": (32, 20736),
        "fc3.weight": (20736, 32),
        "decoder.1.weight": (256, 128, 4, 4),
        "decoder.3.weight": (128, 64, 4, 4),
        "decoder.5.weight": (64, 32, 4, 4),
        "decoder.7.weight": (32, 3, 4, 4),
    }


def test_latents_in_numpy_are_those_of_torch(tmp_path):
    model = lab_file(tmp_path / "vae.statedict")
    pictures = np.random.default_rng(0).integers(0, 256, (2, 144, 144, 3), dtype=np.uint8)
    encoder = VAE([(144, 144, 3)], str(tmp_path / "vae.statedict"))
    with torch.no_grad():
        means = model.fc1(model.encoder(torch.from_numpy(pictures).permute(0, 3, 1, 2) / 255.0))
    assert encoder.size == 32
    np.testing.assert_allclose(encoder.encode([pictures]), means.numpy(), atol=1e-5)


class Payload:
    """A malicious pickle: this one writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_file_that_would_run_code_is_refused_and_runs_nothing(tmp_path):
    torch.save({"encoder.0.weight": Payload(tmp_path / "ran")}, tmp_path / "bad.statedict")
    with pytest.raises(ValueError, match="neither safetensors nor a state dict"):
        VAE([(144, 144, 3)], str(tmp_path / "bad.statedict"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("image", "sentence"),
    [((32, 64, 3), r"another size than 32 x 64; .*\[144, 144\]"), ((144, 144, 1), "3 channels, and these have 1")],
)
def test_pictures_that_do_not_fit_the_weights_are_refused(tmp_path, image, sentence):
    lab_file(tmp_path / "vae.statedict")
    with pytest.raises(ValueError, match=sentence):
        VAE([image], str(tmp_path / "vae.statedict"))


@pytest.mark.parametrize(
    ("encoder", "sentence"),
    [
        ("vae", "needs weights"),
        ("resnet", "must be convolutions, vae or package.module:Class"),
        ({"name": "vae", "weights": "x", "frozen": "no"}, "frozen is 'no'; it must be true or false"),
        ({"name": "halves:Halves", "frozen": False}, "true alone: a network of your own"),
        ({"name": "convolutions", "size": 3}, "has no option 'size'"),
    ],
)
def test_a_wrong_setting_is_refused_by_the_check(encoder, sentence):
    with pytest.raises(SetupError, match=sentence):
        check_settings(from_mapping({**VIEW, "encoder": encoder}))


def test_an_environment_without_pictures_is_refused():
    training = from_mapping({"environment": "racing", "encoder": {"name": "vae", "weights": "x"}})
    with pytest.raises(SetupError, match="shows none"):
        check_settings(training)


def test_weights_that_are_not_there_are_named(tmp_path):
    training = from_mapping({**VIEW, "encoder": {"name": "vae", "weights": str(tmp_path / "none")}})
    with pytest.raises(SetupError, match="does not exist"):
        make_environment(training, 1, {})


@pytest.mark.slow
def test_training_lowers_the_loss_and_its_file_is_an_encoder(tmp_path, capsys):
    rows = np.arange(32)[:, None, None]
    frames = np.stack([np.where(rows > edge, 220, 20) * np.ones((32, 32, 1)) for edge in np.arange(200) % 32])
    path = tmp_path / "edge.safetensors"
    train(frames.astype(np.uint8), Training(epochs=40, latents=2, channels=(8, 8)), path, Stop())
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]
    assert losses[-1] < 0.8 * losses[0]
    latents = VAE([(32, 32, 1)], str(path)).encode([frames[:32].astype(np.uint8)])
    assert latents.std(axis=0).max() > 0.1


@pytest.mark.slow
def test_the_command_records_trains_and_writes_what_a_run_loads(tmp_path, monkeypatch):
    path = tmp_path / "view.safetensors"
    monkeypatch.setenv("L2R_CONFIG", json.dumps(VIEW))
    small = ["--frames", "128", "--epochs", "1", "--latents", "4", "--channels", "4"]
    assert main(["encode", str(path), *small]) == 0
    training = from_mapping({**VIEW, "encoder": {"name": "vae", "weights": str(path)}})
    seen = make_environment(replace(training, encoder=None), 2, {})
    env = make_environment(training, 2, {})
    vector = seen.obs_space.split(seen.reset(3))[0]
    obs = env.reset(3)
    assert env.obs_space.images == ()
    assert obs.shape == (2, 4 * len(seen.obs_space.images) + vector.shape[1])
    np.testing.assert_array_equal(obs[:, -vector.shape[1] :] if vector.shape[1] else obs[:, :0], vector)
    # Everything after the encoder is a vector, so every method accepts it.
    for algorithm, others in (("sac", {}), ("ppo", {"segment_steps": 64}), ("td3", {})):
        plan = environment_plan(replace(training, algorithm=algorithm, **others), env)
        assert plan.shape.images == ()


def example(word: str) -> str:
    """The Python block of the page that contains a word."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return next(block for block in blocks if word in block)


def test_the_encoder_of_the_page_is_used_as_it_stands_there(tmp_path, monkeypatch):
    (tmp_path / "halves.py").write_text(example("class Halves"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "halves", raising=False)
    training = from_mapping({**VIEW, "encoder": {"name": "halves:Halves", "parts": 2}})
    env = make_environment(training, 2, {})
    first = env.reset(0)
    result = env.step(np.zeros((2, 2), np.float32))
    assert first.shape == result.obs.shape == (2, env.obs_space.width)
    assert np.isfinite(result.obs).all()


def test_an_encoder_of_ones_own_that_fails_gets_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "broken_encoder.py").write_text("class Broken:\n    def __init__(self, images):\n        1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"broken_encoder:Broken cannot be made .*ZeroDivisionError"):
        EncoderSetting.of("broken_encoder:Broken").load([(4, 4, 1)])


METHODS = {
    "sac": {"sac": {"random_shift": 2}},
    "td3": {"td3": {"policy_delay": 1}},
    "ppo": {"segment_steps": 4, "ppo": {"batch_steps": 8, "minibatch_size": 8, "epochs": 1}},
    "ppo with memory": {
        "algorithm": "ppo",
        "memory": {"kind": "gru", "size": 8},
        "segment_steps": 4,
        "ppo": {"batch_steps": 8, "minibatch_size": 8, "epochs": 1},
    },
    "impala": {"segment_steps": 4, "impala": {"batch_steps": 8}},
}


def tuned_run(folder: Path, method: str = "sac") -> Settings:
    """Settings of a run that trains the weights of a file further."""
    path = folder / "view.statedict"
    if not path.exists():
        lab_file(path, (32, 32, 1), Training(latents=3, channels=(4, 8)))
    encoder = {"name": "vae", "weights": str(path), "frozen": False}
    chosen = {"algorithm": method, "hidden": [8], **METHODS[method]}
    return from_mapping({**VIEW, "encoder": encoder, **chosen})


def made(training: Settings, seed: int = 1) -> tuple[Plan, Algorithm, np.ndarray]:
    """Plan and method of settings, and 8 observations of two copies, one after the other."""
    env = make_environment(training, 2, {})
    plan = environment_plan(training, env)
    rows, rng = [env.reset(0)], np.random.default_rng(0)
    rows += [env.step(env.action_space.at_random(2, rng)).obs for _ in range(4)]
    return plan, build(plan, seed, "cpu"), np.stack(rows)


def batch_of(method: str, plan: Plan, rows: np.ndarray) -> Batch | RolloutBatch:
    """Steps of two copies with differing rewards."""
    obs, next_obs = torch.from_numpy(rows[:-1].copy()), torch.from_numpy(rows[1:].copy())
    generator = torch.Generator().manual_seed(0)
    action, reward = (torch.rand(size, generator=generator) for size in ((4, 2, 2), (4, 2)))
    ended = torch.zeros(4, 2)
    if method in ("sac", "td3"):
        columns = (obs, action, reward, next_obs, ended)
        return Batch(*(column.flatten(0, 1) for column in columns))
    state = torch.zeros(4, 2, plan.shape.memory.column_width(4)) if plan.shape.memory is not None else None
    return RolloutBatch(obs, action, torch.full((4, 2), -2.0), reward, next_obs, ended.to(torch.uint8), state)


def kernels_of(method: Algorithm, plan: Plan) -> np.ndarray:
    size = sum(kernel.size for kernel in plan.first_kernels)
    return method.actor_arena()[:size]


@pytest.mark.parametrize("method", METHODS)
def test_a_tuned_encoder_begins_as_its_file_moves_with_the_loss_and_resumes(tmp_path, method):
    training = tuned_run(tmp_path, method)
    plan, learning, rows = made(training)
    first = np.concatenate([kernel.ravel() for kernel in plan.first_kernels])
    np.testing.assert_array_equal(kernels_of(learning, plan), first)
    batch = batch_of(method, plan, rows)
    for _ in range(3):
        learning.update(batch)
    moved = kernels_of(learning, plan)
    parts = np.split(moved - first, np.cumsum([kernel.size for kernel in plan.first_kernels])[:-1])
    assert all(np.abs(part).max() > 1e-6 for part in parts), "each kernel, and the layer of the latents"
    resumed = build(plan, 99, "cpu")
    resumed.load_state(learning.state())
    np.testing.assert_array_equal(kernels_of(resumed, plan), moved)
    for going_on in (learning, resumed):
        going_on.update(batch)
    np.testing.assert_array_equal(resumed.actor_arena(), learning.actor_arena())


def test_a_worker_sees_the_latents_of_a_tuned_encoder_as_those_of_a_frozen_one(tmp_path):
    training = tuned_run(tmp_path)
    plan, learning, rows = made(training)
    frozen = make_environment(
        replace(training, encoder={"name": "vae", "weights": training.encoder["weights"]}), 2, {}
    )
    actor = NumpyActor(plan.shape)
    actor.load(learning.actor_arena())
    latents = actor.features(rows[0])
    np.testing.assert_allclose(latents, frozen.reset(0), rtol=1e-4, atol=1e-5)
    network = Network(plan.shape, torch.Generator(), "cpu")
    network.arena.flat.copy_(torch.from_numpy(learning.actor_arena()))
    with torch.no_grad():
        expected = network(torch.from_numpy(rows[0].copy())).numpy()
    np.testing.assert_allclose(actor.outputs(rows[0]), expected, rtol=1e-4, atol=1e-5)


def test_what_cannot_tune_an_encoder_says_so(tmp_path):
    training = tuned_run(tmp_path, "impala")
    with pytest.raises(SetupError, match="without sends_gradients; leave it frozen"):
        check_settings(replace(training, impala={"batch_steps": 8, "sends_gradients": True}))
    check_settings(replace(training, encoder={**training.encoder, "weights": "/in/the/image/alone"}))
    with pytest.raises(SetupError, match="shows none"):
        check_settings(replace(training, environment_options={}))


@pytest.mark.slow
def test_a_run_learns_a_tuned_encoder_and_goes_on_with_it(run: RunUnderTest, tmp_path, wait_until):
    tuned_run(tmp_path)
    encoder = {"name": "vae", "weights": str(tmp_path / "view.statedict"), "frozen": False}
    run.settings |= {"environment_options": {"observation": "view"}, "encoder": encoder}
    learner, worker = run.start("learner"), run.start("worker")
    wait_until(lambda: worker.last("worker").get("policy_version", 0) > 1, "a worker with its weights", log=worker)
    assert learner.end() == 0
    successor = run.start("learner")
    wait_until(lambda: "resumed ckpt-" in successor.text(), "a resume", log=successor)
    newest = max((run.folder / "run" / "checkpoints").glob("*.safetensors"))
    plan, _, _ = made(from_mapping(run.settings))
    first = np.concatenate([kernel.ravel() for kernel in plan.first_kernels])
    saved = safetensors.numpy.load_file(newest)["method.actor"][: len(first)]
    assert np.abs(saved - first).max() > 1e-4
    assert worker.end(signal.SIGTERM) == successor.end() == 0
