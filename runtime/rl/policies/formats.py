"""File formats of an exported policy: writing a torch module to a file, and computing its outputs from the file."""

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

from runtime.base.errors import SetupError
from runtime.base.installation import install_hint

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
