"""Remote inference: questions over real sockets, permissions, and runs whose workers have no weights."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from runtime.base import contract
from runtime.base.addresses import Endpoint, EndpointError, parse
from runtime.base.errors import SetupError
from runtime.base.training import from_mapping
from runtime.exchange.inference.server import InferenceServer, PolicyNetwork
from runtime.exchange.inference.wire import (
    AnswerChannel,
    NoQuestionError,
    QuestionChannel,
    RemotePolicy,
    Shapes,
    address_of,
    encode_answer,
    encode_question,
    proof_of,
    read_answer,
    read_question,
)
from runtime.exchange.policy_store import PolicyStore
from runtime.exchange.transport import curve_keys
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.algos.device_actor import DeviceActor
from runtime.rl.algos.plan import make_plan
from runtime.rl.roles.launch_context import Context
from runtime.rl.roles.remote_inference import NumpyPolicy, remote_inference
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.fakes.faults import free_port
from tests.runtime.conftest import RunUnderTest

DISCRETE = ActorShape(4, 1, (16,), head="categorical", choices=(3,), activation="tanh")
GAUSSIAN = ActorShape(4, 2, (16,), head="gaussian", activation="tanh")
SQUASHED = ActorShape(4, 2, (16,), head="squashed")
PICTURES = ActorShape(
    4 * 3 + 12 * 16 * 3, 2, (16,), head="gaussian", images=((12, 16, 3),), convolutions=((8, 4, 2), (8, 3, 1))
)
SHAPES = Shapes(np.dtype(np.float32), 4, DISCRETE.answer_floats, 8)
PROOF = proof_of("secret", "run-1")


def weights(shape: ActorShape, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape.size, dtype=np.float32) * 0.3


def actor(shape: ActorShape, seed: int) -> NumpyActor:
    made = NumpyActor(shape)
    made.load(weights(shape, seed))
    return made


def numpy_policy(shape: ActorShape) -> NumpyPolicy:
    made = NumpyPolicy(shape, 8)
    made.weights[:] = weights(shape, 1)
    made.refresh()
    return made


def observations(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 4), dtype=np.float32)


class Published:
    """Weights like in the learner's shared memory: a version and its values change together."""

    def __init__(self) -> None:
        self.newest: tuple[int, np.ndarray] = (0, np.zeros(0))

    def version(self) -> int:
        return self.newest[0]

    def read(self, into: np.ndarray) -> int:
        version, into[:] = self.newest
        return version


class Serving:
    """The loop of the process, run in a thread so that its counts and errors are visible."""

    def __init__(self, channel: AnswerChannel) -> None:
        self.weights = Published()
        network = NumpyPolicy(DISCRETE, SHAPES.batch_rows)
        self.server = InferenceServer(channel, network, SHAPES, PROOF, self.weights)
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.server.serve, args=(self.is_over.is_set,))

    def publish(self, version: int, arena: np.ndarray) -> None:
        self.weights.newest = version, arena

    def status(self) -> dict[str, int]:
        return self.server.counts()


@contextmanager
def learner(endpoint: Endpoint, learner_keys: curve_keys.LearnerKeys | None = None) -> Iterator[Serving]:
    with AnswerChannel(endpoint, SHAPES.question_bytes, learner_keys) as channel:
        made = Serving(channel)
        made.thread.start()
        try:
            yield made
        finally:
            made.is_over.set()
            made.thread.join()


def worker(endpoint: Endpoint, name: str = "w", peer_keys: curve_keys.PeerKeys | None = None) -> QuestionChannel:
    return QuestionChannel(endpoint, name.encode(), SHAPES.answer_bytes, peer_keys)


def always() -> bool:
    return True


def test_questions_and_answers_are_right_to_the_byte_or_nothing() -> None:
    obs = observations(3)
    frame = memoryview(encode_question(PROOF, 7, obs))
    number, read = read_question(frame, SHAPES, PROOF)
    assert number == 7
    assert (read == obs).all()
    for wrong in (frame[:-1], frame[:5], frame[:0], b"x" + bytes(frame[1:]), bytes(frame) + b"x"):
        with pytest.raises(NoQuestionError):
            read_question(memoryview(wrong), SHAPES, PROOF)
    for other in (proof_of("secret", "run-2"), proof_of("other", "run-1")):
        with pytest.raises(NoQuestionError):
            read_question(frame, SHAPES, other)
    for rows in (0, 9):
        with pytest.raises(NoQuestionError, match="1 to 8 are taken"):
            read_question(memoryview(encode_question(PROOF, 1, observations(rows))), SHAPES, PROOF)
    reply = memoryview(encode_answer(7, 3, np.ones((3, SHAPES.outputs), np.float32)))
    assert read_answer(reply, SHAPES, 3)[:2] == (7, 3)
    for wrong, rows in ((reply, 2), (reply[:-4], 3), (reply[:3], 3), (memoryview(bytes(len(reply))), 3)):
        with pytest.raises(NoQuestionError):
            read_answer(wrong, SHAPES, rows)


