"""Remote inference in a separate process: its answers, its end with the learner, and its restarts."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from runtime.base import contract
from runtime.base.addresses import parse
from runtime.base.errors import FailedError
from runtime.base.training import from_mapping
from runtime.exchange.inference import process as inference_process
from runtime.exchange.inference.process import InferenceProcess, InferenceProgram, Lifeline, how_it_ended
from runtime.exchange.inference.wire import QuestionChannel, RemotePolicy, proof_of
from runtime.exchange.policy_store import PolicyStore
from runtime.exchange.transport import curve_keys
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.roles.launch_context import environment_plan, make_environment
from runtime.rl.roles.remote_inference import InferenceSetup, NetworkSetup, batch_sizes, shapes_of
from tests.runtime.conftest import RunUnderTest

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="needs sealed memory files"),
]
SMALL = ActorShape(4, 1, (16,), head="categorical", choices=(3,), activation="tanh")
PICTURES = ActorShape(
    4 * 3 + 12 * 16 * 3, 2, (16,), head="gaussian", images=((12, 16, 3),), convolutions=((8, 4, 2), (8, 3, 1))
)
PROOF = proof_of("secret", "run-1")
ARGV = [sys.executable, "-m", "runtime", "inference"]


def weights(shape: ActorShape, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape.size, dtype=np.float32) * 0.3


def observations(shape: ActorShape, rows: int) -> Any:
    rng = np.random.default_rng(rows)
    vector = rng.standard_normal((rows, shape.obs_space.vector), dtype=np.float32)
    if not shape.images:
        return vector
    return shape.obs_space.pack(vector, [rng.integers(0, 256, (rows, *shape.images[0]), dtype=np.uint8)])


class LearnerUnderTest:
    """Weights in shared memory, the process that reads them, and the learner's messages about it."""

    def __init__(self, endpoint: str, shape: ActorShape, keys: curve_keys.LearnerKeys | None = None) -> None:
        self.sentences: list[str] = []
        self.shape = shape
        self.policies = PolicyStore(epoch=1, token="secret")
        shared = self.policies.share(shape.size)
        network = NetworkSetup(shape, "cpu", "float32", captures=True, threads=1, max_rows=8)
        setup = InferenceSetup(os.getpid(), endpoint, keys, PROOF, network, (), shared)
        program = InferenceProgram(ARGV, msgspec.json.encode(setup), [shared.descriptor])
        self.inference = InferenceProcess(program, self.sentences.append)

    def publish(self, version: int) -> None:
        self.policies.publish(version, weights(self.shape, version))

    def child(self) -> psutil.Process | None:
        return inference_child(psutil.Process())


@contextmanager
def learner(
    endpoint: str, shape: ActorShape = SMALL, keys: curve_keys.LearnerKeys | None = None
) -> Iterator[LearnerUnderTest]:
    made = LearnerUnderTest(endpoint, shape, keys)
    made.inference.start()
    try:
        yield made
    finally:
        made.inference.close()
        made.policies.close()


def remote(endpoint: str, shape: ActorShape, keys: curve_keys.PeerKeys | None = None) -> RemotePolicy:
    shapes = shapes_of(shape, 8)
    return RemotePolicy(QuestionChannel(parse(endpoint), b"w", shapes.answer_bytes, keys), shapes, PROOF)


@pytest.mark.parametrize("shape", [SMALL, PICTURES])
def test_answers_are_those_of_the_newest_weights_and_name_their_version(
    short_folder: Path, no_leaks: None, shape: ActorShape, wait_until: Callable[..., Any]
) -> None:
    endpoint = f"ipc://{short_folder}"
    actor = NumpyActor(shape)
    with learner(endpoint, shape) as ours, remote(endpoint, shape) as policy:
        for version in (1, 2, 7):
            ours.publish(version)
            actor.load(weights(shape, version))
            for rows in (1, 3, 8):
                obs = observations(shape, rows)
                answer = policy.outputs(obs, lambda: True)
                assert answer is not None
                assert answer[1] == version
                assert answer[0] == pytest.approx(actor.outputs(obs), abs=1e-4)
        counts = wait_until(
            lambda: (status := ours.inference.status())["questions"] == 9 and status, "the counts of nine questions"
        )
        assert counts["rows"] == 36
        assert counts["restarts"] == counts["foreign"] == counts["strangers"] == 0
        assert not ours.sentences


