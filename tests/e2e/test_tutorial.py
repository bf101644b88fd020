"""The commands of two pages, as a reader types them, one after the other on this machine."""

from __future__ import annotations

import sys

import pytest

from tests.documents import DOCS, Reader

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]


def argv(*words: str) -> list[str]:
    return [sys.executable, "-m", "l2rtui", *words]


def test_every_command_of_the_first_tutorial_works(home, tmp_path):
    reader = Reader(argv, home.env, DOCS / "tutorials/laptop.md", tmp_path)
    assert len(reader.commands) >= 15
    outputs = {}
    while reader.commands:
        line = " ".join(reader.commands[0].words[1:])
        outputs[line] = reader.types()
    assert "-train.ppo.lr: 0.001" in outputs["diff half-lr-s0 cartpole-ppo"]
    assert "No leaks." in outputs["leaks"]
    assert "ckpt-" in outputs["artifacts ls cartpole-ppo"]
    assert (tmp_path / "curves.svg").read_text().startswith("<svg")
    assert "half-lr-s1" in (tmp_path / "half-lr.html").read_text()


def test_the_run_of_the_page_for_the_workshop_trains_and_evaluates(home, tmp_path):
    """Its images are tested on a cluster, its clusters against an imitation of Amazon."""
    image = " --image registry.example/lab/node:v1"  # the local backend runs no images
    reader = Reader(argv, home.env, DOCS / "from/eks-workshop.md", tmp_path, {image: ""})
    reader.commands = [command for command in reader.commands if command.words[1] not in ("cluster", "image")]
    assert "Bound" in reader.types("volume create")
    assert "launched workshop: 5 pods" in reader.types("launch", "--wait")
    assert "workshop-train-3" in reader.types("scale")
    reader.types("kill")
    assert "train     running" in reader.types("metrics")
    assert "reached" in reader.types("wait")
    reader.types("volume get")
    assert list((tmp_path / "checkpoints").glob("*.safetensors"))
    assert "nothing left of workshop" in reader.types("destroy")
    reader.types("relaunch", "--wait", "--timeout", "60")
    # The old file names a program that only its image has.
    words = reader.words("launch -f train.yaml")
    assert words[1:3] == ["-f", "train.yaml"]
    assert reader.commands == []
