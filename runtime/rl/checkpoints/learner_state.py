"""A learner's state as the arrays and facts of a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runtime.accounts import Accounts
from runtime.checkpoints import Checkpoint
from runtime.counters import Counters
from runtime.exchange import Holdings

if TYPE_CHECKING:
    from runtime.algos.method import Method
    from runtime.algos.plan import Store

Arrays = dict[str, NDArray[Any]]


def pack(method: Method, counters: Counters, holdings: Holdings, env_steps: int) -> tuple[Arrays, dict[str, Any]]:
    """Return arrays and facts that `unpack` takes; `env_steps` are those behind the holdings."""
    arrays = {f"method.{name}": tensor.numpy() for name, tensor in method.state().items()}
    arrays |= {f"experience.{name}": array for name, array in holdings.store.items()}
    facts = {"counters": {**counters.facts(), "env_steps": env_steps}, "accounts": holdings.accounts}
    return arrays, facts


def unpack(checkpoint: Checkpoint, method: Method, store: Store) -> tuple[Counters, Accounts]:
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
    # What a file reader gives may be read-only; torch wants to be able to write.
    return {name.removeprefix(prefix): np.array(each) for name, each in arrays.items() if name.startswith(prefix)}
