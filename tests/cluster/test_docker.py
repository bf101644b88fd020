"""The docker backend on a real Engine, by the command line: a run that trains, its secret, its logs, its end."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.cluster.conftest import IMAGE, NODE_IMAGE, ROOT, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

RUN = "dk-racing"
SPEC = f"""\
kind: learner-workers
name: {RUN}
image: {NODE_IMAGE}
learner: {{resources: {{cpu: 0.5}}}}
workers:
  - {{name: w, replicas: 2, resources: {{cpu: 0.1}}}}
train: {{environment: racing, checkpoint_seconds: 2, warmup_steps: 600}}
"""
JOB = """\
kind: job
name: {name}
image: {image}
job:
  command: [sh, -c, '{script}']
"""
FAILS = f"""\
kind: learner-workers
name: dk-fails
image: {IMAGE}
learner: {{command: [sleep, "600"]}}
workers:
  - {{name: w, replicas: 1, command: [sh, -c, "echo begun; sleep 1; exit 3"]}}
"""


class DockerCli:
    """The command line with the Engine of this machine."""

    def __init__(self, state):
        self.env = {**os.environ, "XDG_STATE_HOME": str(state), "L2RTUI_SLOTS_PER_CORE": "8"}

    def __call__(self, *arguments, stdin=None, timeout=120.0):
        argv = [sys.executable, "-m", "l2rtui", arguments[0], "--backend", "docker", *arguments[1:]]
        return subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=timeout, env=self.env, cwd=ROOT, check=False
        )

    def json(self, *arguments):
        done = self(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def docker(*arguments):
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.fixture
def cli(tmp_path):
    made = DockerCli(tmp_path)
    yield made
    for name in ("dk-racing", "dk-fails", "dk-talks"):
        made("destroy", name, "--yes", "--grace", "0")
    assert docker("ps", "-aq", "--filter", "label=docker.l2rtui.io/run-id") == ""
    assert docker("network", "ls", "-q", "--filter", "label=docker.l2rtui.io/run-id") == ""


@pytest.fixture
def job(cli, tmp_path):
    def launch(name, script, image=IMAGE):
        path = tmp_path / f"{name}.yaml"
        path.write_text(JOB.format(name=name, script=script, image=image))
        return cli("launch", "-f", str(path), "--yes")

    return launch


def test_a_run_trains_and_keeps_its_secret(cli, image, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(SPEC)
    done = cli("launch", "-f", str(path), "--image", image, "--yes", "--wait")
    assert done.returncode == 0, done.stderr
    assert f"image: {image} is taken as it is named" in done.stderr, "an Engine's own image is in no registry"
    eventually("training", lambda: '"env_steps"' in cli("logs", f"{RUN}/learner").stdout, seconds=120)
    # Workers reached the learner by its name, with a token that is only in a file.
    for name in (f"{RUN}-learner-0", f"{RUN}-w-0"):
        token = docker("exec", name, "cat", "/run/l2r/token")
        assert re.fullmatch(r"[0-9a-f]{64}", token)
        assert token not in docker("inspect", name)
        assert token not in docker("top", name)
        assert docker("exec", name, "stat", "-c", "%a %u", "/run/l2r/token").split() == ["400", "1000"]
    slots = [slot for slot in cli.json("slots") if slot["run"] == RUN]
    assert len(slots) == 3
    done = cli("exec", f"{RUN}/w/1", "--", "sh", "-c", "echo here $L2R_INDEX; exit 7")
    assert (done.stdout, done.returncode) == ("here 1\n", 7)
    done = cli("destroy", RUN, "--yes")
    assert done.returncode == 0, done.stderr
    assert "0 leaks" in done.stdout + done.stderr


def test_the_engine_starts_again_what_fails_and_its_log_goes_on(cli, tmp_path):
    path = tmp_path / "fails.yaml"
    path.write_text(FAILS)
    assert cli("launch", "-f", str(path), "--yes").returncode == 0
    following = subprocess.Popen(
        [sys.executable, "-m", "l2rtui", "logs", "dk-fails/w", "-f", "--backend", "docker"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    output = ""
    while output.count("begun") < 3:  # the test's own time limit ends this
        output += following.stdout.readline()
    (pod,) = (row for row in cli.json("pods") if row["pod"] == "dk-fails-w-0")
    assert pod["restarts"] >= 2
    cli("destroy", "dk-fails", "--yes", "--grace", "0")
    following.communicate(timeout=60)
    assert following.returncode == 0


def test_logs_by_time_and_tail_of_both_streams(cli, job):
    script = "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done; echo end >&2; exec sleep 600"
    assert job("dk-talks", script).returncode == 0
    eventually("the last word", lambda: "end" in cli("logs", "dk-talks").stdout, seconds=60)
    output = cli("logs", "dk-talks").stdout
    assert [int(number) for number in re.findall(r"line (\d+)", output)] == list(range(200))
    assert len(cli("logs", "dk-talks", "--tail", "3").stdout.splitlines()) == 3
    future = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    assert cli("logs", "dk-talks", "--since", future).stdout == ""


def test_what_the_engine_cannot_do_is_refused_in_a_sentence(cli, job, tmp_path):
    done = job("dk-talks", "true", image="registry.invalid/none:1")
    assert done.returncode == 3
    assert "docker pull registry.invalid/none:1" in done.stderr
    assert docker("network", "ls", "-q", "--filter", "label=docker.l2rtui.io/run-id") == ""
    done = subprocess.run(
        [sys.executable, "-m", "l2rtui", "runs", "--backend", "docker"],
        capture_output=True, text=True, cwd=ROOT, check=False,
        env={**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/missing/docker.sock"},
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr


def test_a_volume_is_the_users_and_a_port_leads_into_the_container(cli, image, tmp_path):
    spec = {
        "kind": "job",
        "name": "dk-talks",
        "image": image,
        "env": {"WANDB_API_KEY_FILE": "/none", "LAB_SECRET_WORD": "$HOME"},
        "job": {"command": ["sh", "-c", "echo here > /l2r/word; cd /l2r; exec python -m http.server 8000"]},
        "pod": {"mounts": [{"path": "/l2r", "claim": "dk-talks-data"}]},
    }
    path = tmp_path / "served.yaml"
    path.write_text(json.dumps(spec))
    try:
        done = cli("launch", "-f", str(path), "--yes", "--wait")
        assert done.returncode == 0, done.stderr
        with subprocess.Popen(
            [sys.executable, "-m", "l2rtui", "port-forward", "--backend", "docker", "dk-talks/job", "0:8000"],
            stderr=subprocess.PIPE, text=True, cwd=ROOT,
        ) as forwarding:  # fmt: skip
            port = re.search(r"127\.0\.0\.1:(\d+) leads", forwarding.stderr.readline())[1]
            assert eventually("the word", lambda: asked(int(port), "/word"), seconds=60) == "here\n"
            forwarding.send_signal(signal.SIGINT)
        text = cli("describe", "dk-talks/job").stdout
        assert "mount /l2r from dk-talks-data" in text
        assert "LAB_SECRET_WORD=(hidden)" in text
        assert "Created Pod dk-talks-job-0" in text
        assert {"Created", "Started"} <= {event["reason"] for event in cli.json("events", "dk-talks")}
        assert "dk-talks-job-0: running" in cli("describe", "dk-talks").stdout
    finally:
        cli("destroy", "dk-talks", "--yes", "--grace", "0")
        docker("volume", "rm", "-f", "dk-talks-data")


def asked(port, path):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):  # it does not listen yet
        return ""
    finally:
        connection.close()


def test_a_container_without_its_run_is_a_leak(cli, job):
    assert job("dk-talks", "exec sleep 600").returncode == 0
    container, network = (
        docker("ps", "-q", "--filter", "label=docker.l2rtui.io/run=dk-talks").strip(),
        "l2rtui-dk-talks",
    )
    docker("network", "disconnect", "-f", network, container)
    docker("network", "rm", network)
    done = cli("leaks")
    assert done.returncode == 4
    assert "dk-talks" in done.stdout
    docker("rm", "-f", container)
    assert cli("leaks").returncode == 0
