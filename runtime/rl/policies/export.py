"""`l2r-runtime export`: writes a checkpoint's policy to a file for other programs, and compares the two."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.base import contract
from runtime.base.errors import FailedError, SetupError
from runtime.rl.algos.actor import NumpyActor
from runtime.rl.checkpoints.saved_policy import open_run, say_aside
from runtime.rl.policies.formats import FORMATS, FileFormat
from runtime.rl.policies.portable import PortablePolicy
from runtime.rl.roles.launch_context import plan_of

TOLERANCE: Final = 1e-5
"""Largest allowed difference of an output; relative for outputs above 1."""
_ROWS: Final = 64
"""Number of observations that are compared."""


def export(checkpoint: str, form: str, path: Path, config: str) -> int:
    """Write the policy of `checkpoint` to `path`, compare both, print how well they agree, and return the exit
    code.

    Raises SetupError, SettingsError, OSError, and FailedError, with the file removed, if they do not agree.
    """
    file_format = FORMATS[form]()
    run = open_run(checkpoint, config, say_aside)
    plan = plan_of(run.settings)
    if plan.shape.memory is not None:
        raise SetupError(
            f"{run.checkpoint.name} is a policy with memory ({plan.shape.memory.kind}), which no form of file has "
            "yet: `l2r-runtime drive` drives it; train without the setting memory to export a policy"
        )
    if plan.shape.network is not None:
        raise SetupError(
            f"{run.checkpoint.name} is a policy with a network of your own ({plan.shape.network.name}), which "
            "is not exported: `l2r-runtime drive` drives it, and its weights stand in the checkpoint"
        )
    actor = NumpyActor(plan.shape)
    actor.load(run.weights(plan))
    difference = write_policy(actor, file_format, path)
    if not difference <= TOLERANCE:
        path.unlink()
        raise FailedError(
            f"{path}: the exported policy differs from the original by {difference:.2g}; it was removed"
        )
    shapes = ", ".join(f"{name} {list(array.shape[1:])}" for name, array in example_inputs(actor, 1).items())
    print(f"{path}: {form} of {run.checkpoint.name}, takes {shapes}; agrees with the policy to {difference:.2g}")
    return contract.EXIT_DONE


def write_policy(actor: NumpyActor, file_format: FileFormat, path: Path) -> float:
    """Write a policy and return the largest difference between its outputs and the file's."""
    inputs = example_inputs(actor, _ROWS)
    file_format.write(PortablePolicy(actor.shape, actor.weights), inputs, path)
    # Other rows, and another number of rows, than the file was created with.
    inputs = {name: array[: _ROWS // 2 + 1][::-1].copy() for name, array in inputs.items()}
    action, outputs = file_format.run(path, inputs)
    rows = _rows(actor, inputs)
    expected = actor.outputs(rows)
    difference = np.abs(outputs - expected) / np.maximum(1.0, np.abs(expected))
    if actor.shape.choices:  # a tie may be resolved either way
        return float(difference.max())
    return float(max(difference.max(), np.abs(action - actor.act(rows, None)).max()))


def example_inputs(actor: NumpyActor, count: int) -> dict[str, NDArray[Any]]:
    """Return random observations by the file's input names, with the same scale as in training."""
    rng, space = np.random.default_rng(0), actor.shape.obs_space
    inputs: dict[str, NDArray[Any]] = {}
    if space.vector:
        shift, scale = actor.moments if actor.shape.is_normalised else (np.float32(0.0), np.float32(1.0))
        noise = rng.standard_normal((count, space.vector), dtype=np.float32)
        inputs["vector"] = np.asarray(shift + noise / scale, dtype=np.float32)
    for number, image in enumerate(space.images):
        inputs[f"image_{number}"] = rng.integers(0, 256, (count, *image), dtype=np.uint8)
    return inputs


def _rows(actor: NumpyActor, inputs: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the observations' rows in a worker's format."""
    pictures = [array for name, array in inputs.items() if name != "vector"]
    count = len(next(iter(inputs.values())))
    vector = inputs.get("vector", np.zeros((count, 0), np.float32))
    return actor.shape.obs_space.pack(vector, pictures)
