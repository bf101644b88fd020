"""The words of the command line: what is understood, and a sentence with the nearest right word for the rest."""

from __future__ import annotations

import shlex

import pytest

from l2rtui.cli import main as entry
from l2rtui.cli.examples import EXAMPLES
from l2rtui.cli.parser import VERBS, find_verb, split_verb, verb_parser
from l2rtui.errors import UsageError


@pytest.mark.parametrize(
    ("words", "verb", "rest"),
    [
        ([], "", []),
        (["slots"], "slots", []),
        (["--backend", "demo", "slots", "-o", "json"], "slots", ["--backend", "demo", "-o", "json"]),
        (["--backend=demo", "slots"], "slots", ["--backend=demo"]),
        (["-n", "slots", "pods"], "pods", ["-n", "slots"]),
        (["--readonly"], "", ["--readonly"]),
        (["--backend"], "", ["--backend"]),
        (["logs", "slots"], "logs", ["slots"]),
    ],
)
def test_the_verb_is_found_among_the_options(words, verb, rest):
    assert split_verb(words) == (verb, rest)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["slts"], "There is no verb 'slts'. Did you mean slots"),
        (["destory", "x"], "There is no verb 'destory'. Did you mean destroy"),
        (["qqq"], "There is no verb 'qqq'. The verbs are nodes, slots,"),
        (["get", "pods"], "There is no verb 'get'. Write the list alone: `l2rtui pods`"),
        (
            ["delete", "pod", "x"],
            "There is no verb 'delete'. Write `l2rtui destroy RUN` for a run, `l2rtui kill POD`",
        ),
        (["apply", "-f", "x.yaml"], "There is no verb 'apply'. Write `l2rtui launch -f SPEC`"),
        (["top"], "There is no verb 'top'. Write `l2rtui nodes` for load"),
        (["status"], "There is no verb 'status'. Write `l2rtui runs`"),
        (["ls"], "There is no verb 'ls'. Write `l2rtui runs`"),
        (["wait", "r"], "There is no verb 'wait'. Write `l2rtui launch --wait`"),
        (["help"], "There is no verb 'help'. Write `l2rtui --help`"),
        (["launch", "-f", "x", "--sed", "3"], "launch has no option --sed. Did you mean --seeds"),
        (["launch", "-f", "x", "--polcy=pack"], "launch has no option --polcy. Did you mean --policy"),
        (["slots", "--zzz"], "slots has no option --zzz. See `l2rtui slots --help`."),
        (["slots", "phortx1"], "slots takes no further argument 'phortx1'."),
        (["--sluts"], "l2rtui without a verb has no option --sluts."),
        (["slots", "-o", "xml"], "argument -o/--output: invalid choice: 'xml'"),
        (["launch"], "the following arguments are required: -f/--file"),
        (["launch", "-f", "x", "--seeds", "a"], "'a' is no seed"),
        (["launch", "-f", "x", "--on", "phortx1"], "'phortx1' names no slot"),
        (["launch", "-f", "x", "--timeout", "soon"], "'soon' is not a number of seconds"),
        (["launch", "-f", "x", "--timeout", "nan"], "'nan' is not a number of seconds"),
        (["kill", "x", "--grace", "-1"], "'-1' is not a number of seconds"),
        (["scale", "r/w", "-2"], "'-2' is not a whole number from 0 up"),
        (["scale", "r/w", "1.5"], "'1.5' is not a whole number from 0 up"),
        (["logs", "r", "--tail", "some"], "'some' is not a whole number"),
        (["completion", "tcsh"], "invalid choice: 'tcsh'"),
        (["--backend"], "l2rtui: argument --backend: expected one argument. See `l2rtui --help`."),
        (["exec", "r/w/0", "ls"], "exec takes no further argument 'ls'. Write `l2rtui exec TARGET -- CMD`."),
        (["destroy"], "destroy needs the names of runs"),
        (["--backend", "kubernets", "slots"], "There is no backend 'kubernets'. Did you mean kubernetes?"),
        (["slots", "--backend", "demo", "--context", "x"], "The demo backend has no contexts"),
        (["slots", "--backend", "local", "--context", "x"], "The local backend has no contexts"),
        (["slots", "--backend", "local", "-n", "x"], "The local backend has no namespaces"),
        (["slots", "--backend", "demo", "--config", "/nowhere.toml"], "/nowhere.toml cannot be read"),
    ],
)
def test_wrong_words_are_a_usage_error_with_a_sentence(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert entry.main(words) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("l2rtui: ")
    assert written.err.count("\n") == 1
    assert sentence in written.err


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_explains_itself(name, capsys):
    assert entry.main([name, "--help"]) == 0
    written = capsys.readouterr()
    assert written.out.startswith(f"usage: l2rtui {name}")
    assert written.err == ""


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_examples_and_each_is_understood(name):
    for line in EXAMPLES[name]:
        words = shlex.split(line.partition(" > ")[0])
        assert words[0] == "l2rtui"
        verb, rest = split_verb(words[1 : words.index("--") if "--" in words else None])
        assert verb == name
        verb_parser(find_verb(verb)).read(rest)


def test_no_example_is_of_a_verb_that_is_not_there():
    assert set(EXAMPLES) == set(VERBS)


@pytest.mark.parametrize("words", [["--help", "me"], ["me", "-h"], ["get", "--help"]])
def test_whoever_asks_for_help_with_a_word_that_is_no_verb_gets_it(words, capsys):
    assert entry.main(words) == 0
    assert "verbs:" in capsys.readouterr().out


def test_words_of_other_tools_are_no_verbs_and_lead_to_some():
    from l2rtui.cli.parser import _ELSEWHERE

    for word, hint in _ELSEWHERE.items():
        assert word not in VERBS
        assert any(f"`l2rtui {name}" in hint for name in (*VERBS, "--help"))


def test_help_lists_every_verb_and_the_exit_codes(capsys):
    assert entry.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in VERBS)
    assert "3 refused by preflight" in out


@pytest.mark.parametrize("name", VERBS)
def test_every_option_is_known_to_completion(name):
    parser = verb_parser(find_verb(name))
    assert set(parser.values) <= set(parser.options)
    assert {"--backend", "--context", "-n", "--config", "--readonly"} <= set(parser.options)


def test_abbreviations_are_not_guessed():
    with pytest.raises(UsageError, match="--out"):
        verb_parser(find_verb("slots")).read(["--out", "json"])


@pytest.mark.parametrize("words", [["plan", "-f", "spec.yaml"], ["nodes"], ["destroy", "x", "--yes"], ["serve"]])
@pytest.mark.parametrize("by_flag", [False, True])
def test_a_kubeconfig_that_was_named_and_is_missing_is_an_error_with_its_path(
    words, by_flag, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("KUBECONFIG", "" if by_flag else "/nonexistent")
    monkeypatch.delenv("L2RTUI_BACKEND", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "spec.yaml").write_text("kind: job\nname: mine\njob: {command: [sleep, '60']}\n")
    monkeypatch.chdir(tmp_path)
    assert entry.main([*words, *(["--kubeconfig", "/nonexistent"] if by_flag else [])]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("l2rtui: There is no kubeconfig /nonexistent.")


def test_cluster_writes_a_kubeconfig_that_need_not_be_there(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "new"))
    assert entry.main(["cluster", "token"]) == 2
    assert "cluster token needs --name" in capsys.readouterr().err
