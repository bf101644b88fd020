"""Export to Weights & Biases: a run with the same id as ours, in a project, grouped by its experiment.

Its own settings name the destination: ``WANDB_MODE=offline`` writes a folder for ``wandb sync``; otherwise it needs
``WANDB_API_KEY`` or an earlier ``wandb login``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from l2rtui.domain.history.record import RunOutcome
from l2rtui.services.history.exports.tracked_run import TrackedRun
from runtime.base.trackers import STEP, TIME, WANDB_PROJECT, WANDB_QUIET


class WandbExport:
    """Writes runs to Weights & Biases.

    Args:
        wandb: The imported package.
        project: Project of all runs; empty for `WANDB_PROJECT`.
    """

    def __init__(self, wandb: Any, project: str) -> None:
        self._wandb = wandb
        self._project = project or WANDB_PROJECT
        self.place = f"project {self._project}"

    def put(self, run: TrackedRun) -> bool:
        """Write a run; if it was exported before, the service accepts only the missing steps."""
        copy = self._wandb.init(
            project=self._project,
            id=run.run_id,
            name=run.name,
            group=run.group,
            resume="allow",
            config={**run.parameters, "l2rtui": dict(run.tags)},
            settings=self._wandb.Settings(**WANDB_QUIET),
        )
        try:
            # W&B's own step must be an integer that rises with each call; charts use env steps through their
            # metric.
            copy.define_metric("*", step_metric=STEP)
            for point in run.points:
                copy.log({STEP: point.step, TIME: point.time, **point.figures}, step=point.step)
            copy.summary.update(dict(run.summary))
            for name, text in run.texts.items():
                file = Path(copy.dir) / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        finally:
            copy.finish(exit_code=int(run.state is RunOutcome.FAILED))
        return True
