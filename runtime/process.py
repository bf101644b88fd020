"""What this process is in its run: the launcher's variables as one value (stdlib only)."""

from __future__ import annotations

import math
import os
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from runtime import contract, endpoint, keys, settings
from runtime.messages import MAX_TEXT

if TYPE_CHECKING:
    from runtime.algos.plan import Plan
    from runtime.envs.base import VectorEnv


K = TypeVar("K")


class UsageError(Exception):
    """The process was started wrongly; the sentence names the variable and what it needs."""


class RefusedError(Exception):
    """The learner refused this process for good."""


class NotFiniteError(Exception):
    """The environment or the training gave numbers that are infinite or none; the sentence says which."""


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that a process gets from its launcher."""

    run: str
    run_id: str
    pod: str
    role: str
    index: int
    seed: int
    endpoint: endpoint.Endpoint
    token: str = field(repr=False)
    folder: Path | None
    cpus: float
    settings: settings.Settings
    keys_folder: Path | None = None
    status: str = ""
    joiners: int = 0
    """Of a learner: how many processes are to join it, as far as the launcher says."""

    def learner_folder(self) -> Path:
        """Return the folder of a learner. Raises UsageError if there is none, or if strangers could join it."""
        if self.folder is None:
            raise UsageError(f"{contract.ENV_DIR} is not set; it names the folder for checkpoints and records")
        if not self.token and not self.endpoint.is_private():
            raise UsageError(
                f"the endpoint {self.endpoint.data} can be reached from other machines and there is no token; "
                f"set {contract.ENV_TOKEN_FILE}, or listen at tcp://127.0.0.1 or ipc://"
            )
        return self.folder

    def learner_keys(self) -> keys.LearnerKeys | None:
        """Return what this learner proves itself with; None where nothing is encrypted. Raises UsageError."""
        if self.endpoint.folder is None and self.keys_folder is not None:
            return _read_keys(keys.read_learner, self.keys_folder)
        return None if self.endpoint.is_private() else keys.from_token(self.token)[0]

    def peer_keys(self) -> keys.PeerKeys | None:
        """Return what this process proves itself with to the learner; None where nothing is encrypted."""
        if self.endpoint.folder is None and self.keys_folder is not None:
            return _read_keys(keys.read_peer, self.keys_folder)
        if self.endpoint.is_private():
            return None
        if not self.token:
            raise UsageError(
                f"the learner at {self.endpoint.data} is on another machine and there is no token; "
                f"set {contract.ENV_TOKEN_FILE} to the run's token file"
            )
        return keys.from_token(self.token)[1]

    def status_address(self) -> tuple[str, int] | Path:
        """Return where this learner answers questions: as it was told, or beside its sockets for this machine only.

        Raises UsageError.
        """
        if self.status:
            host, _, port = self.status.rpartition(":")
            if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
                raise UsageError(f"{contract.ENV_STATUS} is {self.status!r}; it must be HOST:PORT")
            return host.strip("[]"), int(port)
        return (
            self.endpoint.folder / "status.sock" if self.endpoint.folder else ("127.0.0.1", self.endpoint.port + 2)
        )

    @property
    def threads(self) -> int:
        """Numerical threads of this process: the learner's setting, one elsewhere, never more than its cores."""
        wanted = self.settings.threads if self.role == "learner" else 1
        return max(1, min(wanted, int(self.cpus)))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], role: str) -> Context:
        """Return the context that the launcher's variables state; UsageError names a missing or wrong one."""
        if not environ.get(contract.ENV_ENDPOINT):
            raise UsageError(
                f"{contract.ENV_ENDPOINT} is not set; it says where the learner listens, for example "
                f"{contract.ENV_ENDPOINT}=ipc:///tmp/myrun or tcp://127.0.0.1:{contract.DATA_PORT}"
            )
        try:
            where = endpoint.parse(environ[contract.ENV_ENDPOINT])
            training = settings.parse(environ.get(contract.ENV_CONFIG, ""))
        except endpoint.EndpointError as error:
            raise UsageError(f"{contract.ENV_ENDPOINT}: {error}") from error
        except settings.SettingsError as error:
            raise UsageError(f"{contract.ENV_CONFIG}: {error}") from error
        folder = environ.get(contract.ENV_DIR)
        run = _text(environ, contract.ENV_RUN, "run")
        return cls(
            run=run,
            run_id=_text(environ, contract.ENV_RUN_ID, run),
            pod=_text(environ, contract.ENV_POD, f"{role}-{os.getpid()}"),
            role=_text(environ, contract.ENV_ROLE, role),
            index=_index(environ),
            seed=_integer(environ, contract.ENV_SEED),
            endpoint=where,
            token=read_token(environ.get(contract.ENV_TOKEN_FILE)),
            folder=Path(folder) if folder else None,
            cpus=_cpus(environ.get(contract.ENV_CPUS)),
            settings=training,
            keys_folder=Path(environ[contract.ENV_KEYS]) if environ.get(contract.ENV_KEYS) else None,
            status=_text(environ, contract.ENV_STATUS, ""),
            joiners=_integer(environ, contract.ENV_JOINERS),
        )


