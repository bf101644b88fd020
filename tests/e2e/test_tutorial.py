"""The commands of docs/tutorials/laptop.md, as a reader types them, one after the other on this machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.documents import DOCS, ROOT, commands_of

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]
PAGE = DOCS / "tutorials" / "laptop.md"


def test_every_command_of_the_first_tutorial_works(home, tmp_path):
    (tmp_path / "manifests").symlink_to(ROOT / "manifests")
    commands = [command for command in commands_of(PAGE) if command.words[0] == "l2rtui" and command.words[1:]]
    assert len(commands) >= 15
    outputs = {}
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", *command.words],
            env=home.env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        outputs[" ".join(command.words[1:])] = done.stdout
    assert "-train.ppo.lr: 0.001" in outputs["diff half-lr-s0 cartpole-ppo"]
    assert outputs["leaks"].split() == ["RUN", "KIND", "NAME", "REASON"]
    assert "ckpt-" in outputs["artifacts ls cartpole-ppo"]
    assert (tmp_path / "curves.svg").read_text().startswith("<svg")
    assert "half-lr-s1" in (tmp_path / "half-lr.html").read_text()
