"""Launcher variables of one process as one value (standard library only)."""

from __future__ import annotations

import math
import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from runtime.base import addresses, contract
from runtime.base.addresses import whole_number
from runtime.base.contract import MAX_TEXT
from runtime.base.errors import SetupError


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """All values that a process gets from its launcher, except training settings.

    Attributes:
        token: Shared secret of the run; empty for none. cpus: CPU cores for numerical threads.
        status: Address of the learner's HTTP status server, ``HOST:PORT``; empty for the default.
        joiners: Number of processes that may join this learner; 0 if unspecified.
        environment: Name of the trained environment, as reported to the learner; both must agree.
    """

    run: str
    run_id: str
    pod: str
    role: str
    index: int
    seed: int
    endpoint: addresses.Endpoint
    token: str = field(repr=False)
    folder: Path | None
    cpus: float
    keys_folder: Path | None = None
    status: str = ""
    joiners: int = 0
    environment: str = ""

    def learner_folder(self) -> Path:
        """Return the folder of a learner. Raises SetupError if it is not set, or if the learner is reachable
        without a token.
        """
        if self.folder is None:
            raise SetupError(f"{contract.ENV_DIR} is not set; it names the folder for checkpoints and records")
        if not self.token and not self.endpoint.is_private():
            raise SetupError(
                f"the endpoint {self.endpoint.data} can be reached from other machines and there is no token; "
                f"set {contract.ENV_TOKEN_FILE}, or listen at tcp://127.0.0.1 or ipc://"
            )
        return self.folder

    def status_address(self) -> tuple[str, int] | Path:
        """Return the address of the status server: the given one, or a local one derived from the sockets.

        Raises SetupError.
        """
        if self.status:
            host, _, port = self.status.rpartition(":")
            if not (host and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
                raise SetupError(f"{contract.ENV_STATUS} is {self.status!r}; it must be HOST:PORT")
            return host.strip("[]"), int(port)
        return (
            self.endpoint.folder / "status.sock" if self.endpoint.folder else ("127.0.0.1", self.endpoint.port + 2)
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], role: str, **fields: Any) -> Self:
        """Create the context from the launcher's variables; SetupError names a missing or invalid one.

        `fields` are values that no variable provides, by name.
        """
        if not environ.get(contract.ENV_ENDPOINT):
            raise SetupError(
                f"{contract.ENV_ENDPOINT} is not set; it says where the learner listens, for example "
                f"{contract.ENV_ENDPOINT}=ipc:///tmp/myrun or tcp://127.0.0.1:{contract.DATA_PORT}"
            )
        try:
            address = addresses.parse(environ[contract.ENV_ENDPOINT])
        except addresses.EndpointError as error:
            raise SetupError(f"{contract.ENV_ENDPOINT}: {error}") from error
        folder = environ.get(contract.ENV_DIR)
        run = _text(environ, contract.ENV_RUN, "run")
        return cls(
            run=run,
            run_id=_text(environ, contract.ENV_RUN_ID, run),
            pod=_text(environ, contract.ENV_POD, f"{role}-{os.getpid()}"),
            role=_text(environ, contract.ENV_ROLE, role),
            index=_index(environ),
            seed=whole_number(environ, contract.ENV_SEED),
            endpoint=address,
            token=read_token(environ.get(contract.ENV_TOKEN_FILE)),
            folder=Path(folder) if folder else None,
            cpus=_cpus(environ.get(contract.ENV_CPUS)),
            keys_folder=Path(environ[contract.ENV_KEYS]) if environ.get(contract.ENV_KEYS) else None,
            status=_text(environ, contract.ENV_STATUS, ""),
            joiners=whole_number(environ, contract.ENV_JOINERS),
            **fields,
        )


def _text(environ: Mapping[str, str], name: str, default: str) -> str:
    value = environ.get(name) or default
    if len(value) > MAX_TEXT or not value.isprintable():
        raise SetupError(f"{name} must be at most {MAX_TEXT} printable characters")
    return value


def _index(environ: Mapping[str, str]) -> int:
    """Return the replica's index, or a number that is probably unique among replicas."""
    # The pods of a ReplicaSet have no index, and seeds must differ between workers: use a hash of the pod's id.
    pod = environ.get(contract.ENV_POD_ID, "")
    if not environ.get(contract.ENV_INDEX) and pod:
        return zlib.crc32(pod.encode())
    return whole_number(environ, contract.ENV_INDEX)


def _cpus(value: str | None) -> float:
    try:
        cpus = float(value or 1)
    except ValueError:
        cpus = math.nan
    if not 0 < cpus < math.inf:
        raise SetupError(f"{contract.ENV_CPUS} is {value!r}; it must be a positive number of cores")
    return cpus


def read_token(path: str | None) -> str:
    """Return the token in a file; empty without a path. Raises SetupError."""
    if not path:
        return ""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{contract.ENV_TOKEN_FILE}: the token file {path} cannot be read: {error}") from error
    if not token or len(token) > MAX_TEXT or not token.isprintable():
        sentence = f"{contract.ENV_TOKEN_FILE}: the token in {path} must be one line of 1 to {MAX_TEXT} characters"
        raise SetupError(sentence)
    return token


def incarnation() -> int:
    """Return a number that no earlier start of this pod had: microseconds since the epoch."""
    # A counter in memory would restart with the process, and a learner treats a smaller number as an older process.
    return time.time_ns() // 1000
