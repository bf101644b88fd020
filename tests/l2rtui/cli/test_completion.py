"""Completion: the possible next words, requested in the same way as by a shell."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from l2rtui.cli import main as entry


@pytest.fixture(autouse=True)
def demo(monkeypatch, tmp_path):
    monkeypatch.setenv("L2RTUI_BACKEND", "demo")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def offered(capsys, *words):
    assert entry.main(["__complete", "--", *words]) == 0
    written = capsys.readouterr()
    assert written.err == ""
    return written.out.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["de"], ["destroy", "describe"]),
        (["sl"], ["slots"]),
        (["--read"], ["--readonly"]),
        (["--backend", "d"], ["docker", "demo"]),
        (["--backend", "demo", "me"], ["metrics"]),
        (["launch", "--po"], ["--policy"]),
        (["launch", "--policy", "s"], ["spread"]),
        (["launch", "-f", ""], []),
        (["slots", "-o", "j"], ["json"]),
        (["slots", "-o", ""], ["table", "wide", "json", "yaml", "name"]),
        (["schema", "-o", ""], ["json", "yaml"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["destroy", "rac"], ["racing-sac", "racing-sac-s0", "racing-sac-s1"]),
        (["destroy", "--grace", ""], []),
        (["metrics", "lid"], ["lidar-ppo"]),
        (["scale", "lidar"], ["lidar-ppo/learner", "lidar-ppo/w", "lidar-ppo/eval"]),
        (["logs", "notebook"], ["notebook-7f9c"]),
        (["logs", "--backend", "demo", "-f", "lidar-ppo/e"], ["lidar-ppo/eval"]),
        (["nodes", "ph"], ["phortx1", "phortx2", "phortx3"]),
        (["slots", "phortx2/7"], ["phortx2/7"]),
        (["slots", "--state", "f"], ["free", "failed"]),
        (["slots", "--state=f"], ["--state=free", "--state=failed"]),
        (
            ["pods", "--node", "phortx1", "racing-sac-s0/"],
            ["racing-sac-s0/learner", "racing-sac-s0/w", "racing-sac-s0/eval"],
        ),
        (["pods", "--node", "ph"], ["phortx1", "phortx2", "phortx3"]),
        (["pods", "--owner", "u"], ["u17", "u23", "u31"]),
        (["pods", "--sel"], ["--selector"]),
        (["runs", "--backend", "demo", "lid"], ["lidar-ppo"]),
        (["metrics", "lidar-ppo", "--fi"], ["--filter"]),
        (["wait", "lid"], ["lidar-ppo"]),
        (["wait", "lidar-ppo", "--for", "d"], ["done"]),
        (["wait", "lidar-ppo", "--for=lea"], ["--for=learned="]),
        (["wait", "lidar-ppo", "--for", "=", "do"], ["done"]),
        (["slots", "--state", "="], ["free", "busy", "unknown", "off", "failed", "reserved"]),
        (["get", "po"], ["pods"]),
        (["get", "pods", "notebook"], ["notebook-7f9c"]),
        (["leaks", ""], []),
        (["nonsense", ""], []),
        (["destroy", "--backend", "nonsense", ""], []),
    ],
)
def test_what_may_come_next(words, found, capsys):
    assert offered(capsys, *words) == found


def test_nothing_yet_offers_every_verb(capsys):
    assert {"nodes", "launch", "destroy"} <= set(offered(capsys, ""))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.process
def test_the_scripts_are_read_by_their_shells(shell, capsys):
    assert entry.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "l2rtui __complete --" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.process
def test_bash_completes(cli):
    script = cli.run("completion", "bash").stdout
    ask = "COMP_WORDS=(l2rtui destroy rac); COMP_CWORD=2; _l2rtui; printf '%s\\n' \"${COMPREPLY[@]}\""
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}"],
        env=cli.env | {"L2RTUI_BACKEND": "demo"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["racing-sac", "racing-sac-s0", "racing-sac-s1"]
