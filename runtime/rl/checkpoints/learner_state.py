"""State of a learner to the arrays and facts of a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runtime.exchange.learner_server import ExchangeState
from runtime.exchange.machines.sequence_ledger import Accounts
from runtime.rl.checkpoints.checkpoint_files import Checkpoint
from runtime.rl.checkpoints.counters import Counters

if TYPE_CHECKING:
    from runtime.rl.algos.algorithm import Algorithm
    from runtime.rl.algos.plan import Store

Arrays = dict[str, NDArray[Any]]


def pack(
    method: Algorithm, counters: Counters, holdings: ExchangeState, env_steps: int
) -> tuple[Arrays, dict[str, Any]]:
    """Return arrays and facts that `unpack` takes; `env_steps` are those behind the holdings."""
    arrays = {f"method.{name}": tensor.numpy() for name, tensor in method.state().items()}
    arrays |= {f"experience.{name}": array for name, array in holdings.store.items()}
    facts = {"counters": {**counters.facts(), "env_steps": env_steps}, "accounts": holdings.accounts}
    return arrays, facts


def unpack(checkpoint: Checkpoint, method: Algorithm, store: Store) -> tuple[Counters, Accounts]:
    """Put a checkpoint's state into `method` and `store` and return its counters and accounts.

    Raises ValueError with a sentence if it belongs to other settings.
    """
    import torch

    facts = checkpoint.facts
    counters, accounts = Counters.from_facts(facts["counters"]), Accounts.from_state(facts["accounts"])
    saved = _part(checkpoint.tensors, "method.")
    method.load_state({name: torch.from_numpy(array) for name, array in saved.items()})
    store.load_state(_part(checkpoint.tensors, "experience."))
    return counters, accounts


def _part(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Arrays:
    # Arrays of a file reader may be read-only, and torch.from_numpy warns about those.
    return {name.removeprefix(prefix): np.array(array) for name, array in arrays.items() if name.startswith(prefix)}
