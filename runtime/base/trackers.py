"""Experiment trackers of a run's metrics, live from its learner or later from the history: names and defaults.

Both ways write the same run: its id is that of W&B's run, and the tag `RUN_ID_TAG` of MLflow's.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import MutableMapping
from types import MappingProxyType
from typing import Final

from runtime.base.errors import SetupError

WANDB_PROJECT: Final = "l2rtui"
"""Project of W&B where neither the user nor ``WANDB_PROJECT`` names one."""
WANDB_QUIET: Final = MappingProxyType(
    {"silent": True, "console": "off", "disable_git": True, "disable_code": True, "x_disable_stats": True}
)
STEP: Final = "env_steps"
TIME: Final = "time"
RUN_ID_TAG: Final = "l2rtui.run_id"
LIVE_TAG: Final = "l2rtui.live"
"""Tag of a run of MLflow that its learner writes; an export does not replace it."""
_QUIET: Final = MappingProxyType({"WANDB_SILENT": "true", "MLFLOW_DISABLE_TELEMETRY": "true"})


def set_quiet(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set defaults unless the user has: no output in between ours, and no telemetry about the records."""
    for name, value in _QUIET.items():
        environ.setdefault(name, value)


def check_installed(tracker: str | None) -> None:
    """Raise SetupError if the package of a tracker is missing in this Python."""
    if tracker is not None and importlib.util.find_spec(tracker) is None:
        raise SetupError(
            f"log_to: {tracker} is not installed where the learner runs (No module named '{tracker}'). "
            f"Install it into its environment or image, or for this run by `setup: [[pip, install, {tracker}]]`"
        )
