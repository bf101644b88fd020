"""Every command of four pages of docs/from/, typed in order, in one process over one cluster in memory.

Verbs that need Amazon, a Docker Engine or storage are left out; `test_from_pages` plans the launches of all pages.
"""

from __future__ import annotations

import re
import signal
import time

import pytest

from l2rtui.backends.fake import FakeBackend
from l2rtui.backends.fake.demo_cluster import DemoCluster
from l2rtui.cli import main as entry
from l2rtui.cli import session
from l2rtui.domain.node import Gpu, Node
from tests.documents import DOCS, ROOT, commands_of

ME = "mia"
PAGES = [page for page in sorted((DOCS / "from").glob("*.md")) if page.stem not in ("eks-workshop", "other-tools")]
SPEED = 60.0
"""Seconds of the cluster in memory in a real one: its jobs end in time."""
NODES = tuple(
    Node(
        name,
        tuple(Gpu(name, index, f"GPU-{name}-{index}", "NVIDIA H100", 80 << 30) for index in range(8)),
        cpu_cores=96.0,
        memory_bytes=1 << 40,
    )
    for name in ("phortx1", "phortx2", "phortx3")
)
ELSEWHERE = ("cluster", "image", "secret", "volume")
ANSWERED = ("launch", "destroy", "kill", "scale", "relaunch")
"""Verbs that ask; the reader answers with yes."""
FOLLOWING = {"-w", "-f"}
"""Options that would never end; files keep theirs."""
OWN_NAMES = {
    "-l KEY=VALUE": "-l l2rtui.io/role=learner",
    "describe X": "describe mine",
    "wait RUN": "wait evaluate",
    "POD -c CONTAINER": "mine/learner/0",
    "POD -- bash": "mine/learner/0 -- bash",
    "values.yml --name NAME": "values.yml --name chart",
    "sweep NAME": "sweep cartpole-sweep",
    "NAME": "mine",
    "RUN": "mine",
}
"""Placeholders of the last page, and a reader's names."""


@pytest.fixture
def typed(tmp_path, monkeypatch, capsys):
    """Type a command in a folder; return its exit code, output and messages."""
    start = time.time()
    backend = FakeBackend(lambda: start + (time.time() - start) * SPEED, owner=ME, is_empty=True)
    backend._populate(DemoCluster(nodes=NODES))
    monkeypatch.setattr(session, "make_backend", lambda *_, **__: backend)
    monkeypatch.chdir(tmp_path)
    for name, value in (("HOME", tmp_path), ("XDG_STATE_HOME", tmp_path / "state"), ("USER", ME), ("LOGNAME", ME)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("L2RTUI_BACKEND", "demo")
    (tmp_path / "manifests").symlink_to(ROOT / "manifests")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def call(*words):
        return entry.main(words), *capsys.readouterr()

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


def read_page(page, folder):
    """Write the files of a page into the folder; yield its commands with the reader's own answers."""
    files = re.findall(r"```yaml\n# (\S+)\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    for name, text in files:
        (folder / name).write_text(text)
    for command in commands_of(page):
        line = " ".join(command.words[1:])
        if page.stem == "other-tools":
            for placeholder, name in OWN_NAMES.items():
                line = line.replace(placeholder, name)
        # No registry answers for the digest of an image.
        words = line.replace("--image ", "--set image=").split()
        if words[0] in ELSEWHERE:
            continue
        if words[0] not in ("launch", "plan"):
            words = [word for word in words if word not in FOLLOWING]
        if words[0] in ANSWERED:
            words.append("--yes")
        words += ["--all-matching"] if words[0] == "destroy" else []
        yield words + (["--rename"] if words[0] in ("launch", "plan") else [])


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_works(page, typed, tmp_path):
    spec = (ROOT / "manifests/cartpole-ppo.yaml").read_text("utf-8")
    (tmp_path / "run.yaml").write_text(re.sub("^name: .*", "name: mine", spec, flags=re.MULTILINE))
    (tmp_path / "values.yml").write_text("worker: {number: 2}\nps: {number: 1}\nhyperparams: {trainsteps: 200}\n")
    job = re.search(r"```yaml\n# pod.yaml\n(.*?)```", (DOCS / "from/other-tools.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "objects.yaml").write_text(job[1])
    wrong = []
    needed = {"mine": "run.yaml", "evaluate": "pod.yaml", "cartpole-sweep": "manifests/cartpole-sweep.yaml"}
    running = set()
    commands = list(read_page(page, tmp_path))
    # A run that is awaited to its end can be neither scaled nor killed: the reader waits before the destroy.
    for words in [words for words in commands if words[0] == "wait"]:
        commands.remove(words)
        later = [number for number, other in enumerate(commands) if other[0] == "destroy"]
        commands.insert(later[0] if page.stem == "eks-workshop" else len(commands), words)
    for words in commands:
        if "--diff" in words:
            continue  # the cluster in memory keeps no objects that could be compared
        if page.stem == "other-tools":  # a table of single commands: each finds the run that it names
            name = next((name for name in needed if name in " ".join(words)), "")
            if name and name not in running:
                assert typed("launch", "-f", needed[name], "--yes", "--rename")[0] == 0
            running = running - {name} if words[0] == "destroy" else running | {name}
        code, out, err = typed(*words)
        if code:
            wrong.append(f"{' '.join(words)}: exit code {code}\n{out}{err}")
    assert wrong == []
