"""Evaluation: accuracy of the newest snapshot on the test images, in total and per class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.base import contract
from runtime.base.atomic_files import write_atomic
from runtime.base.errors import FailedError
from runtime.base.metrics import Console, record
from runtime.jobs.classify import network as net
from runtime.jobs.classify.rank_context import device_kind
from runtime.jobs.datasets import cifar
from runtime.rl.checkpoints.checkpoint_files import Checkpoints

RESULT: Final = "evaluation.json"
_AT_ONCE: Final = 500


def evaluate(data: Path | None, folder: Path, device: str, console: Console) -> int:
    """Print a table and a record, and write the record's values to the run's folder.

    Raises SetupError, FailedError and OSError with a sentence.
    """
    where = torch.device(device_kind(device))
    if not (folder / "checkpoints").is_dir():
        raise FailedError(f"{folder} holds no snapshot; `l2r-runtime classify train` makes some")
    checkpoint, _ = Checkpoints(folder / "checkpoints", keep=1, is_read_only=True).load()
    if checkpoint is None:
        raise FailedError(
            f"{folder / 'checkpoints'} holds no whole snapshot; `l2r-runtime classify train` makes some"
        )
    names = cifar.classes(data)
    network = net.Classifier(len(names)).to(where)
    try:
        net.load_network(network, checkpoint.tensors)
    except ValueError as error:
        raise FailedError(f"{checkpoint.name} does not fit the data in {data or 'the digits'}: {error}") from error
    labels, named = _predictions(network, cifar.testing(data), where)
    counts = np.bincount(labels, minlength=len(names))
    num_correct = np.bincount(labels[labels == named], minlength=len(names))
    accuracy = float(num_correct.sum() / counts.sum())
    per_class = {name: float(num_correct[n] / counts[n]) if counts[n] else None for n, name in enumerate(names)}
    fields = {
        "accuracy": accuracy,
        "samples": int(counts.sum()),
        "classes": per_class,
        "checkpoint": checkpoint.name,
        "step": checkpoint.facts.get("step"),
    }
    for line in _table(names, counts, num_correct):
        print(line)
    console.record(record("evaluation", fields))
    write_atomic(folder / RESULT, json.dumps(fields, indent=1).encode())
    return contract.EXIT_DONE


@torch.no_grad()
def _predictions(
    network: net.Classifier, pictures: cifar.Pictures, device: torch.device
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return labels and predictions of all images."""
    network.eval()
    labels, named = [], []
    for first in range(0, len(pictures), _AT_ONCE):
        pixels, classes = pictures.rows_at(np.arange(first, min(first + _AT_ONCE, len(pictures))))
        labels.append(classes)
        named.append(network(net.to_images(pixels, device)).argmax(dim=1).cpu().numpy())
    return np.concatenate(labels), np.concatenate(named)


def _table(names: tuple[str, ...], counts: NDArray[np.intp], num_correct: NDArray[np.intp]) -> list[str]:
    width = max(map(len, (*names, "class")))
    lines = [f"{'class':{width}}  pictures  right  accuracy"]
    rows = [*zip(names, counts, num_correct, strict=True), ("all", counts.sum(), num_correct.sum())]
    for name, count, hit in rows:
        share = f"{100 * hit / count:7.1f}%" if count else "       -"
        lines.append(f"{name:{width}}  {count:8d}  {hit:5d}  {share}")
    return lines
