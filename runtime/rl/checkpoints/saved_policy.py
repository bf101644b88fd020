"""Policy of a checkpoint: its settings, their environment, and its weights."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors
from numpy.typing import NDArray

from runtime.base import contract
from runtime.base.checkpoint_manifest import ARRAYS_SUFFIX, MANIFEST_SUFFIX
from runtime.base.errors import SetupError
from runtime.base.object_store import open_store
from runtime.base.training import Settings, from_mapping, read_object
from runtime.rl.algos.plan import Plan, build
from runtime.rl.checkpoints.checkpoint_files import Checkpoint, Checkpoints, bring_newest
from runtime.rl.checkpoints.learner_state import method_state

_FOLDER: Final = "checkpoints"
"""Folder of the checkpoints within a run's folder."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A checkpoint, and the settings of the run that wrote it."""

    checkpoint: Checkpoint
    settings: Settings

    @property
    def made(self) -> Mapping[str, Any]:
        """Facts about its creation: run, seed, time, evaluation; empty if its writer did not record them."""
        facts: Mapping[str, Any] = self.checkpoint.facts.get("made", {})
        return facts

    @property
    def seed(self) -> int:
        """Seed of the run; 0 if the checkpoint does not contain it."""
        seed = self.made.get("seed", 0)
        return seed if type(seed) is int else 0

    def weights(self, plan: Plan) -> NDArray[np.float32]:
        """Return the policy's weights, in the layout of `ActorShape.parts`.

        Raises SetupError if the checkpoint belongs to other settings.
        """
        # Through the algorithm: a policy may share parts with a critic, and each method names its own tensors.
        method = build(plan, 0, "cpu", capture=False)
        try:
            method.load_state(method_state(self.checkpoint))
        except ValueError as error:
            raise SetupError(
                f"{self.checkpoint.name} does not fit the settings: {error}; set {contract.ENV_CONFIG} to those of "
                "its run"
            ) from error
        return method.actor_arena()


def open_run(place: str, config: str, say: Say) -> SavedRun:
    """Return the newest undamaged checkpoint of `place`; `config`, a JSON object, overrides its run's settings.

    `place` is a checkpoint file, a folder of checkpoints or of a run, or the URL of a bucket. Raises SetupError and
    OSError with a sentence, and SettingsError for `config`.
    """
    over = read_object(config)
    checkpoint = _open(place, say)
    saved = checkpoint.facts.get("settings")
    if saved is None and not over:
        raise SetupError(
            f"{checkpoint.name} does not contain the settings of its training; set {contract.ENV_CONFIG} to those "
            "of its run"
        )
    declared_names = {declared.name for declared in fields(Settings)}
    # Ignore settings of later versions: differences in the networks show in their shapes.
    own = {name: value for name, value in (saved or {}).items() if name in declared_names}
    return SavedRun(checkpoint, from_mapping({**own, **over}))


def _open(place: str, say: Say) -> Checkpoint:
    if "://" in place:
        with tempfile.TemporaryDirectory(prefix="l2r-policy-") as folder:
            bring_newest(open_store(place), Path(folder), say)
            return _newest(Path(folder), place)
    path = Path(place)
    if path.is_dir():
        return _newest(path / _FOLDER if (path / _FOLDER).is_dir() else path, place)
    if path.suffix not in (ARRAYS_SUFFIX, MANIFEST_SUFFIX):
        raise SetupError(
            f"{place} is not a checkpoint: name its {MANIFEST_SUFFIX} or {ARRAYS_SUFFIX}, or a run's folder"
        )
    try:
        return Checkpoints(path.parent, 1, is_read_only=True).read(path.stem)
    except FileNotFoundError as error:
        raise SetupError(f"there is no checkpoint {place}: {error.filename} is missing") from error
    except (ValueError, safetensors.SafetensorError) as error:
        raise SetupError(f"the checkpoint {place} is damaged: {error}") from error


def _newest(folder: Path, place: str) -> Checkpoint:
    checkpoint, _ = Checkpoints(folder, 1, is_read_only=True).load()
    if checkpoint is None:
        raise SetupError(f"there is no complete checkpoint in {place}")
    return checkpoint


def say_aside(sentence: str) -> None:
    """Print a sentence to stderr, separately from the results."""
    print(sentence, file=sys.stderr)
