"""Summary of a dataset, for `l2r-runtime dataset`."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from runtime.base import contract
from runtime.base.errors import SetupError
from runtime.rl.datasets.journal import dataset_files, open_episodes


def print_summary(options: argparse.Namespace) -> int:
    """Print a summary of recorded episodes in a folder and return the exit code. Raises SetupError if it has
    none.
    """
    figures = summary(options.folder)
    if options.json:
        print(json.dumps(figures))
        return contract.EXIT_DONE
    for name, value in figures.items():
        text = (
            "\n".join(value) if isinstance(value, list) else f"{value:.6g}" if isinstance(value, float) else value
        )
        print(f"{name:16} {text}")
    return contract.EXIT_DONE


def summary(folder: str) -> dict[str, Any]:
    """Return figures of all files in a folder; unreadable files are listed under `damaged`."""
    returns: list[float] = []
    steps: list[int] = []
    ended, damaged = 0, []
    environments: dict[str, None] = {}
    paths = dataset_files(folder)
    for path in paths:
        try:
            file = open_episodes(path)
            environments[file.facts.environment] = None
            for episode in file.read():
                returns.append(float(episode.reward.sum()))
                steps.append(len(episode))
                ended += episode.terminated
            file.close()
        except ValueError as error:
            damaged.append(str(error))
    if not returns:
        raise SetupError(f"no episode in {folder} can be read: {damaged[0]}")
    return {
        "environment": ", ".join(environments),
        "files": len(paths),
        "bytes": sum(path.stat().st_size for path in paths),
        "episodes": len(returns),
        "transitions": sum(steps),
        "terminated": ended,
        "mean_length": float(np.mean(steps)),
        "mean_return": float(np.mean(returns)),
        "return_min": min(returns),
        "return_max": max(returns),
        **({"damaged": damaged} if damaged else {}),
    }
