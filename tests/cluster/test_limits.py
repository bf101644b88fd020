"""Limits that end runs, their alerts, and records of their ends, without any of our programs open: a node and
Docker.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator

import psutil
import pytest

from l2rtui.services.history.place import decode
from tests.cluster.conftest import IMAGE, NODE_IMAGE, Cli, eventually
from tests.cluster.test_docker import DockerCli, docker
from tests.fakes.webhook import Webhook
from tests.l2rtui.cli.conftest import processes_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LIMITS = {
    "wall": ("{wall: 40s}", "limit wall 40 s"),
    "hours": ("{gpu_hours: 0.012}", "limit 0.012 GPU-hours"),
    "progress": ("{no_progress: 15s}", "limit no_progress 15 s"),
    # Longer than a worker takes to start on a busy machine: a run without data from the start has no update.
    "idle": ("{idle: 40s}", "limit idle 40 s"),
}
SPEC = """\
kind: learner-workers
name: {name}
image: {image}
pod: {{mounts: [{{path: /l2r, {volume}}}]{pod}}}
learner: {{resources: {{cpu: 0.2}}, restart: {restart}}}
workers: [{{name: w, replicas: 1, resources: {{cpu: 0.1}}}}]
train: {{environment: CartPole-v1, algorithm: ppo, num_envs: 2, segment_steps: 32, ppo: {{lr: {rate}}}}}
limits: {limits}
alerts:
  - when: [learned=-1e9, limit, done, failed, diverged, stalled]
    after: 6s
    to: command
    command: [sh, -c, 'cat >> /l2r/said; echo >> /l2r/said']
  - when: [learned=-1e9, limit, done, failed, diverged, stalled]
    after: 6s
    to: webhook
    form: json
    {address}
