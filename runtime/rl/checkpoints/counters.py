"""The learner's counters, and the journal that keeps them from falling when the learner is killed (stdlib only).

A checkpoint is up to half a minute old when a learner is killed, but workers and charts have seen newer numbers.
The journal is a small file that is replaced before any of them is shown or given out. After a kill the learner's
*state* is the checkpoint's, while its *counters* go on from the journal: policy versions are never given out
twice, and the updates that were lost are counted as lost. Env steps come back, since workers send again what the
checkpoint lacks.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from runtime.files import write_whole

JOURNAL: Final = "counters.json"


@dataclass(slots=True)
class Counters:
    """All of them only rise within a run. `updates` includes `lost_updates`, whose effect a kill undid."""

    epoch: int = 0
    """Of this learner process; milliseconds since the Unix epoch, so that it rises even if the journal is lost."""
    env_steps: int = 0
    updates: int = 0
    lost_updates: int = 0
    policy_version: int = 0

    @property
    def kept_updates(self) -> int:
        """Updates that are in the networks: what the pace of learning goes by."""
        return self.updates - self.lost_updates

    def facts(self) -> dict[str, int]:
        """Plain values for a file."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Counters:
        """Return the counters in a file. Raises ValueError if they are not in it."""
        names = [each.name for each in fields(cls)]
        if not all(type(facts.get(name)) is int for name in names):
            raise ValueError("the counters are not whole numbers")
        return cls(**{name: facts[name] for name in names})


def next_epoch(saved: Counters | None, journal: Counters, now_seconds: float) -> Counters:
    """Return the counters of a new learner process, from those of the checkpoint it resumes and of the journal."""
    saved = saved or Counters()
    updates = max(saved.updates, journal.updates)
    return Counters(
        epoch=max(saved.epoch, journal.epoch, int(now_seconds * 1000) - 1) + 1,
        env_steps=max(saved.env_steps, journal.env_steps),
        updates=updates,
        lost_updates=saved.lost_updates + updates - saved.updates,
        policy_version=max(saved.policy_version, journal.policy_version),
    )


def write_journal(folder: Path, counters: Counters) -> None:
    """Replace the journal. A disk that refuses is no reason to stop learning: the next checkpoint will say so."""
    with contextlib.suppress(OSError):
        write_whole(folder / JOURNAL, json.dumps(counters.facts()).encode(), durable=False)


def read_journal(folder: Path) -> Counters:
    """Return what the journal says, or zeros where there is none that can be read."""
    try:
        facts = json.loads((folder / JOURNAL).read_bytes())
        return Counters.from_facts(facts) if isinstance(facts, dict) else Counters()
    except (OSError, ValueError):
        return Counters()
