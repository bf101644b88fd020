"""Who else is in the run: the addresses that a launcher gave the processes with stable names (stdlib only)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from runtime import contract, endpoint
from runtime.process import UsageError


@dataclass(frozen=True, slots=True)
class Peers:
    """Endpoints by set and index, as they are written in ``L2R_PEERS``."""

    sets: Mapping[str, tuple[str, ...]]

    def of(self, name: str) -> tuple[str, ...]:
        """Return the endpoints of a set. Raises UsageError if the run has no such set."""
        if name not in self.sets:
            there = ", ".join(sorted(self.sets)) or "none"
            raise UsageError(f"{contract.ENV_PEERS} has no set {name!r}; there are: {there}")
        return self.sets[name]

    def one(self, name: str, index: int) -> str:
        """Return the endpoint of one replica. Raises UsageError."""
        found = self.of(name)
        if not 0 <= index < len(found):
            raise UsageError(f"{contract.ENV_PEERS} has {len(found)} of {name!r}; there is no index {index}")
        return found[index]


def from_environment(environ: Mapping[str, str]) -> Peers:
    """Return the peers that the launcher's variable states. Raises UsageError."""
    text = environ.get(contract.ENV_PEERS)
    if not text:
        raise UsageError(
            f"{contract.ENV_PEERS} is not set; it says where the others listen, for example "
            f'{contract.ENV_PEERS}={{"ps":["tcp://127.0.0.1:{contract.PS_PORT}"]}}'
        )
    try:
        sets = json.loads(text)
        made = {str(name): tuple(addresses) for name, addresses in sets.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise UsageError(f"{contract.ENV_PEERS} must be a JSON object of lists of endpoints: {error}") from error
    for each in (address for addresses in made.values() for address in addresses):
        try:
            endpoint.parse(str(each))
        except endpoint.EndpointError as error:
            raise UsageError(f"{contract.ENV_PEERS}: {error}") from error
    return Peers(made)


def index(environ: Mapping[str, str]) -> int:
    """Return the index of this process in its set. Raises UsageError."""
    text = environ.get(contract.ENV_INDEX) or "0"
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{contract.ENV_INDEX} is {text!r}; it must be a whole number from 0")
    return int(text)
