"""Files that are not specs: programs, scripts of batch systems, files of other tools; each with the next step."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final

from l2rtui.errors import SpecError

_BATCH: Final = re.compile(rb"^#(SBATCH|PBS|BSUB|\$) ?-", re.MULTILINE)
"""Directives of Slurm, PBS, LSF and Grid Engine."""
_INTERPRETER: Final = re.compile(rb"#!\S*?(?:/env +)?(?:\S*/)?(python[\d.]*|bash|zsh|sh)\b")
_PROGRAMS: Final = {".py": "python", ".sh": "bash", ".bash": "bash", ".sbatch": "bash", ".slurm": "bash"}
"""Interpreters by the end of a file's name."""
_JOB: Final = "docs/from/other-tools.md shows a job before and after."
_Data = Mapping[str, Any]


def refuse_program(path: str, raw: bytes) -> None:
    """Raise SpecError if a file is a program or a script; its hint is a spec that runs it."""
    file = PurePath(path)
    shebang = _INTERPRETER.match(raw)
    interpreter = _PROGRAMS.get(file.suffix) or (shebang[1].decode() if shebang else "")
    if file.suffix == ".ipynb":
        hint = f"Write it as a program first: jupyter nbconvert --to script {path}"
        raise SpecError(f"{path} is a notebook, not a spec.", hint)
    is_batch, is_python = _BATCH.search(raw) is not None, interpreter.startswith("python")
    if not interpreter and not is_batch:
        return
    what = "a script of a batch system" if is_batch else "a Python program" if is_python else "a script"
    name = re.sub(r"[^a-z0-9]+", "-", file.stem.lower()).strip("-") or "run"
    command = f"[{'python' if is_python else 'bash'}, {file.name if path != '-' else 'FILE'}]"
    spec = f"{{kind: job, name: {name}, workdir: {{path: .}}, job: {{command: {command}, slots: 1}}}}"
    seeds = "; an array of it is --seeds 0-11, and L2R_SEED is the seed" if is_batch else ""
    raise SpecError(
        f"{path} is {what}, not a spec.", f"A spec that runs it: {spec}{seeds} (docs/guides/own-code.md)."
    )


_OTHERS: Final[tuple[tuple[str, Callable[[_Data], bool], str], ...]] = (
    (
        "a Docker Compose file",
        lambda data: isinstance(data.get("services"), dict),
        "Write each of its services as a set of a run (docs/kinds.md).",
    ),
    (
        "a SkyPilot task",
        lambda data: "run" in data and bool(data.keys() & {"resources", "setup", "num_nodes", "file_mounts"}),
        _JOB,
    ),
    (
        "a dstack configuration",
        lambda data: data.get("type") in ("task", "service", "dev-environment", "fleet", "volume", "gateway"),
        _JOB,
    ),
    (
        "a Weights & Biases sweep",
        lambda data: "method" in data and isinstance(data.get("parameters"), dict),
        "Write its parameters under `sweep:` of a spec (docs/sweeps.md).",
    ),
    (
        "a Ray cluster file",
        lambda data: "cluster_name" in data and bool(data.keys() & {"provider", "available_node_types"}),
        "A run uses the nodes of its backend: write a spec with a learner and workers (docs/kinds.md).",
    ),
    (
        "a configuration of Accelerate",
        lambda data: "compute_environment" in data,
        "Write `kind: elastic` with the program (docs/guides/elastic.md).",
    ),
    (
        "a Determined experiment",
        lambda data: "entrypoint" in data and "searcher" in data,
        "Write `kind: job`, and its hyperparameters under `sweep:` (docs/sweeps.md).",
    ),
    (
        "a configuration of Hydra",
        lambda data: isinstance(data.get("defaults"), list),
        "Write `kind: job` whose program reads it from its workdir (docs/guides/own-code.md).",
    ),
)
"""Files of other tools, the keys by which they are known, and the next step."""


def other_tool(path: str, data: _Data) -> SpecError | None:
    """Return the refusal of a file of another tool; None for any other mapping."""
    for what, is_of_tool, hint in _OTHERS:
        if is_of_tool(data):
            return SpecError(f"{path} is {what}, not a spec.", hint)
    return None
