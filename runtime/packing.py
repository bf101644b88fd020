"""A learner's state as the arrays and facts of a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.accounts import Accounts
from runtime.algos.sac import SAC
from runtime.checkpoints import Checkpoint
from runtime.counters import Counters
from runtime.exchange import Holdings
from runtime.replay import TRANSITION_FIELDS, Replay

Arrays = dict[str, NDArray[Any]]


def pack(sac: SAC, counters: Counters, holdings: Holdings, replay_bytes: int) -> tuple[Arrays, dict[str, Any]]:
    """Return arrays and facts that `unpack` takes; experience beyond `replay_bytes` is cut at its old end."""
    arrays = {f"sac.{name}": tensor.numpy() for name, tensor in sac.state().items()}
    arrays |= {f"replay.{name}": array for name, array in _bounded(holdings.replay, replay_bytes).items()}
    facts = {"counters": {**counters.facts(), "env_steps": holdings.env_steps}, "accounts": holdings.accounts}
    return arrays, facts


def unpack(checkpoint: Checkpoint, sac: SAC, replay: Replay) -> tuple[Counters, Accounts]:
    """Put a checkpoint's state into `sac` and `replay` and return its counters and accounts.

    Raises ValueError with a sentence if it belongs to other settings.
    """
    import torch

    facts = checkpoint.facts
    counters, accounts = Counters.from_facts(facts["counters"]), Accounts.from_state(facts["accounts"])
    sac.load_state({name: torch.from_numpy(array) for name, array in _part(checkpoint.tensors, "sac.").items()})
    saved = _part(checkpoint.tensors, "replay.")
    if "generator" in saved:
        replay.load_state(saved)
    elif saved and len(saved["reward"]):
        obs, action, reward, next_obs, terminated = (saved[name] for name in TRANSITION_FIELDS)
        replay.extend(obs, action, reward, next_obs, terminated)
    return counters, accounts


def _part(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Arrays:
    # What a file reader gives may be read-only; torch wants to be able to write.
    return {name.removeprefix(prefix): np.array(each) for name, each in arrays.items() if name.startswith(prefix)}


def _bounded(state: Arrays, most_bytes: int) -> Arrays:
    """Return the whole state of a replay if it is small enough, or the columns of its newest transitions."""
    row_bytes = sum(state[name].nbytes for name in TRANSITION_FIELDS)
    count = len(state["reward"])
    if row_bytes <= most_bytes:
        return state
    rows = most_bytes * count // row_bytes
    inserted = int(state["inserted"])
    newest = np.arange(inserted - rows, inserted) % int(state["capacity"])
    return {name: state[name][newest] for name in TRANSITION_FIELDS}
