"""What one process of a parameter-server run is, and how the weights lie on the servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime import contract, peers
from runtime.algos.actor import ActorShape
from runtime.commands import run_folder
from runtime.datasets import digits
from runtime.gradients import gradient_layout
from runtime.layout import Layout
from runtime.process import Context
from runtime.ps.hyper import Hyper
from runtime.settings import Settings

SET: Final = "ps"
"""The set of `L2R_PEERS` that the servers are."""
_CHOICES: Final = 10
_LEAST: Final = ActorShape(1, 1, (), "categorical", (1,))
"""The smallest network there is; the exchange wants one."""


@dataclass(frozen=True, slots=True)
class Place:
    """One server or worker."""

    role: str
    index: int
    hyper: Hyper
    servers: tuple[Context, ...]
    """This process's view of each server: what it says there, and where that is."""
    folder: Path
    log: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], role: str, hyper: Hyper) -> Place:
        """Return the place that the launcher's variables state. Raises UsageError."""
        addresses = peers.from_environment(environ).of(SET)
        index = peers.index(environ)
        if role == SET:
            peers.from_environment(environ).one(SET, index)
        folder = run_folder(environ)
        plain = {name: value for name, value in environ.items() if name != contract.ENV_CONFIG}
        plain.setdefault(contract.ENV_POD, f"{role}-{index}")
        contexts = []
        for number, address in enumerate(addresses):
            context = Context.from_environment({**plain, contract.ENV_ENDPOINT: address}, "worker")
            shard = f"digits, shard {number} of {len(addresses)}"  # a wrong order of servers is found by this
            contexts.append(replace(context, settings=Settings(environment=shard, algorithm="sgd")))
        logs = Path(environ.get("LOG_DIR") or folder)
        return cls(role, index, hyper, tuple(contexts), folder / f"ps-{index}", logs / f"{role}-{index}.log")

    def shape(self) -> ActorShape:
        """Return the network that is trained."""
        return ActorShape(digits.SIDE**2, 1, (self.hyper.hidden_units,), head="categorical", choices=(_CHOICES,))

    def shard(self, number: int) -> slice:
        """Return the part of the weights that lies on a server."""
        edges = np.linspace(0, self.shape().size, len(self.servers) + 1).astype(int)
        return slice(int(edges[number]), int(edges[number + 1]))

    def shard_shape(self, number: int) -> ActorShape:
        """Return what the exchange is told of a shard: so many weights, which nobody acts by."""
        part = self.shard(number)
        others = part.stop - part.start - _LEAST.size
        return ActorShape(1, 1, (), "categorical", (1,), others=others)

    def layout(self, number: int) -> Layout:
        """Return how a gradient of a shard lies in memory."""
        return gradient_layout(self.shard_shape(number).size)

    def first_weights(self) -> NDArray[np.float32]:
        """Return the weights that training begins with; every server draws all and keeps its own."""
        shape, rng = self.shape(), np.random.default_rng(self.hyper.seed)
        parts: list[NDArray[np.float32]] = []
        for part in shape.parts:
            bound = 1.0 / np.sqrt(part[0]) if len(part) > 1 else 0.0
            parts.append(rng.uniform(-bound, bound, part).astype(np.float32).ravel())
        return np.concatenate(parts)
