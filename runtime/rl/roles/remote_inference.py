"""Remote inference of a run: frame sizes and proof from its settings, and the worker's connection."""

from __future__ import annotations

from runtime.exchange.inference.client import RemotePolicy
from runtime.exchange.inference.messages import Shapes, proof_of
from runtime.exchange.inference.sockets import QuestionChannel
from runtime.exchange.transport import curve_keys
from runtime.rl.algos.plan import Plan
from runtime.rl.roles.launch_context import Context


def inference_shapes(context: Context, plan: Plan) -> Shapes:
    """Return the sizes of questions and answers, which both ends derive from the same settings."""
    shape = plan.shape
    return Shapes(shape.obs_space.dtype, shape.obs_dim, shape.answer_floats, context.settings.num_envs)


def inference_proof(context: Context) -> bytes:
    """Return the 16 bytes that show that a question belongs to this run."""
    return proof_of(context.token, context.run_id)


def remote_policy(context: Context, plan: Plan, name: bytes) -> RemotePolicy:
    """Return a worker's connection to the policy at its learner; `name` as in the exchange."""
    shapes = inference_shapes(context, plan)
    channel = QuestionChannel(context.endpoint, name, shapes.answer_bytes, curve_keys.peer_keys(context))
    return RemotePolicy(channel, shapes, inference_proof(context))
