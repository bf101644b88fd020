"""Plan of one node of an elastic job: its program, its limits, and its rendezvous (stdlib only)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from runtime.base import contract
from runtime.base.atomic_files import write_atomic
from runtime.rendezvous.plan import NodePlan


@dataclass(frozen=True, kw_only=True)
class ElasticPlan(NodePlan):
    """Configuration of one node; `processes` None means one process per GPU."""

    processes: int | None
    command: tuple[str, ...]
    folder: Path | None

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], *, set_name: str, run_id: str = "", **options: Any
    ) -> Self:
        """Return the plan from variables and `options`, which are fields by name. Raises SetupError."""
        folder = environ.get(contract.ENV_DIR)
        options["folder"] = Path(folder) if folder else None
        return super().from_environment(environ, set_name=set_name, run_id=run_id, **options)

    @property
    def marker(self) -> Path | None:
        """File that marks the end of the training, for nodes that start when even the rendezvous is gone."""
        name = "".join(char if char.isalnum() or char in "._-" else "_" for char in self.run_id)
        return self.folder / f"elastic-{name}.done" if self.folder else None

    def is_done(self) -> bool:
        """Return whether the training has ended."""
        return self.marker is not None and self.marker.exists()

    def mark_done(self) -> None:
        """Create the file, if the folder exists and is writable."""
        if self.marker is not None:
            with contextlib.suppress(OSError):
                self.marker.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(self.marker, b"")
