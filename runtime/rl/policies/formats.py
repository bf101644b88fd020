"""Forms of an exported policy: how a module of torch is written to a file, and what a file of it answers."""

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

Arrays = Sequence[NDArray[Any]]
OUTPUTS: Final = ("action", "outputs")
_ONNX_NEEDS: Final = ("onnx", "onnxscript", "onnxruntime")


class FileFormat(Protocol):
    """One form."""

    def write(self, module: torch.nn.Module, inputs: Mapping[str, NDArray[Any]], path: Path) -> None:
        """Write a module that takes ``inputs`` by their order, with any number of rows. Raises OSError."""

    def run(self, path: Path, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return what the module in a file gives."""


class TorchScript:
    """A trace, which C++ and any torch load by ``torch.jit.load``."""

    def write(self, module: torch.nn.Module, inputs: Mapping[str, NDArray[Any]], path: Path) -> None:
        """Trace the module and save it."""
        with _quiet():
            torch.jit.trace(module, _tensors(inputs)).save(str(path))  # type: ignore[no-untyped-call]

    def run(self, path: Path, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return what the trace gives."""
        with _quiet():
            return _arrays(torch.jit.load(str(path))(*_tensors(inputs)))  # type: ignore[no-untyped-call]


class Onnx:
    """A graph of ONNX, for ONNX Runtime, TensorRT and others."""

    def __init__(self) -> None:
        """Raise SetupError where a package is missing."""
        if missing := [name for name in _ONNX_NEEDS if find_spec(name) is None]:
            raise SetupError(f"--to onnx needs {', '.join(missing)}: pip install 'l2rtui[policies]'")

    def write(self, module: torch.nn.Module, inputs: Mapping[str, NDArray[Any]], path: Path) -> None:
        """Convert the module and save it, its weights within."""
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
        """Return what ONNX Runtime gives on the CPU."""
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
    """Keep torch's notes to developers off the terminal: its deprecations, and libraries that it does not find."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
