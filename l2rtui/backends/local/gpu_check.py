"""Diagnosis of this machine's GPUs: models, driver, and whether torch in this Python can use them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

from l2rtui.backends.local.environment import clean_environ
from l2rtui.domain.node import Gpu
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.quantity import counted
from runtime.base import bounded_json

_TORCH_SECONDS = 60.0
"""Time limit of importing torch, which takes seconds from a cold disk."""
# is_available() initialises no context, so it takes no memory of a GPU that others use.
_PROGRAM = """
import json, torch
print(json.dumps([torch.__version__, torch.version.cuda or "", torch.cuda.is_available()]))
"""


def check_gpus(gpus: tuple[Gpu, ...], driver: str) -> Iterator[Finding]:
    """Yield the findings of a machine with GPUs. Starts Python with torch, which takes seconds."""
    models = ", ".join(f"{count} x {model}" for model, count in Counter(gpu.model for gpu in gpus).items())
    version = f"driver {driver}" if driver else "of a driver that tells no version"
    yield Finding(Severity.OK, "gpu", f"{counted(len(gpus), 'GPU')}: {models}, {version}")
    if (finding := torch_finding(_ask_torch())) is not None:
        yield finding


def torch_finding(answer: tuple[str, str, bool] | None) -> Finding | None:
    """Return the finding for torch's version, its CUDA version (or empty) and whether it finds a GPU."""
    if answer is None:  # without torch the training runtime is not installed, which has its own finding
        return None
    version, cuda, sees = answer
    if sees:
        return Finding(Severity.OK, "torch", f"torch {version} computes on GPUs")
    if not cuda:
        sentence = f"torch {version} is built without CUDA, so learners compute on the CPU"
        return Finding(Severity.WARNING, "torch", sentence, "Install a build for CUDA: see pytorch.org.")
    sentence = f"torch {version} finds no GPU, so learners compute on the CPU"
    hint = f"It is built for CUDA {cuda}: nvidia-smi shows up to which version the driver goes."
    return Finding(Severity.WARNING, "torch", sentence, hint)


def _ask_torch() -> tuple[str, str, bool] | None:
    """Query torch in a separate process; None if it cannot be imported or does not respond."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env=clean_environ(),
            capture_output=True,
            text=True,
            timeout=_TORCH_SECONDS,
            check=True,
        )
        version, cuda, sees = bounded_json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return str(version), str(cuda), bool(sees)
