"""Commands of docs/, typed in their order on a cluster: the second tutorial, and the pages for other systems' users.

What is replaced is the reader's own: a registry, a volume, the answer to a question (``--yes``), a name.
Stand-in nodes run no program. What a learner and a kubelet would report is set there by annotation and by status.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import Cli, eventually, kubectl, kubectl_json
from tests.cluster.kinds import SECONDS, left
from tests.cluster.registries import PASSWORD, USER, private_registry
from tests.documents import DOCS, ROOT, Command, commands_of
from tests.l2rtui.cli.conftest import Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
ASKING = ("destroy", "kill", "scale", "launch", "relaunch", "reserve")
RECORD = {"l2r": "learner", "workers": 2, "mean_return": 240.0, "eval_return": 250.0, "env_steps_per_second": 900.0}
RECORD |= {"updates_per_second": 9.0, "policy_lag": [0, 1, 2], "device": "cpu"}


class Reader:
    """A reader of a page: types its commands in a folder that holds what the page names."""

    def __init__(self, cli: Cli, page: Path, folder: Path, replaced: dict[str, str]) -> None:
        self.cli, self.folder, self.replaced = cli, folder, replaced
        self.commands = list(commands_of(page))
        (folder / "manifests").symlink_to(ROOT / "manifests")
        for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            (folder / name).write_text(text)

    def words(self, start: str) -> list[str]:
        """Return the next command of the page, which begins with these words; with the reader's own names."""
        command: Command = self.commands.pop(0)
        line = " ".join(command.words)
        assert line.startswith(f"l2rtui {start}"), line
        for old, new in self.replaced.items():
            line = line.replace(old, new)
        return line.split()[1:]

    def types(self, start: str, *answers: str, code: int = 0) -> str:
        """Type the next command of the page; return what it prints."""
        words = [*self.words(start), *answers]
        if words[0] in ASKING and not {"--yes", "-o"} & set(words):
            words.append("--yes")
        done = subprocess.run(
            self.cli.argv(*words),
            env=self.cli.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS * 2,
            check=False,
        )
        assert done.returncode == code, f"l2rtui {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def follows(self, start: str, expected: str) -> None:
        """Type the next command of the page, which follows something; read until a line has the text."""
        process = self.cli.start(*self.words(start))
        try:
            end = time.monotonic() + SECONDS
            while expected not in (line := process.stdout.readline()):  # type: ignore[union-attr]
                assert line, f"{start}: it ended before {expected}"
                assert time.monotonic() < end, f"{start}: {expected} did not come"
        finally:
            process.terminate()
            process.communicate(timeout=60)


def report_learning(namespace: str) -> None:
    """Let the learners on stand-in nodes print the records of a run that learns."""
    line = json.dumps({**RECORD, "time": time.time()}, separators=(",", ":"))[:-1]
    line += ',"env_steps":{n}000,"updates":{n}0,"policy_version":{n}}'
    kubectl("-n", namespace, "annotate", "pods", "-l", "l2rtui.io/role=learner", f"l2r.fake/log-line={line}")


def crash(namespace: str, run: str, index: str) -> None:
    """Report as a kubelet does that the only container of a worker was ended for its memory and waits."""
    selector = f"l2rtui.io/run={run},l2rtui.io/set=w"
    pods = sorted(
        kubectl_json("-n", namespace, "get", "pods", "-l", selector)["items"],
        key=lambda one: one["metadata"]["name"],
    )
    pod = pods[int(index)]
    ended = {"exitCode": 137, "reason": "OOMKilled", "startedAt": pod["metadata"]["creationTimestamp"]}
    ended |= {"finishedAt": pod["metadata"]["creationTimestamp"], "containerID": "containerd://0"}
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}
    for status in pod["status"]["containerStatuses"]:
        status |= {"ready": False, "restartCount": 4, "state": {"waiting": waiting}}
        status["lastState"] = {"terminated": ended}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/status"
    kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(pod))


@pytest.fixture
def registry(tmp_path_factory):
    """A registry with a password."""
    with private_registry(tmp_path_factory.mktemp("registry")) as host:
        yield host


def log_in(cli: Cli, words: list[str]) -> None:
    """Type a login with its answers."""
    terminal = Terminal(cli.argv(*words), cli.env)
    try:
        terminal.read_until("ser")
        terminal.type(f"{USER}\n")
        terminal.read_until("assword")
        terminal.type(f"{PASSWORD}\n")
        assert terminal.finish() == 0, terminal.text
    finally:
        terminal.close()


def test_every_command_of_the_second_tutorial(cli, namespace, registry, tmp_path):
    cli.env["DOCKER_CONFIG"] = str(tmp_path / "docker-config")
    cli.env["L2RTUI_CLAIMS_NAMESPACE"] = f"{namespace}-claims"  # others use this cluster too
    reader = Reader(cli, DOCS / "tutorials/lab.md", tmp_path, {"registry.example": registry})
    try:
        assert "Kubernetes" in reader.types("check")
        assert "phortx1" in reader.types("nodes")
        assert "phortx1/0.0" in reader.types("slots")
        reader.types("owners")
        reader.types("cluster prepare", "--yes")
        log_in(cli, reader.words("image login"))
        # Containers of this machine reach the index of packages only over its own network.
        assert "sha256:" in reader.types("image build", "--network", "host")
        plan = reader.types("plan")
        assert plan.count("phortx1/") >= 32
        assert plan.count("phortx2/") >= 16
        reader.types("launch", "--timeout", "300")
        assert reader.types("runs").count("Running") == 12
        report_learning(namespace)
        assert reader.types("metrics").count("250") >= 12
        reader.follows("logs", "mean_return")
        crash(namespace, "racing-sac-s1", "1")
        eventually("the failing pod", lambda: "OOMKilled" in cli.run("pods", "--state", "failing", "-o", "wide"))
        assert "racing-sac-s1" in reader.types("pods --state failing")
        assert "OOMKilled" in reader.types("describe")
        assert "step" in reader.types("logs")
        reader.types("events")
        assert reader.types("wait").count("reached") == 12
        reader.types("report")
        assert "racing-sac-s11" in (tmp_path / "racing-sac.html").read_text()
        assert reader.types("destroy", "--all-matching").count("nothing left of racing-sac-s") == 12
        assert reader.types("leaks").split() == ["RUN", "KIND", "NAME", "REASON"]
        assert reader.commands == []
        assert left(namespace) == []
    finally:
        kubectl("delete", "namespace", f"{namespace}-claims", "--ignore-not-found", "--wait=false")
