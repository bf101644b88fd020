"""Counters of a learner, and the journal that keeps them from decreasing after a kill (standard library only).

When a learner is killed, its checkpoint may be half a minute old, but workers and charts have seen newer numbers.
The journal is a small file that is replaced before any of them is shown. After a kill the *state* of the learner is
the checkpoint's, while its *counters* continue from the journal: a policy version is never used twice, and updates
after the checkpoint count as lost. Env steps are not lost, because workers resend the segments that the checkpoint
does not contain.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from runtime.base import bounded_json
from runtime.base.atomic_files import write_atomic

JOURNAL: Final = "counters.json"


@dataclass(slots=True)
class Counters:
    """Counters that never decrease within a run. `updates` includes `lost_updates`, which a kill undid."""

    epoch: int = 0
    """Start of this learner process in milliseconds since 1970, so that it increases even without the journal."""
    env_steps: int = 0
    updates: int = 0
    lost_updates: int = 0
    policy_version: int = 0
    delay_steps: int = 0
    """Env steps by which updates stay behind their ratio: resumed learners collected these first."""

    @property
    def kept_updates(self) -> int:
        """Updates that the networks contain; the rate limiter uses this number."""
        return self.updates - self.lost_updates

    def facts(self) -> dict[str, int]:
        """Return the values for a JSON file."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Counters:
        """Return the counters of a file. Raises ValueError if one is missing or not an integer."""
        # Files of earlier versions do not have the delay.
        values = {
            item.name: facts.get(item.name, 0 if item.name == "delay_steps" else None) for item in fields(cls)
        }
        # By exact type: JSON's true is a bool, which isinstance would accept as an int.
        if not all(type(value) is int for value in values.values()):
            raise ValueError("the counters are not whole numbers")
        return cls(**values)


def next_epoch(saved: Counters | None, journal: Counters, now_seconds: float) -> Counters:
    """Return the counters of a new learner process, from its checkpoint (`saved`) and the journal."""
    saved = saved or Counters()
    updates = max(saved.updates, journal.updates)
    return Counters(
        epoch=max(saved.epoch, journal.epoch, int(now_seconds * 1000) - 1) + 1,
        env_steps=max(saved.env_steps, journal.env_steps),
        updates=updates,
        lost_updates=saved.lost_updates + updates - saved.updates,
        policy_version=max(saved.policy_version, journal.policy_version),
        delay_steps=saved.delay_steps,
    )


def write_journal(folder: Path, counters: Counters) -> None:
    """Replace the journal. A full disk does not stop learning here: the next checkpoint reports it."""
    with contextlib.suppress(OSError):
        write_atomic(folder / JOURNAL, json.dumps(counters.facts()).encode(), is_durable=False)


def read_journal(folder: Path) -> Counters:
    """Return the journal's counters; zeros if no journal can be read."""
    try:
        facts = bounded_json.loads((folder / JOURNAL).read_bytes())
        return Counters.from_facts(facts) if isinstance(facts, dict) else Counters()
    except (OSError, ValueError):
        return Counters()