def test_a_process_that_is_killed_is_started_again_and_said(
    short_folder: Path, no_leaks: None, wait_until: Callable[..., Any]
) -> None:
    endpoint = f"ipc://{short_folder}"
    with learner(endpoint) as ours, remote(endpoint, SMALL) as policy:
        ours.publish(1)
        obs = observations(SMALL, 2)
        first = policy.outputs(obs, lambda: True)
        wait_until(lambda: ours.inference.status()["questions"], "a count")
        child = ours.child()
        assert child is not None
        child.kill()
        ours.publish(2)
        wait_until(lambda: ours.sentences, "a sentence")
        second = policy.outputs(obs, lambda: True)
        assert first is not None
        assert second is not None
        assert (first[1], second[1]) == (1, 2)
        assert "was ended by SIGKILL; it is started again" in ours.sentences[0]
        # The counts of the first process are kept.
        status = wait_until(
            lambda: (counts := ours.inference.status())["questions"] > 1 and counts, "counts of both processes"
        )
        assert status["restarts"] == 1
        ours.inference.check()


def test_keys_reach_the_process_and_are_in_none_of_its_arguments_or_variables(no_leaks: None) -> None:
    from tests.fakes.faults import free_port

    endpoint = f"tcp://127.0.0.1:{free_port()}"
    mine, theirs = curve_keys.from_token("secret")
    with learner(endpoint, SMALL, mine) as ours, remote(endpoint, SMALL, theirs) as policy:
        ours.publish(1)
        assert policy.outputs(observations(SMALL, 1), lambda: True) is not None
        child = ours.child()
        assert child is not None
        visible = " ".join([*child.cmdline(), *child.environ().values()])
        assert mine.secret.decode() not in visible
        assert theirs.secret.decode() not in visible


