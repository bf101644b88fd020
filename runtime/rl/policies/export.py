"""`l2r-runtime export`: writes a checkpoint's policy to a file for other programs, and compares the two."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.base import contract
from runtime.base.errors import FailedError, SetupError
from runtime.base.installation import install_hint
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.algos.networks import Network, dense_layers, encode_parts
from runtime.rl.checkpoints.saved_policy import open_run, say_aside
from runtime.rl.roles.launch_context import plan_of

Arrays = Sequence[NDArray[Any]]
OUTPUTS: Final = ("action", "outputs")
_ONNX_NEEDS: Final = ("onnx", "onnxscript", "onnxruntime")


class FileFormat(Protocol):
    """One file format."""

    def write(self, module: torch.nn.Module, inputs: Mapping[str, NDArray[Any]], path: Path) -> None:
        """Write a module that takes ``inputs`` in order, with any number of rows. Raises OSError."""

    def run(self, path: Path, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the outputs of the module in a file."""


class TorchScript:
    """A trace, which C++ and any torch can load with ``torch.jit.load``."""

    def write(self, module: torch.nn.Module, inputs: Mapping[str, NDArray[Any]], path: Path) -> None:
        """Trace the module and save it."""
        with _quiet():
            torch.jit.trace(module, _tensors(inputs)).save(str(path))  # type: ignore[no-untyped-call]

    def run(self, path: Path, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the outputs of the trace."""
        with _quiet():
            return _arrays(torch.jit.load(str(path))(*_tensors(inputs)))  # type: ignore[no-untyped-call]


class Onnx:
    """An ONNX graph, for ONNX Runtime, TensorRT and others."""

    def __init__(self) -> None:
        """Raise SetupError if a package is missing."""
        if missing := [name for name in _ONNX_NEEDS if find_spec(name) is None]:
            raise SetupError(f"--to onnx needs {', '.join(missing)}. {install_hint('policies')}")

    def write(self, module: torch.nn.Module, inputs: Mapping[str, NDArray[Any]], path: Path) -> None:
        """Convert the module and save it, including its weights."""
        with _quiet():
            torch.onnx.export(
                _program(module, inputs),
                f=path,
                input_names=list(inputs),
                output_names=OUTPUTS,
                dynamo=True,
                external_data=False,
                verbose=False,
            )

    def run(self, path: Path, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return ONNX Runtime's outputs on the CPU."""
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        outputs: Arrays = session.run(list(OUTPUTS), dict(inputs))
        return outputs


FORMATS: Final[Mapping[str, type[FileFormat]]] = {"onnx": Onnx, "torchscript": TorchScript}
"""Value of ``--to`` to the form."""


def _program(module: torch.nn.Module, inputs: Mapping[str, NDArray[Any]]) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch")
    # The module takes its inputs as one tuple of positional arguments.
    shapes = (tuple({0: batch} for _ in inputs),)
    return torch.export.export(module, _tensors(inputs), dynamic_shapes=shapes)


def _tensors(inputs: Mapping[str, NDArray[Any]]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(array) for array in inputs.values())


def _arrays(outputs: Sequence[torch.Tensor]) -> Arrays:
    return [np.asarray(output.numpy(force=True)) for output in outputs]


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide torch's messages for developers: deprecations, and libraries that it did not find."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


class PortablePolicy(torch.nn.Module):
    """Policy with the given weights, stored as buffers of the module.

    Inputs are the vector (B, vector) if there is one, then each image (B, height, width, channels) of bytes.
    """

    def __init__(self, shape: ActorShape, weights: NDArray[np.float32]) -> None:
        super().__init__()
        network = Network(shape, torch.Generator().manual_seed(0), "cpu")
        network.arena.flat.copy_(torch.from_numpy(weights[: shape.policy_size]))
        self._shape = shape
        self._count = len(shape.parts)
        for number, part in enumerate(network.arena.weights):
            self.register_buffer(f"part_{number}", part.detach().clone())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions (B, act_dim), and all numbers they are drawn from, (B, `ActorShape.answer_floats`)."""
        shape = self._shape
        parts = [self.get_buffer(f"part_{number}") for number in range(self._count)]
        count, end = len(shape.convolution_parts), len(shape.convolution_parts) + 2 * len(shape.layers)
        moments = parts[self._count - len(shape.moment_parts) :]
        vector, pictures = self._split(inputs)
        features = encode_parts(shape, parts[:count], vector, pictures, moments)
        dense = parts[count:end]
        out = dense_layers(shape, list(zip(dense[::2], dense[1::2], strict=True)), features)
        answer = torch.cat([out, parts[end].expand(out.shape[0], -1)], dim=1) if shape.draw_size else out
        if shape.head == "gaussian":
            return out, answer
        if shape.head == "deterministic":
            return out.tanh(), answer
        if shape.head == "squashed":
            return out[:, : shape.act_dim].tanh(), out
        groups = torch.split(out, list(shape.choices), dim=1)
        return torch.stack([logits.argmax(dim=1) for logits in groups], dim=1), answer

    def _split(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self._shape.obs_space.vector:
            return inputs[0], inputs[1:]
        return inputs[0].new_zeros((inputs[0].shape[0], 0), dtype=torch.float32), inputs


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
