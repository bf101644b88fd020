"""Launches of docs/from/ on an invented cluster: each file of a page is read and placed as the page says."""

from __future__ import annotations

import re

import pytest

from tests.documents import DOCS, commands_of, write_files

pytestmark = pytest.mark.process
PAGES = sorted((DOCS / "from").glob("*.md"))


def launches():
    """Yield page and words of each plan or launch of a file that is on the page or in manifests/."""
    for page in PAGES:
        names = set(re.findall(r"```yaml\n# (\S+)\n", page.read_text("utf-8")))
        for command in commands_of(page):
            verb, *words = command.words[1:]
            files = [word for word, option in zip(words[1:], words, strict=False) if option == "-f"]
            is_here = files and all(name in names or name.startswith("manifests/") for name in files)
            if verb in ("plan", "launch") and is_here:
                yield pytest.param(page, words, id=f"{page.stem}-{command.line}")


@pytest.mark.parametrize(("page", "words"), launches())
def test_a_launch_of_a_page_is_planned(cli, page, words, monkeypatch):
    write_files(page, cli.home)
    monkeypatch.chdir(cli.home)
    # No registry answers for the digest of an image, and the invented cluster has room for four of twelve seeds.
    line = " ".join(words).replace("--image ", "--set image=").replace("0-11", "0-3")
    done = cli.demo("plan", *line.split())
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 1
