"""Remote inference on a graphics card: the same answers as NumPy, from a process next to a learner that learns."""

from __future__ import annotations

import os
import sys

import msgspec
import numpy as np
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
torch = pytest.importorskip("torch")

from runtime.base.addresses import parse  # noqa: E402
from runtime.exchange.inference.process import InferenceProcess, InferenceProgram  # noqa: E402
from runtime.exchange.inference.wire import (  # noqa: E402
    QuestionChannel,
    RemotePolicy,
    proof_of,
)
from runtime.exchange.policy_store import PolicyStore  # noqa: E402
from runtime.rl.algos.actor import ActorShape, NumpyActor  # noqa: E402
from runtime.rl.algos.device_actor import DeviceActor  # noqa: E402
from runtime.rl.roles.remote_inference import InferenceSetup, NetworkSetup, batch_sizes, shapes_of  # noqa: E402

VECTOR = ActorShape(7, 2, (64, 64), head="gaussian", activation="tanh")
PICTURES = ActorShape(
    4 * 4 + 84 * 84 * 4,
    2,
    (128, 128),
    images=((84, 84, 4),),
    convolutions=((32, 8, 4), (64, 4, 2), (64, 3, 1)),
)
PROOF = proof_of("secret", "run-1")
TOLERANCES = {"float32": 1e-4, "tf32": 2e-2, "bfloat16": 1e-1}


def weights(shape: ActorShape, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape.size, dtype=np.float32) * 0.05


def observations(shape: ActorShape, rows: int):
    rng = np.random.default_rng(rows)
    vector = rng.standard_normal((rows, shape.obs_space.vector), dtype=np.float32)
    if not shape.images:
        return vector
    return shape.obs_space.pack(vector, [rng.integers(0, 256, (rows, *shape.images[0]), dtype=np.uint8)])


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("shape", [VECTOR, PICTURES])
def test_every_size_of_batch_gives_what_numpy_does(shape, precision):
    from runtime.rl.device.accelerator import set_float32_products

    set_float32_products(precision)
    network, actor = DeviceActor(shape, "cuda", [4, 8, 16, 32], precision=precision), NumpyActor(shape)
    for seed in (1, 2):
        network.weights[:] = weights(shape, seed)
        network.refresh()
        actor.load(weights(shape, seed))
        # Two batches in progress at a time, of sizes that are rounded up, and sizes whose graph exists already.
        for first, second in ((1, 32), (5, 3), (32, 17), (8, 8)):
            batches = [observations(shape, count) for count in (first, second)]
            for slot, obs in enumerate(batches):
                network.buffers[slot][: len(obs)] = obs
                network.begin(slot, len(obs))
            for slot, obs in enumerate(batches):
                expected = actor.outputs(obs)
                scale = max(1.0, float(np.abs(expected).max()))
                assert network.finish(slot) == pytest.approx(expected, abs=TOLERANCES[precision] * scale)
    set_float32_products("float32")


def test_captured_and_eager_batches_agree():
    obs = observations(PICTURES, 16)
    results = []
    for captures in (True, False):
        network = DeviceActor(PICTURES, "cuda", [16], captures=captures)
        network.weights[:] = weights(PICTURES, 3)
        network.refresh()
        network.buffers[0][:16] = obs
        network.begin(0, 16)
        results.append(network.finish(0).copy())
    assert results[0] == pytest.approx(results[1], abs=1e-6)


@pytest.mark.process
def test_the_process_answers_from_the_card_while_its_learner_learns_on_it(short_folder, no_leaks):
    from runtime.base.methods import SACConfig
    from runtime.rl.algos.off_policy.sac import SAC
    from runtime.rl.buffers.replay import Batch

    policies = PolicyStore(epoch=1, token="secret")
    shared = policies.share(PICTURES.size)
    network = NetworkSetup(PICTURES, "cuda", "float32", captures=True, threads=1, max_rows=16)
    setup = InferenceSetup(os.getpid(), f"ipc://{short_folder}", None, PROOF, network, (), shared)
    assert batch_sizes(network.shapes)[0] == 16
    argv = [sys.executable, "-m", "runtime", "inference"]
    sentences: list[str] = []
    inference = InferenceProcess(
        InferenceProgram(argv, msgspec.json.encode(setup), [shared.descriptor]), sentences.append
    )
    inference.start()
    sac = SAC(PICTURES, SACConfig(hidden=PICTURES.hidden, batch_size=64), 1, "cuda")
    pixels = torch.from_numpy(observations(PICTURES, 64)).cuda()
    batch = Batch(
        pixels,
        torch.rand(64, 2, device="cuda"),
        torch.rand(64, device="cuda"),
        pixels,
        torch.zeros(64, device="cuda"),
    )
    actor, obs = NumpyActor(PICTURES), observations(PICTURES, 16)
    channel = QuestionChannel(parse(f"ipc://{short_folder}"), b"w", shapes_of(PICTURES, 16).answer_bytes)
    try:
        with RemotePolicy(channel, shapes_of(PICTURES, 16), PROOF) as policy:
            for version in range(1, 6):
                arena = sac.actor_arena()
                policies.publish(version, arena)
                actor.load(arena)
                for _ in range(3):
                    sac.update(batch)
                answer = policy.outputs(obs, lambda: True)
                assert answer is not None
                assert answer[1] == version
                assert answer[0] == pytest.approx(actor.outputs(obs), abs=1e-3)
    finally:
        inference.close()
        policies.close()
    assert not sentences
