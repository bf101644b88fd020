"""Remote inference of a run: its process at the learner, and a worker's connection to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import msgspec

from runtime.base.errors import SetupError
from runtime.exchange.inference.process import InferenceProcess, InferenceProgram
from runtime.exchange.inference.wire import QuestionChannel, RemotePolicy, address_of, proof_of
from runtime.exchange.policy_store import PolicyStore
from runtime.exchange.transport import curve_keys
from runtime.exchange.transport.shared_memory import SharedMemoryError
from runtime.rl.algos.plan import Plan
from runtime.rl.roles.inference_process import InferenceSetup, NetworkSetup, shapes_of
from runtime.rl.roles.launch_context import Context


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
