"""Evaluation: how many of the test pictures the newest snapshot names rightly, in all and per class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from runtime import contract
from runtime.checkpoints import Checkpoints
from runtime.classify import network as net
from runtime.commands import FailedError
from runtime.datasets import cifar
from runtime.files import write_whole
from runtime.metrics import Console, record
from runtime.process import UsageError

RESULT: Final = "evaluation.json"
_AT_ONCE: Final = 500


def evaluate(data: Path | None, folder: Path, device: str, console: Console) -> int:
    """Print a table and a record, and keep the record's values in the run's folder.

    Raises UsageError, FailedError and OSError with a sentence.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda needs a GPU and a CUDA build of torch; neither is seen here")
    where = torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
    if not (folder / "checkpoints").is_dir():
        raise FailedError(f"{folder} holds no snapshot; `l2r-runtime classify train` makes some")
    found, _ = Checkpoints(folder / "checkpoints", keep=1_000_000).load()
    if found is None:
        raise FailedError(
            f"{folder / 'checkpoints'} holds no whole snapshot; `l2r-runtime classify train` makes some"
        )
    names = cifar.classes(data)
    network = net.Classifier(len(names)).to(where)
    try:
        net.load_network(network, found.tensors)
    except ValueError as error:
        raise FailedError(f"{found.name} does not fit the data in {data or 'the digits'}: {error}") from error
    right, named = _answers(network, cifar.testing(data), where)
    counts = np.bincount(right, minlength=len(names))
    hits = np.bincount(right[right == named], minlength=len(names))
    accuracy = float(hits.sum() / counts.sum())
    per_class = {name: float(hits[n] / counts[n]) if counts[n] else None for n, name in enumerate(names)}
    fields = {
        "accuracy": accuracy,
        "samples": int(counts.sum()),
        "classes": per_class,
        "checkpoint": found.name,
        "step": found.facts.get("step"),
    }
    for line in _table(names, counts, hits):
        print(line)
    console.record(record("evaluation", fields))
    write_whole(folder / RESULT, json.dumps(fields, indent=1).encode())
    return contract.EXIT_DONE


@torch.no_grad()
def _answers(
    network: net.Classifier, pictures: cifar.Pictures, device: torch.device
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the classes of all pictures, and what the network takes them for."""
    network.eval()
    right, named = [], []
    for first in range(0, len(pictures), _AT_ONCE):
        pixels, classes = pictures.take(np.arange(first, min(first + _AT_ONCE, len(pictures))))
        right.append(classes)
        named.append(network(net.to_images(pixels, device)).argmax(dim=1).cpu().numpy())
    return np.concatenate(right), np.concatenate(named)


def _table(names: tuple[str, ...], counts: NDArray[np.intp], hits: NDArray[np.intp]) -> list[str]:
    width = max(map(len, (*names, "class")))
    lines = [f"{'class':{width}}  pictures  right  accuracy"]
    rows = [*zip(names, counts, hits, strict=True), ("all", counts.sum(), hits.sum())]
    for name, count, hit in rows:
        share = f"{100 * hit / count:7.1f}%" if count else "       -"
        lines.append(f"{name:{width}}  {count:8d}  {hit:5d}  {share}")
    return lines
