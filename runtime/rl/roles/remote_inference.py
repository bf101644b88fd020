"""Remote inference of a run: its process at the learner, and a worker's connection to it.

The process reads the learner's weights from shared memory and answers its workers. A learner starts it as
`l2r-runtime inference`; `runtime.exchange.inference.process` is the learner's side.

Small networks run in NumPy: torch's overhead per call exceeds their computation.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from signal import SIGKILL
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from runtime.base import bounded_json
from runtime.base.addresses import EndpointError, parse
from runtime.base.errors import FailedError, SetupError
from runtime.base.processes import signal_at_end_of
from runtime.exchange.inference.process import InferenceProcess, InferenceProgram, Lifeline
from runtime.exchange.inference.server import InferenceServer, PolicyNetwork
from runtime.exchange.inference.wire import (
    AnswerChannel,
    QuestionChannel,
    RemotePolicy,
    Shapes,
    address_of,
    proof_of,
)
from runtime.exchange.policy_store import PolicyStore
from runtime.exchange.protocol.messages import SharedWeights
from runtime.exchange.transport import curve_keys
from runtime.exchange.transport.curve_keys import LearnerKeys
from runtime.exchange.transport.shared_memory import SharedMemoryError, SharedWeightsReader
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.algos.plan import Plan
from runtime.rl.roles.launch_context import Context

REPORT_SECONDS: Final = 0.2
"""Interval at which the lifeline is checked and changed counts are reported."""


@dataclass(frozen=True, slots=True)
class NetworkSetup:
    """The network to evaluate, and its device."""

    shape: ActorShape
    device: str
    precision: str
    captures: bool
    """True to launch each batch as one CUDA graph."""
    threads: int
    max_rows: int
    """Maximum number of rows per question."""

    @property
    def shapes(self) -> Shapes:
        """Sizes of questions and answers."""
        return shapes_of(self.shape, self.max_rows)


@dataclass(frozen=True, slots=True)
class InferenceSetup:
    """Everything that the process gets from its learner; it reads no environment variables."""

    learner: int
    """Process id."""
    endpoint: str
    keys: LearnerKeys | None
    proof: bytes
    network: NetworkSetup
    path: tuple[str, ...]
    """Module search path: the folder of user-defined classes is not in Python's initial path."""
    weights: SharedWeights
    """Memory of the weights; its descriptor is open in this process under the same number."""


def shapes_of(shape: ActorShape, max_rows: int) -> Shapes:
    """Return the sizes of questions of up to `max_rows` rows and of their answers; both ends compute them."""
    return Shapes(shape.obs_space.dtype, shape.obs_dim, shape.answer_floats, max_rows)


def make_network(setup: NetworkSetup) -> PolicyNetwork:
    """Return the network for batches of questions: NumPy for vectors on a CPU, else torch.

    Raises ValueError if a user-defined network cannot be created here.
    """
    shape, shapes = setup.shape, setup.shapes
    if setup.device == "cpu" and not shape.images and shape.network is None:
        return NumpyPolicy(shape, shapes.batch_rows)
    from runtime.rl.algos.device_actor import DeviceActor, set_up_process
    from runtime.rl.device.accelerator import chosen_precision

    precision = chosen_precision(setup.precision, setup.device, has_images=bool(shape.images))
    set_up_process(setup.threads, precision)
    return DeviceActor(shape, setup.device, batch_sizes(shapes), precision=precision, captures=setup.captures)


def batch_sizes(shapes: Shapes) -> list[int]:
    """Return the row counts to which batches are rounded up: 1, 2, 3, 4, 6, 8, 12, … full questions."""
    # Two sizes per octave: at most a third of the computed rows is padding, and each size needs a graph.
    questions = chain.from_iterable((2**power, 3 * 2 ** (power - 1)) for power in range(1, 20))
    most = shapes.batch_questions
    return [shapes.max_rows * count for count in (*(count for count in (1, *questions) if count < most), most)]