def answered(network: PolicyNetwork, obs: np.ndarray) -> np.ndarray:
    """Outputs for `obs` through the network's first slot."""
    network.buffers[0][: len(obs)] = obs
    network.begin(0, len(obs))
    return network.finish(0)


@pytest.mark.parametrize("is_rounded", [None, True])
@pytest.mark.parametrize("shape", [DISCRETE, GAUSSIAN, SQUASHED, PICTURES])
def test_the_network_on_a_device_says_what_the_workers_own_would(
    shape: ActorShape, is_rounded: bool | None
) -> None:
    here, there = actor(shape, 1), DeviceActor(shape, "cpu", [2, 4, 8], is_rounded=is_rounded)
    there.weights[:] = weights(shape, 1)
    there.refresh()
    rng = np.random.default_rng(0)
    for rows in (5, 1, 8, 5):
        obs: Any = rng.standard_normal((rows, 4), dtype=np.float32)
        if shape.images:
            obs = shape.obs_space.pack(obs[:, :3], [rng.integers(0, 256, (rows, 12, 16, 3), dtype=np.uint8)])
        outputs = answered(there, obs)
        assert outputs.shape == (rows, shape.answer_floats)
        assert outputs == pytest.approx(here.outputs(obs), abs=1e-4)
        assert outputs == pytest.approx(answered(numpy_policy(shape), obs), abs=1e-4)
    drawn = here.draw(here.outputs(obs), np.random.default_rng(3))
    assert (drawn == here.act(obs, np.random.default_rng(3))).all()


def test_in_bfloat16_the_network_computes_in_bfloat16_and_answers_in_float32() -> None:
    exact, rounded = (DeviceActor(SQUASHED, "cpu", [8], precision=name) for name in ("float32", "bfloat16"))
    obs = observations(8)
    for network in (exact, rounded):
        network.weights[:] = weights(SQUASHED, 1)
        network.refresh()
    difference = np.abs(answered(rounded, obs) - answered(exact, obs)).max()
    assert 0 < difference < 0.05
    assert answered(rounded, obs).dtype == np.float32


@pytest.mark.parametrize("kind", ["ipc", "tcp", "curve"])
def test_many_workers_are_answered_with_the_policy_that_the_answer_names(
    kind: str, short_folder: Path, no_leaks: None
) -> None:
    endpoint = parse(f"ipc://{short_folder}" if kind == "ipc" else f"tcp://127.0.0.1:{free_port()}")
    theirs, ours = curve_keys.from_token("secret") if kind == "curve" else (None, None)
    policies = {version: actor(DISCRETE, version) for version in range(1, 30)}
    wrong: list[str] = []
    versions: set[int] = set()

    def ask(index: int) -> None:
        rng = np.random.default_rng(index)
        with worker(endpoint, f"w{index}", ours) as channel:
            remote = RemotePolicy(channel, SHAPES, PROOF)
            for _ in range(60):
                obs = rng.standard_normal((1 + index, 4), dtype=np.float32)
                reply = remote.outputs(obs, always)
                if reply is None or not np.allclose(reply[0], policies[reply[1]].outputs(obs), atol=1e-5):
                    wrong.append(f"{index}: {reply}")
                else:
                    versions.add(reply[1])

    with learner(endpoint, theirs) as inference:
        asking = [threading.Thread(target=ask, args=(index,)) for index in range(5)]
        for thread in asking:
            thread.start()
        for version in policies:
            inference.publish(version, weights(DISCRETE, version))
            asking[0].join(0.01)
        for thread in asking:
            thread.join(60)
        status = inference.status()
    assert not wrong
    assert versions <= set(policies)
    assert status["questions"] >= 300
    assert status["batches"] <= status["questions"]
    assert status["foreign"] == status["strangers"] == 0


def test_a_worker_waits_for_a_learner_that_is_away_and_for_its_first_policy(
    short_folder: Path, no_leaks: None, wait_until: Callable[..., Any]
) -> None:
    endpoint = parse(f"ipc://{short_folder}")
    obs, replies = observations(2), []

    def ask(channel: QuestionChannel) -> None:
        replies.append(RemotePolicy(channel, SHAPES, PROOF).outputs(obs, always))

    with worker(endpoint) as channel:
        waits = iter([True, True, False])
        assert RemotePolicy(channel, SHAPES, PROOF).outputs(obs, lambda: next(waits)) is None
        thread = threading.Thread(target=ask, args=(channel,))
        thread.start()
        with learner(endpoint) as inference:
            wait_until(lambda: inference.status()["early"], "a question before there is a policy")
            inference.publish(1, weights(DISCRETE, 1))
            thread.join(30)
        assert replies[0][1] == 1
        with learner(endpoint) as successor:
            successor.publish(5, weights(DISCRETE, 5))
            ask(channel)
    assert replies[1][1] == 5
    assert replies[1][0] == pytest.approx(actor(DISCRETE, 5).outputs(obs), abs=1e-5)


