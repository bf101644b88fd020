"""Every command of four pages of docs/from/, typed in order, in one process over one cluster in memory.

The other two pages are typed by `tests/e2e/test_tutorial.py` (on this machine) and `tests/cluster/test_pages.py`.
Verbs of clusters in Amazon's cloud are typed by `tests/l2rtui/cloud/aws/test_cluster_verb.py`, those of images,
secrets and volumes by `tests/cluster/test_pages.py`. `test_from_pages` plans the launches of all pages.
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
from tests.documents import DOCS, commands_of, write_files

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


@pytest.fixture
def typed(tmp_path, monkeypatch, capsys):
    """Type a command in a folder; return its exit code, output and messages."""
    start = time.time()
    backend = FakeBackend(lambda: start + (time.time() - start) * SPEED, owner=ME, is_empty=True)
    backend.populate(DemoCluster(nodes=NODES))
    monkeypatch.setattr(session, "make_backend", lambda *_, **__: backend)
    monkeypatch.chdir(tmp_path)
    for name, value in (("HOME", tmp_path), ("XDG_STATE_HOME", tmp_path / "state"), ("USER", ME), ("LOGNAME", ME)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("L2RTUI_BACKEND", "demo")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def call(*words):
        return entry.main(words), *capsys.readouterr()

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


def read_page(page):
    """Yield the commands of a page with the reader's own answers."""
    for command in commands_of(page):
        # No registry answers for the digest of an image.
        words = " ".join(command.words[1:]).replace("--image ", "--set image=").split()
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
    write_files(page, tmp_path)
    job = re.search(r"```yaml\n# pod.yaml\n(.*?)```", (DOCS / "from/other-tools.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "objects.yaml").write_text(job[1])
    wrong = []
    for words in read_page(page):
        code, out, err = typed(*words)
        # A reader types more slowly than a learner takes to print its first record.
        end = time.monotonic() + 20.0
        while code and "no metric record yet" in err and time.monotonic() < end:
            time.sleep(0.1)
            code, out, err = typed(*words)
        if code:
            wrong.append(f"{' '.join(words)}: exit code {code}\n{out}{err}")
    assert wrong == []
