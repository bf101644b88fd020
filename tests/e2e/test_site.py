"""The documentation as a site: `make docs` stops at each fault of a page, and the search finds the answers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.l2rtui.test_docs import BROKEN, copy_of_pages

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]
QUESTIONS = {
    "how do I use my own environment": "guides/own-environment",
    "why is my pod Pending": "guides/pod-fails",
    "how do I resume": "guides/resume-and-reproduce",
    "what does unknown mean": "explained/slots",
    "how do I get the checkpoints": "guides/data",
    "how do I run 12 seeds": "tutorials/lab",
    "how do I pin workers to GPUs": "guides/reserve-and-share",
    "how do I kill one worker": "guides/stop",
    "how do I see GPU memory": "guides/reserve-and-share",
    "where are the logs after destroy": "guides/stop",
    "how do I sweep": "guides/sweep",
    "how do I use a private registry": "guides/images",
    "how do I change the learning rate": "tutorials/laptop",
    "how do I run without Kubernetes": "tutorials/laptop",
    "what is sent to the cluster": "explained/exact-launch",
    "how do I install it without root": "guides/login-node",
    "what does stalled mean": "explained/stalled",
    "how do I stop everything and free the GPUs": "guides/stop",
    "how do I use tensorboard": "guides/trackers",
    "ImagePullBackOff": "guides/pod-fails",
    "how many slots has a GPU": "explained/slots",
    "train without a GPU": "tutorials/laptop",
    "share GPUs with colleagues": "guides/reserve-and-share",
    "end a run after 12 hours": "guides/limits-and-alerts",
    "OOMKilled": "guides/pod-fails",
    "my learner is stalled": "explained/stalled",
    "SkyPilot": "from/other-tools",
    "which rights do I need": "rights",
    "login node without Python": "guides/login-node",
    "exit code of wait": "exit-codes",
    "compare two seeds": "guides/seeds-curves-report",
    "film a policy": "guides/evaluate-film-export",
}
"""Question of a reader, and the page with its answer."""
FIRST_RESULTS = 4
"""Results that a reader sees without scrolling."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the pages, with the environment of MkDocs that `make docs` has made here."""
    subprocess.run(["make", "build/docs-tools/made"], cwd=ROOT, check=True, timeout=600)
    folder = copy_of_pages(tmp_path_factory.mktemp("site"))
    (folder / "build").mkdir()
    (folder / "build" / "docs-tools").symlink_to(ROOT / "build" / "docs-tools")
    return folder


def make_docs(tree: Path) -> subprocess.CompletedProcess[str]:
    """Run `make docs` on a copy, with the virtual environment of this interpreter."""
    made = ROOT / ".venv"
    return subprocess.run(
        ["make", "docs", f"VENV={made}", "-o", f"{made}/runtime"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_make_docs_stops_at_each_fault_of_a_page(tree):
    for page, text, sentence in BROKEN.values():
        before = (tree / page).read_text("utf-8") if (tree / page).exists() else None
        (tree / page).write_text((before or "") + text, "utf-8")
        done = make_docs(tree)
        assert done.returncode == 2, page
        assert sentence in done.stdout
        (tree / page).unlink() if before is None else (tree / page).write_text(before, "utf-8")


def test_the_search_answers_every_question_among_its_first_results(tree):
    done = make_docs(tree)
    assert done.returncode == 0, done.stdout + done.stderr
    searched = subprocess.run(
        ["node", str(Path(__file__).with_name("site_search.js")), str(tree / "build" / "docs")],
        input="\n".join(QUESTIONS),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    results = dict(zip(QUESTIONS, map(json.loads, searched.stdout.splitlines()), strict=True))
    misses = {
        question: results[question][:FIRST_RESULTS]
        for question, page in QUESTIONS.items()
        if f"{page}.html" not in results[question][:FIRST_RESULTS]
    }
    assert misses == {}
