"""Rank of a parameter-server process, and the shards of the weights."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime.base import addresses as peers
from runtime.base import bounded_json, contract
from runtime.base.cli_options import run_folder
from runtime.base.errors import SetupError
from runtime.base.launch_context import LaunchContext
from runtime.base.metrics import Console
from runtime.exchange.protocol.segment_schema import Layout
from runtime.jobs.datasets import digits
from runtime.rl.algos.actor import ActorShape
from runtime.rl.buffers.rollout_buffer import gradient_layout


class LoggedConsole(Console):
    """Writes to standard output and to a file on the volume, which outlives the pod."""

    def __init__(self, path: Path, console: Console) -> None:
        super().__init__()
        self._console = console
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def record(self, line: str) -> None:
        """Print a metric record, and append it to the file."""
        self._console.record(line)
        self._keep(line)

    def say(self, sentence: str) -> None:
        """Print a sentence with the time of day, and append it to the file."""
        self._console.say(sentence)
        self._keep(sentence)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _keep(self, line: str) -> None:
        stamp = "" if line.startswith(contract.METRIC_PREFIX) else time.strftime("%H:%M:%S ")
        with contextlib.suppress(OSError):  # a full disk does not end training
            os.write(self._file, f"{stamp}{line}\n".encode())


SET: Final = "ps"
"""Name of the servers' set in `L2R_PEERS`."""
_CHOICES: Final = 10
_SMALLEST: Final = ActorShape(1, 1, (), "categorical", (1,))
"""The smallest possible network; the exchange requires one."""


@dataclass(frozen=True, slots=True)
class PsRank:
    """Context of one server or worker."""

    role: str
    index: int
    hyper: PsSettings
    servers: tuple[LaunchContext, ...]
    """Launch context for the exchange with each server."""
    folder: Path
    log: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], role: str, hyper: PsSettings) -> PsRank:
        """Return the rank from the launcher's variables. Raises SetupError."""
        addresses = peers.from_environment(environ).of_set(SET)
        index = peers.index(environ)
        if role == SET:
            peers.from_environment(environ).of_replica(SET, index)
        folder = run_folder(environ)
        plain = {name: value for name, value in environ.items() if name != contract.ENV_CONFIG}
        plain.setdefault(contract.ENV_POD, f"{role}-{index}")
        contexts = []
        for number, address in enumerate(addresses):
            context = LaunchContext.from_environment({**plain, contract.ENV_ENDPOINT: address}, "worker")
            shard = f"digits, shard {number} of {len(addresses)}"  # so that a wrong order of servers is rejected
            contexts.append(replace(context, environment=shard))
        logs = Path(environ.get("LOG_DIR") or folder)
        return cls(role, index, hyper, tuple(contexts), folder / f"ps-{index}", logs / f"{role}-{index}.log")

    def shape(self) -> ActorShape:
        """Return the network that is trained."""
        return ActorShape(digits.SIDE**2, 1, (self.hyper.hidden_units,), head="categorical", choices=(_CHOICES,))

    def shard(self, number: int) -> slice:
        """Return the part of the weights that a server stores."""
        # Equal parts of the flat weights; a shard may end in the middle of a layer, which does not matter to
        # servers.
        edges = np.linspace(0, self.shape().size, len(self.servers) + 1).astype(int)
        return slice(int(edges[number]), int(edges[number + 1]))

    def shard_shape(self, number: int) -> ActorShape:
        """Return a shape of the shard's size for the exchange; it is not used as a policy."""
        part = self.shard(number)
        others = part.stop - part.start - _SMALLEST.size
        return ActorShape(1, 1, (), "categorical", (1,), others=others)

    def layout(self, number: int) -> Layout:
        """Return the schema of a shard's gradient."""
        return gradient_layout(self.shard_shape(number).size)

    def first_weights(self) -> NDArray[np.float32]:
        """Return the initial weights. Every server draws all of them with the same seed and keeps its shard."""
        shape, rng = self.shape(), np.random.default_rng(self.hyper.seed)
        parts: list[NDArray[np.float32]] = []
        for part in shape.parts:
            bound = 1.0 / np.sqrt(part[0]) if len(part) > 1 else 0.0
            parts.append(rng.uniform(-bound, bound, part).astype(np.float32).ravel())
        return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class PsSettings:
    """Hyperparameters and length of a run."""

    batch_size: int = 20
    """Images per gradient."""
    learning_rate: float = 0.001
    """Step size of Adam."""
    train_steps: int = 200
    """Steps of each server, over all workers; 0 for no limit."""
    hidden_units: int = 128
    max_staleness: int = 8
    """Number of steps by which a gradient's weights may be older than the weights that it changes."""
    seed: int = 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> PsSettings:
        """Return the settings from the variables; unknown ones are for other programs. Raises SetupError."""
        try:
            overrides = bounded_json.loads(environ.get(contract.ENV_CONFIG) or "{}")
        except ValueError as error:
            raise SetupError(f"{contract.ENV_CONFIG} is no JSON: {error}") from error
        if not isinstance(overrides, dict):
            raise SetupError(f"{contract.ENV_CONFIG} must be a JSON object")
        overrides = {"seed": environ.get(contract.ENV_SEED) or 0, **overrides}
        values = {
            setting.name: _number(
                setting.name, overrides.get(setting.name, environ.get(setting.name.upper()) or setting.default)
            )
            for setting in fields(cls)
        }
        integers = {name: int(value) for name, value in values.items() if name != "learning_rate"}
        settings = cls(learning_rate=values["learning_rate"], **integers)
        if settings.learning_rate <= 0 or settings.batch_size < 1 or settings.hidden_units < 1:
            raise SetupError("batch_size, hidden_units and learning_rate must be above 0")
        return settings


def _number(name: str, value: object) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf or (name != "learning_rate" and number != int(number)):
        kind = "number" if name == "learning_rate" else "whole number"
        raise SetupError(f"{name} is {value!r}; it must be a {kind} from 0")
    return number
