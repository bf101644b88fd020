"""config check: every error of the settings file in one run."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from l2rtui.cli.main import main
from l2rtui.config import Settings

WRONG = """\
theme = "l2r-drak"
slots_per_gpuu = 4
max_cpu_slots = 0
[keys]
"run.destory" = "x"
[filters]
broken = "podz x"
[context.prdo]
protected = "maybe"
[context.local]
backend = "demo"
limits = { wall = "12q" }
"""


@pytest.fixture
def checked(tmp_path, monkeypatch, capsys):
    """Check a file of this text: exit code and findings."""
    monkeypatch.delenv("L2RTUI_READY_SECONDS")  # set for all other tests
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    (tmp_path / "kubeconfig").write_text(
        "apiVersion: v1\nkind: Config\ncontexts: [{name: prod, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: https://192.0.2.1}}]\nusers: [{name: u, user: {}}]\n"
    )

    def check(text: str | None):
        path = tmp_path / "config.toml"
        if text is not None:
            path.write_text(text)
        code = main(["--config", str(path), "config", "check", "-o", "json"])
        return code, json.loads(capsys.readouterr().out)

    return check


def test_every_mistake_is_named(checked):
    code, findings = checked(WRONG)
    assert code == 1
    sentences = [f"{finding['subject']}: {finding['sentence']} {finding['hint'] or ''}" for finding in findings]
    for part in (
        "there is no theme 'l2r-drak' Did you mean l2r-dark?",
        "Did you mean slots_per_gpu?",
        "max_cpu_slots",
        "there is nothing named 'run.destory'",
        "broken is 'podz x'",
        "context.prdo.protected",
        "[context.prdo]: the kubeconfig has no such context Did you mean prod?",
        "context.local.backend",
        "[context.local]: The table [limits] is wrong: wall: '12q'",
    ):
        assert sum(part in sentence for sentence in sentences) == 1, part
    assert len(findings) == 9


def test_a_file_that_is_no_toml_is_one_finding(checked):
    code, findings = checked("theme = [")
    assert code == 1
    assert [finding["weight"] for finding in findings] == ["refusal"]
    assert "is not TOML" in findings[0]["sentence"]


def test_a_right_file_and_the_variables_over_it(checked, monkeypatch):
    monkeypatch.setenv("L2RTUI_NOTIFY", "off")
    code, findings = checked('theme = "l2r-light"\n[context.prod]\nprotected = true\n')
    assert code == 0
    assert {finding["weight"] for finding in findings} == {"ok"}
    assert findings[0]["sentence"].endswith("config.toml: 1 setting, and tables of 1 context")
    assert findings[1]["sentence"] == "sets notify over the file"


def test_a_wrong_variable_is_a_mistake(checked, monkeypatch):
    monkeypatch.setenv("L2RTUI_PROTECTED", "off")
    code, findings = checked("")
    assert (code, "can only be set in the file" in findings[0]["sentence"]) == (1, True)


def test_no_file_is_no_mistake(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("L2RTUI_CONFIG", raising=False)
    assert main(["config", "-o", "json"]) == 0
    assert "every setting has its default" in capsys.readouterr().out


def test_a_kubeconfig_that_cannot_be_read_is_said(checked, tmp_path):
    (tmp_path / "kubeconfig").write_text("contexts: [")
    code, findings = checked("[context.prod]\nprotected = true\n")
    assert code == 0
    assert [finding["weight"] for finding in findings] == ["warning"]


def test_every_setting_is_shown_with_the_place_that_decides_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.delenv("L2RTUI_READY_SECONDS")
    monkeypatch.setenv("L2RTUI_NAMESPACES", "lab,team")
    path = tmp_path / "config.toml"
    path.write_text('theme = "l2r-light"\nslots_per_gpu = 8\nnotify = false\n[context.local]\nslots_per_gpu = 2\n')
    assert main(["--config", str(path), "--backend", "local", "config", "show", "-o", "json"]) == 0
    shown = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(shown) == {field.name for field in fields(Settings)}
    of = {name: (row["value"], row["source"]) for name, row in shown.items()}
    assert of["theme"] == ("l2r-light", str(path))
    assert of["slots_per_gpu"] == (2, f"{path} [context.local]")
    assert of["namespaces"] == (["lab", "team"], "L2RTUI_NAMESPACES")
    assert of["backend"] == ("local", "flag")
    assert of["grace_seconds"] == (None, "default")
    assert (shown["slots_per_gpu"]["default"], shown["slots_per_gpu"]["variable"]) == (4, "L2RTUI_SLOTS_PER_GPU")
    assert shown["keys"]["variable"] is None
    assert main(["--config", str(path), "config", "show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "SOURCE", "DEFAULT", "VARIABLE"]
    assert ["notify", "false", str(path), "true", "L2RTUI_NOTIFY"] in [line.split() for line in lines]
