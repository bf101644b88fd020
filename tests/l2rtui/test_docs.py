"""README.md and docs/: commands, links, specs, settings files and language; `make docs` refuses what is wrong."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from l2rtui import __version__
from l2rtui.backends.common.train_settings import settings_findings
from l2rtui.config import settings_of_file
from l2rtui.domain.preflight import Severity
from l2rtui.services.spec.spec_file import load
from tests.documents import DOCS, ROOT, commands_of, fault, is_complete, pages_of, problems, simple_commands
from tests.language import figures, sentence_length

PAGES = pages_of(ROOT)
MOST_README_LINES = 120
BROKEN = {
    "an unknown command": ("docs/kinds.md", "\n```sh\nl2rtui lunch -f run.yaml\n```\n", "There is no verb 'lunch'"),
    "an unknown option": ("docs/guides/sweep.md", "\nType `l2rtui runs --stat failing`.\n", "no option --stat"),
    "an unknown target": ("README.md", "\n```sh\nmake docks\n```\n", "the Makefile has no target docks"),
    "a broken link": ("docs/gpu.md", "\nSee [this](nowhere.md).\n", "the link nowhere.md leads to nothing"),
    "a broken anchor": ("docs/gpu.md", "\nSee [this](keys.md#nowhere).\n", "keys.md#nowhere leads to nothing"),
    "a missing module": (
        "docs/gpu.md",
        "\nSee `runtime/rl/nowhere.py`.\n",
        "there is no module runtime/rl/nowhere.py",
    ),
    "a missing name": (
        "docs/gpu.md",
        "\nSee `l2rtui/config.py`, `nobody`.\n",
        "l2rtui/config.py defines no nobody",
    ),
    "a page linked from nowhere": ("docs/orphan.md", "# A page\n", "docs/orphan.md: no page links to it"),
    "a page outside of the navigation": (
        "docs/orphan.md",
        "# A page\n",
        "docs/orphan.md: it is 0 times in the nav",
    ),
}


def test_the_pages_have_commands():
    assert sum(len(list(commands_of(page))) for page in PAGES) > 200


def test_every_command_link_and_page_is_sound():
    assert list(problems(ROOT)) == []


def copy_of_pages(folder: Path) -> Path:
    """Copy the pages, so that a test may break something."""
    for name in ("docs", "mkdocs.yml", "README.md", "Makefile"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / name)
    for name in (
        "manifests",
        "screenshots",
        "requirements",
        "pyproject.toml",
        "l2rtui",
        "runtime",
        "CONTRIBUTING.md",
    ):
        (folder / name).symlink_to(ROOT / name)
    return folder


def test_each_fault_of_a_page_is_named(tmp_path):
    tree = copy_of_pages(tmp_path)
    for page, text, _ in BROKEN.values():
        with (tree / page).open("a", encoding="utf-8") as file:
            file.write(text)
    named = list(problems(tree))
    for name, (_, _, sentence) in BROKEN.items():
        assert any(sentence in problem for problem in named), name


def test_the_readme_is_one_screen_and_says_what_it_has_to():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= MOST_README_LINES
    pictures = re.findall(r"!\[.*\]\(screenshots/(\S+)\)", text)
    assert pictures == [f"{name}-120x40.svg" for name in ("cluster", "place", "learn", "receipt")]
    assert "| today | here |" in text


def test_the_changelog_begins_with_the_version_of_the_package():
    headings = re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(__version__)} - (unreleased|\d{{4}}-\d\d-\d\d)", headings[0])


def specs():
    """The whole spec files of the pages for users; fragments such as `pod: {...}` have no kind and are left out."""
    for page in PAGES:
        if is_complete(page):
            blocks = re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
            for number, block in enumerate(blocks):
                if re.search(r"^(kind|worker):", block, re.MULTILINE):
                    yield pytest.param(page, block, id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize(("page", "block"), specs())
def test_a_spec_of_a_page_is_one_that_the_program_reads(page, block, tmp_path):
    for name in re.findall(r"program: (?:\./)?(\w+\.py)", block):
        code = re.search(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        (tmp_path / name).write_text(code[1] if code else "print('a program of a reader')\n")
    path = tmp_path / "spec.yaml"
    path.write_text(block)
    spec = load(str(path)).spec
    assert spec.sets
    assert [note.sentence for note in settings_findings(spec) if note.severity is Severity.REFUSAL] == []


def config_files():
    """The settings files of all pages."""
    for page in PAGES:
        for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)):
            yield pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize("block", config_files())
def test_a_settings_file_of_a_page_is_valid(block, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(block)
    settings, contexts = settings_of_file({"L2RTUI_CONFIG": str(path)})
    assert settings or contexts


@pytest.mark.parametrize(
    "line",
    [
        "l2rtui lunch -f run.yaml",
        "l2rtui launch --file-name run.yaml",
        "A=1 l2rtui runs | l2rtui pods --stat failing",
        "l2r-runtime drvie checkpoints",
        "make docks",
    ],
)
def test_a_wrong_command_has_a_fault(line, capsys):
    assert any(fault(words) for words in simple_commands(line))


def test_the_site_loads_nothing_from_elsewhere():
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["theme"]["font"] is False


def test_pages_for_users_are_in_plain_english():
    pages = [DOCS / "index.md", *(page for page in PAGES if page.parent not in (ROOT, DOCS))]
    long = [f"{page.relative_to(ROOT)}: {mean:.1f}" for page in pages if (mean := sentence_length(page)) > 18]
    assert long == []
    marked, words = figures(pages)["document"]
    assert 1000 * marked <= 2 * words, "`python -m tests.language --lines docs/guides` shows the phrases"