"""
BREAKS = "breaks"
"""Run whose first steps are so long that its numbers overflow."""


@pytest.fixture
def hook() -> Iterator[Webhook]:
    """Webhook of the test at the address by which containers and pods reach this machine."""
    bridge = psutil.net_if_addrs()["docker0"]
    with Webhook(next(item.address for item in bridge if item.family is socket.AF_INET)) as webhook:
        yield webhook


def launched(cli, folder, prefix, kinds, volume, address, pod="", **fields):
    """Start a run for each kind of limit and one that breaks; let the one meant to be idle lose its worker."""
    names = {f"{prefix}-{kind}": LIMITS[kind] for kind in kinds}
    # The one that breaks comes last: its slots are claimed for two minutes, though it ends immediately.
    for name, (limits, _) in {**names, f"{prefix}-{BREAKS}": ("{wall: 1h}", "")}.items():
        path = folder / f"{name}.yaml"
        texts = {"limits": limits, "address": address, "pod": pod}
        texts["rate"], texts["restart"] = ("1.0e+38", "Never") if name.endswith(BREAKS) else ("3.0e-4", "OnFailure")
        spec = SPEC.format(name=name, image=NODE_IMAGE, volume=volume.format(name), **texts)
        path.write_text(spec + "".join(f"{key}: {value}\n" for key, value in fields.items()))
        cli.run("launch", "-f", str(path), "--yes")
    idle = f"{prefix}-idle"
    is_learning = re.compile(r'"updates":[1-9]').search
    eventually("an update", lambda: is_learning(cli.call("logs", f"{idle}/learner").stdout), 240)
    cli.run("scale", f"{idle}/w", "0")
    return {name: label for name, (_, label) in names.items()}


def ended(cli, names):
    rows = {row["run"]: row for row in cli.json("runs")}
    return rows if all(rows[name]["learning"] == "done" for name in names) else None


def await_alone(hook, shared, prefix, labels):
    """Wait, without any command, until every alert has arrived and every end is in the place for records."""
    breaks, idle = f"{prefix}-{BREAKS}", f"{prefix}-idle"
    wanted = [
        rf"{breaks}: diverged: .* not finite",
        rf"{breaks}: failed: .*",
        rf"{idle}: stalled: no update for .*",
    ]
    wanted += [re.escape(f"{name}: ended by {label}") for name, label in labels.items()]

    def missing():
        return [pattern for pattern in wanted if not any(re.match(pattern, text) for text in hook.texts)]

    eventually("every alert", lambda: not missing(), 240)

    def recorded():
        records = [decode(path.read_bytes()) for path in shared.glob("*.ended.json.gz")]
        return {record.entry.run: str(record.ending.state) for record in records if record is not None}

    states = {breaks: "failed", **dict.fromkeys(labels, "done")}
    eventually("every end in the place", lambda: recorded() == states)


def check(cli, labels, said, hook, *, says_limit=True):
    rows = eventually("the end of every run", lambda: ended(cli, labels), 240)
    for name, label in labels.items():
        if says_limit:
            assert label in rows[name]["learning_reason"]
        told = [json.loads(line) for line in said(name).splitlines() if line]
        states = [word["state"] for word in told]
        assert states.count("learned=-1e9") <= 1
        assert 1 <= states.count("limit") <= 2, told  # near, and ended
        assert [word["text"] for word in told if word["state"] == "limit"][-1] == f"{name}: ended by {label}"
        assert len({word["text"] for word in told}) == len(told), "nothing is sent twice"
        assert "failed" not in states
        # The webhook got the same, once each; the two rules send in parallel, so only their sets agree in order.
        posted = [body for body in hook.bodies if body["run"] == name]
        assert sorted(body["text"] for body in posted) == sorted(word["text"] for word in told)
        assert {body["run_id"] for body in posted} == {word["run_id"] for word in told}
    for name in labels:
        receipt = cli.json("destroy", name, "--yes")
        assert (receipt["left"], receipt["leftovers"]) == (0, [])


def test_runs_of_a_cluster_end_by_their_limits(cli: Cli, image, volume, hook, tmp_path):
    cli.run("secret", "create", "hook", "--from-env", "HOOK", HOOK=f"{hook.url}/ok")
    cli.env["L2RTUI_HISTORY_TO"] = str(tmp_path / "shared")
    for kind in (*LIMITS, BREAKS):
        (volume / f"lim-{kind}").mkdir()
        (volume / f"lim-{kind}").chmod(0o777)  # the pods run as another user
    claim, place = "claim: l2r-data, sub_path: {}", "{on: phortx0/0-7}"
    labels = launched(cli, tmp_path, "lim", LIMITS, claim, "url_from: HOOK", ", secrets: [hook]", placement=place)
    await_alone(hook, tmp_path / "shared", "lim", labels)
    check(cli, labels, lambda name: (volume / name / "said").read_text(), hook)
    for name in labels:
        assert list((volume / name).rglob("ckpt-*.safetensors"))
    cli.run("destroy", f"lim-{BREAKS}", "--yes", "--grace", "0")
    eventually("the end of the keeper", lambda: not processes_of(tmp_path))


class Docker(DockerCli):
    """The Engine of this machine, with the interface of the cluster's client."""

    call = DockerCli.__call__

    def run(self, *words: str) -> str:
        done = self(*words)
        assert done.returncode == 0, f"l2rtui {' '.join(words)}: {done.stderr}"
        return done.stdout


def test_runs_of_an_engine_end_by_their_limits(image, hook, tmp_path):
    cli = Docker(tmp_path / "state")
    cli.env["L2RTUI_HISTORY_TO"] = str(tmp_path / "shared")
    kinds = ("wall", "idle")
    # No secret as a variable there: the address is in the run's own volume.
    put = f"echo {hook.url}/ok > /l2r/hook; chmod -R 777 /l2r"
    try:
        for kind in (*kinds, BREAKS):
            docker("run", "--rm", "-v", f"dk-{kind}-data:/l2r", IMAGE, "sh", "-c", put)
        labels = launched(cli, tmp_path, "dk", kinds, "claim: {}-data", "url_file: /l2r/hook")
        await_alone(hook, tmp_path / "shared", "dk", labels)
        check(
            cli,
            labels,
            lambda name: docker("run", "--rm", "-v", f"{name}-data:/l2r", IMAGE, "cat", "/l2r/said"),
            hook,
            says_limit=False,
        )
    finally:
        for kind in (*kinds, BREAKS):
            cli("destroy", f"dk-{kind}", "--yes", "--grace", "0")
            docker("volume", "rm", "-f", f"dk-{kind}-data")
        eventually("the end of the keeper", lambda: not processes_of(tmp_path))
