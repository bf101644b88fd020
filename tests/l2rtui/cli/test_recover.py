"""Runs that lost their supervisor are continued by `recover`, which `service install` calls at each start."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile

import psutil
import pytest

from tests.fakes.supervisors import kill_supervisor

SPEC = "{kind: job, name: t, job: {command: [sleep, '600']}}"


def supervisor_of(local):
    (lock,) = local.home.rglob("supervisor.lock")
    return int(lock.read_text().partition('"pid":')[2].partition(",")[0])


@pytest.mark.process
def test_a_run_without_a_supervisor_is_continued_and_named(local):
    path = local.home / "spec.yaml"
    path.write_text(SPEC)
    local.json("launch", "-f", str(path), "--yes")
    assert local.json("recover") == []
    pid = local.json("pods")[0]["pid"]
    before = supervisor_of(local)
    kill_supervisor(psutil.Process(before))
    refused = local.run("--readonly", "recover")
    assert (refused.returncode, "read-only" in refused.stderr) == (3, True)
    assert local.json("recover") == [{"run": "t", "supervised": True, "error": None}]
    assert supervisor_of(local) != before
    (pod,) = local.json("pods")
    assert (pod["pid"], pod["ready"]) == (pid, True)


@pytest.mark.process
def test_a_supervisor_that_cannot_start_is_an_error(local):
    path = local.home / "spec.yaml"
    path.write_text(SPEC)
    local.json("launch", "-f", str(path), "--yes")
    kill_supervisor(psutil.Process(supervisor_of(local)))
    (log,) = local.home.rglob("supervisor.log")
    log.unlink()
    log.mkdir()  # where its output goes
    (row,) = local.json("recover", code=1)
    assert (row["run"], row["supervised"]) == ("t", False)
    assert "did not start" in row["error"]
    (row,) = local.json("wait", "t", "--for=done", "--timeout=100", code=5)
    assert (row["outcome"], row["reached"]) == ("out of reach", False)
    assert row["reason"].startswith("has no supervisor, and gets none: The supervisor of t did not start")
    log.rmdir()
    (row,) = local.json("--readonly", "wait", "t", "--for=done", "--timeout=100", code=5)
    assert row["reason"] == "has no supervisor, and gets none: with --readonly none is started"
    local.json("wait", "t", "--for=done", "--timeout=12", code=124)  # this one is adopted
    assert local.json("runs")[0]["reason"] != "Unsupervised"


@pytest.mark.process
def test_other_backends_have_no_supervisors(cli):
    done = cli.demo("recover")
    assert done.returncode == 2
    assert "Only runs of this machine have supervisors." in done.stderr


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has systemd")
def test_the_unit_is_valid_enabled_and_removed(cli):
    config = cli.home / "con fig" / "50% $HOME"
    cli.env["XDG_CONFIG_HOME"] = str(config)
    done = cli.run("service", "install")
    assert done.returncode == 0, done.stderr
    unit = config / "systemd" / "user" / "l2rtui-recover.service"
    link = unit.parent / "default.target.wants" / unit.name
    assert link.resolve() == unit
    text = unit.read_text()
    assert '"--backend" "local" "recover"' in text
    assert f'Environment="XDG_CONFIG_HOME={cli.home}/con fig/50%% $HOME"' in text
    if (analyze := shutil.which("systemd-analyze")) is not None:
        with tempfile.TemporaryDirectory() as folder:
            env = cli.env | {"XDG_RUNTIME_DIR": folder}
            checked = subprocess.run(
                [analyze, "--user", "verify", str(unit)], env=env, capture_output=True, text=True, check=False
            )
        assert unit.name not in checked.stderr, checked.stderr
    assert cli.run("service", "install").returncode == 0
    assert cli.run("service", "remove").returncode == 0
    assert not unit.exists()
    assert not link.is_symlink()
    assert cli.run("service", "remove").returncode == 0


@pytest.mark.process
def test_a_folder_that_cannot_be_written_is_a_sentence(cli):
    cli.env["XDG_CONFIG_HOME"] = "/dev/null"
    done = cli.run("service", "install")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cannot be written" in done.stderr
