"""Programs and files of other tools, given where a spec belongs: each is named, with the next step."""

from __future__ import annotations

import re

import pytest
import yaml

from l2rtui.errors import SpecError
from l2rtui.services.spec import spec_file

SLURM = "#!/bin/bash\n#SBATCH --array=0-11\nsrun python train.py\n"
PBS = "#!/bin/sh\n#PBS -l ngpus=1\npython train.py\n"
PYTHON = "import torch\n\n\ndef main():\n    x = {'a': 1}\n    return [x for x in x]\n"


def refusal(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    with pytest.raises(SpecError) as error:
        spec_file.load(str(path))
    return error.value


@pytest.mark.parametrize(
    ("name", "text", "what", "command"),
    [
        ("train.py", PYTHON, "a Python program", ["python", "train.py"]),
        ("My Train.py", 'print("hi")\n', "a Python program", ["python", "My Train.py"]),
        ("train", f"#!/usr/bin/env python3\n{PYTHON}", "a Python program", ["python", "train"]),
        ("run.sh", "python train.py\n", "a script", ["bash", "run.sh"]),
        ("run", "#!/bin/sh\npython train.py\n", "a script", ["bash", "run"]),
        ("job.sbatch", SLURM, "a script of a batch system", ["bash", "job.sbatch"]),
        ("job", PBS, "a script of a batch system", ["bash", "job"]),
    ],
)
def test_a_program_is_named_with_a_spec_that_runs_it(tmp_path, name, text, what, command):
    error = refusal(tmp_path, name, text)
    assert error.message.endswith(f" is {what}, not a spec.")
    spec = yaml.safe_load(re.search(r"\{.*\}", error.hint)[0])
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec), "utf-8")
    (part,) = spec_file.load(str(tmp_path / "spec.yaml")).spec.sets
    assert list(part.command) == command
    assert ("--seeds" in error.hint) == ("batch" in what)


@pytest.mark.parametrize(
    ("text", "what", "page"),
    [
        ("services: {web: {image: nginx}}", "a Docker Compose file", "docs/kinds.md"),
        ("resources: {accelerators: A100:1}\nrun: python t.py", "a SkyPilot task", "other-tools.md"),
        ("type: task\ncommands: [python t.py]", "a dstack configuration", "other-tools.md"),
        ("method: grid\nparameters: {lr: {values: [1, 2]}}", "a Weights & Biases sweep", "docs/sweeps.md"),
        ("cluster_name: c\nprovider: {type: aws}", "a Ray cluster file", "docs/kinds.md"),
        ("compute_environment: LOCAL_MACHINE", "a configuration of Accelerate", "elastic.md"),
        ("entrypoint: t.py\nsearcher: {name: grid}", "a Determined experiment", "docs/sweeps.md"),
        ("defaults: [env]\nseed: 1", "a configuration of Hydra", "own-code.md"),
    ],
)
def test_a_file_of_another_tool_is_named_with_the_next_step(tmp_path, text, what, page):
    error = refusal(tmp_path, "file.yaml", text)
    assert error.message.endswith(f" is {what}, not a spec.")
    assert page in error.hint


def test_a_notebook_is_to_be_written_as_a_program(tmp_path):
    assert "jupyter nbconvert" in refusal(tmp_path, "n.ipynb", '{"cells": []}').hint


def test_a_spec_that_begins_with_the_program_that_reads_it_is_a_spec(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("#!/usr/bin/env -S l2rtui launch -f\nkind: job\nname: a\njob: {command: [x]}\n", "utf-8")
    assert spec_file.load(str(path)).spec.name == "a"


def test_an_address_is_to_be_downloaded_first():
    with pytest.raises(SpecError) as error:
        spec_file.load("https://lab.example/run.yaml")
    assert error.value.hint == "Download it first: curl -LO https://lab.example/run.yaml"
