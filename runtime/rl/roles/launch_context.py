"""Launcher's variables and training settings of a learner, worker or evaluator, and creation of its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from runtime.base import addresses, contract
from runtime.base.errors import SetupError
from runtime.base.launch_context import LaunchContext
from runtime.base.training import Settings, SettingsError, parse

if TYPE_CHECKING:
    from runtime.rl.algos.plan import Plan
    from runtime.rl.class_names import OwnNetwork
    from runtime.rl.envs.base import VectorEnv
    from runtime.rl.spaces import ObsSpace


@dataclass(frozen=True)
class Context(LaunchContext):
    """Launch context of a learner, worker or evaluator; ``nodes`` is the number of the learner's own processes."""

    settings: Settings = field(kw_only=True)
    nodes: int = field(default=1, kw_only=True)

    @property
    def threads(self) -> int:
        """Numerical threads of this process: the setting in a learner, otherwise one; never more than its cores."""
        threads = self.settings.threads if self.role == "learner" else 1
        return max(1, min(threads, int(self.cpus)))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], role: str, **fields: Any) -> Self:
        """Return the context from the launcher's variables. Raises SetupError, naming a missing or wrong one."""
        try:
            training = parse(environ.get(contract.ENV_CONFIG, ""))
        except SettingsError as error:
            raise SetupError(f"{contract.ENV_CONFIG}: {error}") from error
        nodes = addresses.num_replicas(environ, role) if role == "learner" else 1
        fields |= {"environment": training.environment, "settings": training, "nodes": nodes}
        return super().from_environment(environ, role, **fields)


THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Variables that limit the number of threads of numerical libraries."""


def bound_numeric_threads(context: Context) -> None:
    """Limit numerical libraries to the process's share of cores; they read the limit when they are imported.

    If each of N processes used every core of a machine, all of them would be very slow.
    """
    set_numeric_threads(context.threads)
    # Inductor's processes, which compile a step once: by default one per core of the machine.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, int(context.cpus))))


def bound_to_one_thread() -> None:
    """Limit numerical libraries to one thread, as in a worker; they read the limit when they are imported.

    Measured with four processes on two cores, products of (256, 784) and (784, 512): with two threads, which spin
    while they wait for each other, 2.5 gradients per second and process; with one thread, 60.
    """
    set_numeric_threads(1)


def set_numeric_threads(count: int) -> None:
    """Limit numerical libraries to `count` threads, which sleep while they wait; read when they are imported.

    By default OpenMP's threads spin for some milliseconds after each operation. If other processes use the cores,
    the spinning takes the time that the awaited thread needs: on two busy cores, convolutions made 3 steps per
    second with two spinning threads, and 17 to 20 with sleeping ones.
    """
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, str(count))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def keep_torch_defaults() -> None:
    """Undo what an environment's code has set for torch in the whole process: networks are computed in it, too."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    if threads := os.environ.get(THREAD_VARIABLES[0], ""):
        torch.set_num_threads(int(threads))


def ended_by_environment(name: str, ended: BaseException) -> str:
    """Return the sentence on an environment whose code has ended the process."""
    return (
        f"the environment's code ended the process ({name} raised {ended!r}); an environment ends an episode by "
        "terminated or truncated, and fails by an exception"
    )


def make_environment(training: Settings, num_envs: int, extra: Mapping[str, Any]) -> VectorEnv:
    """Create `num_envs` copies of the run's environment; `extra` overrides its options. Raises SetupError."""
    from runtime.rl.encoders.encoder import EncodedVectorEnv, EncoderSetting
    from runtime.rl.envs.base import HoldsCopies
    from runtime.rl.envs.registry import make_vector_env

    options = {**training.environment_options, **extra}
    try:
        encoding = EncoderSetting.of(training.encoder)
        try:
            env = make_vector_env(training.environment, num_envs, options=options)
        finally:
            keep_torch_defaults()
        if encoding is None or not encoding.is_frozen:
            return env
        try:
            return EncodedVectorEnv(env, encoding.load(env.obs_space.images), encoding.name)
        except ValueError:
            if isinstance(env, HoldsCopies):
                env.close()
            raise
    except (TypeError, ValueError) as error:
        raise SetupError(f"{contract.ENV_CONFIG}: {error}") from error


def environment_plan(training: Settings, env: VectorEnv) -> Plan:
    """Return networks, layouts and balance for the run's environment. Raises SetupError."""
    from runtime.rl.algos.plan import make_plan
    from runtime.rl.encoders.encoder import tuned_encoder

    try:
        layers = tuned_encoder(training.encoder, env.obs_space.images)
        return make_plan(training, env.obs_space, env.action_space, layers, network_of(training, env.obs_space))
    except ValueError as error:
        raise SetupError(f"{contract.ENV_CONFIG}: {error}") from error


def plan_of(training: Settings, tried: VectorEnv | None = None) -> Plan:
    """Work out networks, layouts and balance by one copy of the environment, which is closed. Raises SetupError.

    ``tried`` is a copy whose spaces are the run's; None to make one.
    """
    from runtime.rl.envs.base import closing_env

    if tried is not None:
        return environment_plan(training, tried)
    env = make_environment(training, 1, {})
    with closing_env(env, lambda: False):
        return environment_plan(training, env)


def network_of(training: Settings, obs: ObsSpace) -> OwnNetwork | None:
    """Return the user-defined network of the settings, or None. Raises ValueError if the class is not a network."""
    if training.network is None:
        return None
    # Imports torch, which a worker without such a network does not need.
    from runtime.rl.algos.own_network import own_network

    return own_network(training.network, obs)


def evaluation_options(training: Settings) -> Mapping[str, Any]:
    """Return the environment's options for evaluation: the settings', or the environment's own."""
    from runtime.rl.envs.registry import EVALUATION_OPTIONS

    if training.eval_options is not None:
        return training.eval_options
    return EVALUATION_OPTIONS.get(training.environment, {})