def run() -> int:
    """Serve until the learner closes the lifeline, which is standard input; return the exit code."""
    lifeline = Lifeline()
    setup = bounded_json.decode(lifeline.setup(), InferenceSetup)
    # The kernel's signal is certain, even while this process is busy; the lifeline works on every system.
    signal_at_end_of(setup.learner, SIGKILL)
    sys.path.extend(folder for folder in setup.path if folder not in sys.path)
    try:
        network = make_network(setup.network)
        # Through the inherited descriptor: the system's settings may forbid opening another process's.
        reader = SharedWeightsReader(replace(setup.weights, pid=os.getpid()), setup.network.shape.size)
        shapes = setup.network.shapes
        with AnswerChannel(parse(setup.endpoint), shapes.question_bytes, setup.keys) as channel:
            server = InferenceServer(channel, network, shapes, setup.proof, reader)
            server.serve(_end_of(lifeline, server))
        reader.close()
    # Out of device memory is a RuntimeError in torch.
    except (EndpointError, FailedError, SharedMemoryError, RuntimeError, OSError, ValueError) as error:
        lifeline.report(problem=str(error).partition("\n")[0])
        return 1
    # A user-defined network: its author needs the traceback, which goes to the learner's log.
    except Exception as error:
        lifeline.report(problem=f"{type(error).__name__}: {error}".partition("\n")[0])
        raise
    return 0


def _end_of(lifeline: Lifeline, server: InferenceServer) -> Callable[[], bool]:
    """Return a function that reports counts, and returns whether the learner has closed the lifeline."""
    checked, reported = 0.0, server.counts()

    def is_over() -> bool:
        nonlocal checked, reported
        now = time.monotonic()
        if now - checked < REPORT_SECONDS:
            return False
        checked, counts = now, server.counts()
        if counts != reported:
            reported = counts
            lifeline.report(counts=counts)
        return lifeline.is_cut()

    return is_over


class NumpyPolicy:
    """Forward pass of `NumpyActor`, as a `PolicyNetwork` for remote inference."""

    def __init__(self, shape: ActorShape, most_rows: int) -> None:
        self._actor = NumpyActor(shape)
        self.weights: NDArray[np.float32] = self._actor.weights
        """(shape.size,) the actor's own array: written values take effect directly."""
        # np.empty reserves memory without touching it: only used rows cost memory.
        self.buffers: Sequence[NDArray[Any]] = [np.empty((most_rows, shape.obs_dim), shape.obs_space.dtype)]
        """(maximum rows, obs_dim) memory for the observations of a batch."""
        self._outputs: NDArray[np.float32] = np.zeros((0, shape.answer_floats), np.float32)

    def refresh(self) -> None:
        """Do nothing: the weights are used in place."""

    def begin(self, slot: int, count: int) -> None:
        """Compute the first ``count`` rows of ``buffers[slot]``."""
        self._outputs = self._actor.outputs(self.buffers[slot][:count])

    def finish(self, slot: int) -> NDArray[np.float32]:
        """Return the outputs (count, ``shape.answer_floats``)."""
        del slot  # there is only one
        return self._outputs


def remote_inference(
    context: Context, plan: Plan, device: str, policies: PolicyStore, say: Callable[[str], None]
) -> InferenceProcess:
    """Return the learner's server for workers without weights, not started yet.

    It is a process that reads the weights shared by `policies`. Raises EndpointError, and SetupError if memory
    cannot be shared.
    """
    endpoint, keys = context.endpoint, curve_keys.learner_keys(context)
    settings, proof = context.settings, _proof(context)
    network = NetworkSetup(
        shape=plan.shape,
        device=device,
        precision=settings.precision,
        captures=settings.cuda_graphs,
        threads=context.threads,
        max_rows=settings.num_envs,
    )
    address_of(endpoint)  # raises an address error here and not in the process
    try:
        weights = policies.share(plan.shape.size)
    except SharedMemoryError as error:
        raise SetupError(
            f"remote_inference needs shared memory: {error}; leave it out, so that workers have the policy"
        ) from error
    text = endpoint.data if endpoint.folder is None else f"ipc://{endpoint.folder}"
    setup = InferenceSetup(os.getpid(), text, keys, proof, network, tuple(sys.path), weights)
    argv = [sys.executable, "-m", "runtime", "inference"]
    return InferenceProcess(InferenceProgram(argv, msgspec.json.encode(setup), [weights.descriptor]), say)


def remote_policy(context: Context, plan: Plan, name: bytes) -> RemotePolicy:
    """Return a worker's connection to its learner's policy; `name` is the same as in the exchange."""
    shapes = shapes_of(plan.shape, context.settings.num_envs)
    channel = QuestionChannel(context.endpoint, name, shapes.answer_bytes, curve_keys.peer_keys(context))
    return RemotePolicy(channel, shapes, _proof(context))


def _proof(context: Context) -> bytes:
    """Return the 16 bytes that prove that a question belongs to this run."""
    return proof_of(context.token, context.run_id)
