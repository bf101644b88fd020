"""Checkpoints of untrained policies, in the learner's format."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.base.training import from_mapping
from runtime.exchange.learner_server import ExchangeState
from runtime.exchange.machines.member_state import Accounts
from runtime.rl.algos.plan import Plan, build, make_store
from runtime.rl.checkpoints.checkpoint_files import Checkpoints
from runtime.rl.checkpoints.counters import Counters
from runtime.rl.checkpoints.learner_state import pack
from runtime.rl.roles.launch_context import environment_plan, make_environment

COUNTERS = Counters(epoch=1, env_steps=70, updates=9, lost_updates=0, policy_version=4)


def save_policy(folder: Path, training: dict[str, Any], seed: int = 3, **facts: Any) -> tuple[Plan, NDArray[Any]]:
    """Write a checkpoint to `folder` and return its plan and the policy's weights."""
    values = from_mapping(training)
    plan = environment_plan(values, make_environment(values, 1, {}))
    method, store = build(plan, seed, "cpu"), make_store(plan, values, seed)
    accounts = Accounts()
    holdings = ExchangeState(70, store.state(0), accounts.state(), accounts.last_seqs())
    arrays, own = pack(method, COUNTERS, holdings, 70)
    stated = {"settings": asdict(values), "made": {"seed": seed}, **facts}
    Checkpoints(folder, keep=1).save(9, 70, arrays, {**own, **stated})
    return plan, np.asarray(method.actor_arena())