def test_a_process_that_cannot_start_ends_the_learner_with_its_own_words(
    short_folder: Path, no_leaks: None, wait_until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference_process, "FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(inference_process, "MAX_FAILURES", 2)

    def error(ours: LearnerUnderTest) -> str:
        try:
            ours.inference.check()
        except FailedError as problem:
            return str(problem)
        return ""

    with learner(f"ipc://{short_folder}/none") as ours:
        problem = wait_until(lambda: error(ours), "the learner's end")
    assert "gave no answer in 2 starts: failed: the learner cannot listen at" in problem
    program = InferenceProgram([f"{short_folder}/missing"], b"{}")
    absent = InferenceProcess(program, lambda _: None)
    absent.start()
    try:
        assert "could not be started: " in wait_until(lambda: _error(absent), "the end of a missing program")
    finally:
        absent.close()


PICKY = """
import torch

class Picky(torch.nn.Module):
    size = 4

    def __init__(self, vector, images):
        super().__init__()
        self.layer = torch.nn.Linear(vector, self.size)

    def forward(self, vector, pictures):
        if vector.max() > 1:
            raise KeyError("no such layer")
        return self.layer(vector)
"""


@pytest.mark.slow
def test_a_network_that_fails_on_each_observation_ends_the_learner(
    short_folder: Path, no_leaks: None, wait_until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference_process, "FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(inference_process, "MAX_FAILURES", 2)
    (short_folder / "picky.py").write_text(PICKY)
    monkeypatch.syspath_prepend(str(short_folder))
    monkeypatch.setenv("PYTHONPATH", str(short_folder), prepend=":")
    training = from_mapping({"environment": "CartPole-v1", "algorithm": "ppo", "network": "picky:Picky"})
    shape = environment_plan(training, make_environment(training, 1, {})).shape
    endpoint = f"ipc://{short_folder}"
    with learner(endpoint, shape) as ours, remote(endpoint, shape) as policy:
        ours.publish(1)
        assert policy.outputs(np.zeros((1, 4), np.float32), lambda: True) is not None
        wait_until(lambda: ours.inference.status()["batches"], "the count of the answer")
        policy.outputs(np.full((1, 4), 2, np.float32), lambda: not _error(ours.inference))
        problem = _error(ours.inference)
    # Killed repeatedly, only its first start was useful.
    assert ours.inference.status()["restarts"] == 2
    assert problem == "remote inference gave no answer in 2 starts: failed: KeyError: 'no such layer'"


def _error(inference: InferenceProcess) -> str:
    try:
        inference.check()
    except FailedError as problem:
        return str(problem)
    return ""


def test_closing_ends_a_process_that_was_stopped(
    short_folder: Path, no_leaks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference_process, "CLOSE_SECONDS", 0.5)
    endpoint = f"ipc://{short_folder}"
    with learner(endpoint) as ours, remote(endpoint, SMALL) as policy:
        ours.publish(1)
        assert policy.outputs(observations(SMALL, 1), lambda: True) is not None
        child = ours.child()
        assert child is not None
        child.suspend()
    assert not psutil.wait_procs([child], 10.0)[1]  # killed, and collected a moment later


def inference_child(process: psutil.Process) -> psutil.Process | None:
    """Return the process of remote inference.

    There are others: of a learner that tries its environment, and the fork server of the tests.
    """
    for child in process.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie, too
            if "inference" in child.cmdline():
                return child
    return None


def test_a_learner_that_is_killed_takes_the_process_along(
    run: RunUnderTest, wait_until: Callable[..., Any]
) -> None:
    run.settings["remote_inference"] = True
    started = run.start("learner")
    process = psutil.Process(started.process.pid)
    child = wait_until(lambda: inference_child(process), "the process of remote inference", log=started)
    assert child.environ()[contract.ENV_RUN_ID] == "test-1"  # a launcher finds it by this
    assert started.end(signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "its end")


def test_a_learner_that_is_asked_to_end_takes_the_process_along_in_order(
    run: RunUnderTest, wait_until: Callable[..., Any]
) -> None:
    run.settings["remote_inference"] = True
    started = run.start("learner")
    (child,) = wait_until(psutil.Process(started.process.pid).children, "the process", log=started)
    wait_until(lambda: "inference" in child.cmdline(), "its program", log=started)
    # A signal to the learner's group does not reach the child, at any moment of its start.
    assert os.getpgid(child.pid) != os.getpgid(started.process.pid)
    assert started.end(signal.SIGTERM) == contract.EXIT_DONE
    assert not child.is_running()
    assert "started again" not in started.text()


def test_the_end_of_a_process_is_said_in_words() -> None:
    assert how_it_ended(3) == "ended with code 3"
    assert how_it_ended(-9) == "was ended by SIGKILL"
    assert how_it_ended(-250) == "was ended by signal 250"


def test_sizes_of_batches_rise_to_the_most_that_may_be_asked() -> None:
    shapes = shapes_of(PICTURES, 16)
    sizes = batch_sizes(shapes)
    assert sizes[:6] == [16, 32, 48, 64, 96, 128]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == shapes.batch_rows
    huge = shapes_of(ActorShape(10**8, 2, (4,)), 1)
    assert batch_sizes(huge) == [1]


def test_a_lifeline_tells_its_two_ends_of_each_other() -> None:
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = Lifeline(theirs.fileno())
        ours.sendall(b"setup\n")
        assert line.setup() == b"setup"
        assert not line.is_cut()
        line.report(counts={"rows": 1})
        assert ours.recv(100) == b'{"counts": {"rows": 1}}\n'
        ours.shutdown(socket.SHUT_WR)
        assert line.is_cut()
    line.report(counts={})  # no reader: not an error
    line.close()