def test_strangers_get_no_answer_and_do_not_disturb(
    short_folder: Path, no_leaks: None, wait_until: Callable[..., Any]
) -> None:
    endpoint = parse(f"ipc://{short_folder}")
    junk = [
        b"",
        b"L2Q1",
        bytes(100),
        encode_question(proof_of("guess", "run-1"), 1, observations(1)),
        b"\x80\x04K\x01.",
    ]
    with learner(endpoint) as inference, zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        inference.publish(1, weights(DISCRETE, 1))
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(address_of(endpoint))
        for frame in junk:
            dealer.send(frame)
        dealer.send_multipart([encode_question(PROOF, 1, observations(1)), b"more"])
        wait_until(lambda: inference.status()["foreign"] == len(junk), "all junk counted")
        dealer.send(bytes(SHAPES.question_bytes + 2_000))  # libzmq disconnects a peer that sends this much
        with worker(endpoint) as channel:
            assert RemotePolicy(channel, SHAPES, PROOF).outputs(observations(2), always) is not None
        assert not dealer.poll(0)


def test_an_unknown_key_is_turned_away(no_leaks: None, wait_until: Callable[..., Any]) -> None:
    endpoint = parse(f"tcp://127.0.0.1:{free_port()}")
    mine, _ = curve_keys.from_token("secret")
    _, other = curve_keys.from_token("other")
    pretender = curve_keys.PeerKeys(other.public, other.secret, mine.public)
    with learner(endpoint, mine) as inference, worker(endpoint, "w", pretender) as channel:
        inference.publish(1, weights(DISCRETE, 1))
        attempts = iter(range(10_000))
        remote = RemotePolicy(channel, SHAPES, PROOF)
        assert (
            remote.outputs(observations(1), lambda: not inference.status()["strangers"] and next(attempts) < 600)
            is None
        )
        assert inference.status()["questions"] == 0


def test_a_learner_that_cannot_share_its_weights_refuses_with_a_sentence(short_folder: Path) -> None:
    # Three versions of its 400 million weights exceed the limit of 2 GiB of shared memory.
    wide = from_mapping({"environment": "Pendulum-v1", "hidden": [20_000, 20_000], "remote_inference": True})
    endpoint = parse(f"ipc://{short_folder}")
    context = Context(
        *("r", "id", "l-0", "learner", 0, 1, endpoint, "", None, 1.0), environment="Pendulum-v1", settings=wide
    )
    plan = make_plan(wide, ObsSpace(3), ActionSpace(1))
    with pytest.raises(
        SetupError, match=r"remote_inference needs shared memory: memory of \d+ bytes is beyond the bounds"
    ):
        remote_inference(context, plan, "cpu", PolicyStore(1, ""), print)


def test_what_cannot_be_is_a_sentence(short_folder: Path) -> None:
    with pytest.raises(EndpointError, match="3 ports behind"):
        address_of(parse("tcp://127.0.0.1:65534"))
    missing_folder = parse(f"ipc://{short_folder}/none")
    with pytest.raises(EndpointError, match="cannot listen at"):
        AnswerChannel(missing_folder, 1000)
    settings = from_mapping(
        {"environment": "CartPole-v1", "algorithm": "impala", "remote_inference": True}
        | {"impala": {"sends_gradients": True}, "num_envs": 4, "segment_steps": 256}
    )
    with pytest.raises(ValueError, match="remote_inference works where"):
        make_plan(settings, ObsSpace(4), ActionSpace(1, (2,)))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_a_run_whose_workers_have_no_weights_survives_its_learner_with_exact_accounts(
    run: RunUnderTest, wait_until: Callable[..., Any], algorithm: str
) -> None:
    run.settings["remote_inference"] = True
    if algorithm == "ppo":
        run.settings |= {
            "environment": "CartPole-v1",
            "algorithm": "ppo",
            "hidden": [16],
            "ppo": {"batch_steps": 64, "minibatch_size": 64, "epochs": 1},
        }
    learner, workers = run.start("learner"), [run.start("worker", index) for index in range(2)]
    wait_until(lambda: learner.last("learner").get("updates", 0) > 20, "updates", log=learner)
    wait_until(lambda: "checkpoint ckpt-" in learner.text(), "a checkpoint", log=learner)
    assert learner.end(signal.SIGKILL) == -signal.SIGKILL
    before = learner.last("learner")
    successor = run.start("learner")
    wait_until(
        lambda: successor.last("learner").get("env_steps", 0) > before["env_steps"], "progress", log=successor
    )
    for process in workers:
        assert process.end() == contract.EXIT_DONE, process.text()
    wait_until(lambda: successor.last("learner")["workers"] == 0, "goodbyes", log=successor)
    assert successor.end() == contract.EXIT_DONE
    last = successor.last("learner")
    assert last["sent"] == last["accepted"] + last["refused"] + last["lost"] + last["missing"], last
    assert last["malformed"] == 0
    for process in run.started:
        assert "Traceback" not in process.text(), process.text()
    assert workers[0].last("worker")["policy_version"] > 0
