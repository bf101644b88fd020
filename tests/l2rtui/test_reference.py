"""The generated reference: each page is current, and covers every verb, setting, variable, code and metric."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from l2rtui import errors
from l2rtui.cli.examples import PAGES
from l2rtui.cli.parser import VERBS, verb_parser
from l2rtui.config import Settings
from runtime.base import contract
from runtime.exchange.status_server import prometheus
from tests.documents import DOCS, ROOT
from tests.reference import PAGES_MADE, VARIABLES, page

STATUS = {
    "run": "r",
    **dict.fromkeys(("workers", "policy_version", "inflight_transitions", "store", "strangers", "env_steps"), 1),
    **dict.fromkeys(("idle_share", "network_share", "gpu_percent", "gpu_memory_bytes", "gpu_reserved_bytes"), 1),
    "inference": {"requests": 1},
    "traffic": {"bytes_in": 1},
    "segments": {"accepted": 1},
    "policy_lag": (0, 1, 2),
    "peers": [
        {
            "pod": "w-0",
            "role": "worker",
            **dict.fromkeys(("env_steps_per_second", "policy_lag", "outstanding", "heard_seconds"), 1),
        }
    ],
}


@pytest.mark.parametrize("name", PAGES_MADE)
def test_a_generated_page_is_current(name):
    assert (DOCS / name).read_text("utf-8") == page(name), "run `python -m tests.reference`"


def test_every_verb_has_a_section_with_all_its_options():
    sections = dict(re.findall(r"^## ([a-z-]+)\n(.*?)(?=^## |\Z)", page("verbs.md"), re.MULTILINE | re.DOTALL))
    assert set(VERBS) == set(sections)
    common = page("verbs.md").partition("\n## nodes")[0]
    for name, verb in VERBS.items():
        shown = sections[name] + common
        hidden = {"--help", "-h", "--as-run"}
        missing = [word for word in verb_parser(verb).options if word not in hidden and word not in shown]
        assert missing == [], name


def test_the_help_of_every_verb_names_pages_that_exist():
    anchors = set(re.findall(r"^## ([a-z-]+)$", page("verbs.md"), re.MULTILINE))
    for name, verb in VERBS.items():
        last = verb_parser(verb).format_help().rstrip().splitlines()[-1]
        assert last.startswith(f"docs: docs/verbs.md#{name}")
        assert name in anchors
        assert (ROOT / last.split(" ")[-1].partition("#")[0]).is_file(), last
    assert set(PAGES) <= set(VERBS)


def test_every_setting_and_variable_is_described():
    text = page("configuration.md")
    for setting in fields(Settings):
        assert re.search(rf"^\| `{setting.name}` \|.* \| .{{20,}} \|$", text, re.MULTILINE), setting.name
    for name, value in vars(contract).items():
        if name.startswith("ENV_"):
            assert re.search(rf"^\| `{value}` \| .{{20,}} \|$", text, re.MULTILINE), name
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "l2rtui").rglob("*.py"))
    assert [name for name in VARIABLES if name.rstrip("*").removeprefix("L2RTUI_") not in sources] == []


def test_every_exit_code_is_described():
    text = page("exit-codes.md")
    codes = {value for module in (errors, contract) for name, value in vars(module).items() if name[:5] == "EXIT_"}
    assert len(codes) >= 9
    assert [code for code in codes if f"| {code} |" not in text] == []


def test_every_name_for_prometheus_is_described():
    text = page("metrics.md")
    for name in re.findall(r"^# TYPE (\S+)", "".join(prometheus(STATUS)), re.MULTILINE):
        general = re.sub(r"^l2r_(exchange|inference)_.*_total$", r"l2r_\1_NAME_total", name)
        assert f"| `{general}` |" in text