def _read_keys(read: Callable[[Path], K], folder: Path) -> K:
    try:
        return read(folder)
    except keys.KeysError as error:
        raise UsageError(f"{contract.ENV_KEYS}: {error}") from error


def _text(environ: Mapping[str, str], name: str, default: str) -> str:
    value = environ.get(name) or default
    if len(value) > MAX_TEXT or not value.isprintable():
        raise UsageError(f"{name} must be at most {MAX_TEXT} printable characters")
    return value


def _index(environ: Mapping[str, str]) -> int:
    """The replica's index, or a number that hardly any other replica has: seeds must differ between workers."""
    pod = environ.get(contract.ENV_POD_ID, "")
    if not environ.get(contract.ENV_INDEX) and pod:
        return zlib.crc32(pod.encode())
    return _integer(environ, contract.ENV_INDEX)


def _integer(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name) or "0"
    if not (value.isascii() and value.isdigit()):
        raise UsageError(f"{name} is {value!r}; it must be a whole number from 0")
    return int(value)


def _cpus(value: str | None) -> float:
    try:
        cpus = float(value or 1)
    except ValueError:
        cpus = math.nan
    if not 0 < cpus < math.inf:
        raise UsageError(f"{contract.ENV_CPUS} is {value!r}; it must be a positive number of cores")
    return cpus


def read_token(path: str | None) -> str:
    """Return the token in a file, empty if there is no file to read. Raises UsageError."""
    if not path:
        return ""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{contract.ENV_TOKEN_FILE}: the token file {path} cannot be read: {error}") from error
    if not token or len(token) > MAX_TEXT or not token.isprintable():
        raise UsageError(
            f"{contract.ENV_TOKEN_FILE}: the token in {path} must be one line of 1 to {MAX_TEXT} characters"
        )
    return token


_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def bound_numeric_threads(context: Context) -> None:
    """Keep numerical libraries to the process's share of cores; they read this when they are imported.

    A library that takes every core it sees makes a machine of N processes crawl.
    """
    for name in _THREAD_VARIABLES:
        os.environ.setdefault(name, str(context.threads))


def make_environment(training: settings.Settings, num_envs: int, extra: Mapping[str, Any]) -> VectorEnv:
    """Make `num_envs` copies of the run's environment, with `extra` over its options. Raises UsageError."""
    from runtime.envs.base import make_vector_env

    try:
        return make_vector_env(training.environment, num_envs, options={**training.environment_options, **extra})
    except (TypeError, ValueError) as error:
        raise UsageError(f"{contract.ENV_CONFIG}: {error}") from error


def environment_plan(training: settings.Settings, env: VectorEnv) -> Plan:
    """Work out networks, layouts and balance for the run's environment. Raises UsageError."""
    from runtime.algos.plan import make_plan

    try:
        return make_plan(training, env.obs_space, env.action_space)
    except ValueError as error:
        raise UsageError(f"{contract.ENV_CONFIG}: {error}") from error


def evaluation_options(training: settings.Settings) -> Mapping[str, Any]:
    """Return the options of the environment for evaluation: those of the settings, or the environment's own."""
    from runtime.envs.base import EVALUATION_OPTIONS

    if training.eval_options is not None:
        return training.eval_options
    return EVALUATION_OPTIONS.get(training.environment, {})


def incarnation() -> int:
    """Return a number that no earlier start of this pod had: microseconds since the epoch."""
    return time.time_ns() // 1000
