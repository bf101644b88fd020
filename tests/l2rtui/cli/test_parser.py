"""The words of the command line: accepted ones, and a sentence with the nearest valid word for the others."""

from __future__ import annotations

import re
import shlex

import pytest

from l2rtui import __version__
from l2rtui.cli import main as entry
from l2rtui.cli import other_words
from l2rtui.cli.examples import EXAMPLES
from l2rtui.cli.other_words import advice, translated, without_kind
from l2rtui.cli.parser import CHANGING, VERBS, find_verb, split_verb, verb_parser
from l2rtui.cli.parser_selection import span
from l2rtui.domain.selection.filter_language import KINDS
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
        (["Launch"], "There is no verb 'Launch'. Write `l2rtui launch`."),
        (["a.yaml"], "There is no verb 'a.yaml'. Write `l2rtui launch -f a.yaml`."),
        (["qqq"], "There is no verb 'qqq'. The verbs are nodes, slots,"),
        (["get"], "There is no verb 'get'. Write `l2rtui pods`, `nodes`"),
        (
            ["delete", "pod", "x", "-n", "lab"],
            "There is no verb 'delete'. Write `l2rtui kill x`: its set replaces it.",
        ),
        (["delete", "x", "y"], "Write `l2rtui destroy x y` for a run, `l2rtui kill x y` for a pod."),
        (["delete", "-f", "run.yaml"], "Write `l2rtui destroy RUN` with the name in run.yaml."),
        (["delete", "secret", "x"], "Write `l2rtui secret delete x`."),
        (["delete", "pvc/data"], "Write `l2rtui volume delete data`."),
        (["delete", "node", "n1"], "Nodes are the cluster's"),
        (["rm", "-rf", "x"], "There is no verb 'rm'. Write `l2rtui destroy x` for a run"),
        (["down", "x"], "There is no verb 'down'. Write `l2rtui destroy x`."),
        (["stop"], "Write `l2rtui destroy RUN`, or `l2rtui scale RUN/SET 0`."),
        (["apply", "-f", "x.yaml"], "Write `l2rtui launch -f x.yaml`; `l2rtui plan -f x.yaml --diff` shows"),
        (["run", "x.yaml"], "There is no verb 'run'. Write `l2rtui launch -f x.yaml`"),
        (["create", "secret", "generic", "keys"], "Write `l2rtui secret create keys --prompt KEY`."),
        (["create", "pvc", "data"], "Write `l2rtui volume create data --size 50Gi`."),
        (["create", "-f", "x.yaml"], "Write `l2rtui launch -f x.yaml`"),
        (["rollout", "restart", "deploy/x"], "Write `l2rtui kill x`: its set replaces it."),
        (["init"], "Write `l2rtui new NAME --env ID --algorithm ppo`"),
        (["quickstart", "x"], "`l2rtui demo` shows the app without one."),
        (["examples"], "Write `l2rtui launch -t cartpole-ppo`"),
        (["tail", "x"], "Write `l2rtui logs x -w`."),
        (["undo"], "`l2rtui relaunch RUN` launches again."),
        (["curves", "x"], "Write `l2rtui metrics x`"),
        (["pause", "r"], "Runs cannot be paused. `l2rtui scale r/SET 0` stops the workers"),
        (["runs", "--json"], "runs has no option --json. Write -o json."),
        (["slots", "--gpus", "free>1"], "slots has no option --gpus. Did you mean --gpu?"),
        (["results", "prune", "--age=3d"], "results has no option --age. Did you mean --older?"),
        (["results", "prune", "--yea"], "results has no option --yea. Did you mean --yes"),
        (["nodes", "--no-color"], "Set the variable NO_COLOR=1"),
        (["launch", "-f", "x", "--gpus", "2"], "Slots and GPUs are set in the spec"),
        (["demo", "--backend", "local"], "demo is a backend itself"),
        (["ssh", "x"], "Write `l2rtui exec x -- bash`, or `l2rtui attach x`."),
        (["cp", "data:a", "b"], "Write `l2rtui volume get data:a b`"),
        (["watch", "x"], "Write `l2rtui runs -w`"),
        (["launch", "x.yaml"], "launch takes its file by -f. Write `l2rtui launch -f x.yaml`."),
        (["pods", "-A"], "pods has no option -A. Namespaces are named: -n NS1,NS2."),
        (["pods", "--sort-by=x"], "pods has no option --sort-by. Write -o json"),
        (["kill", "-9", "x", "--backend", "demo"], "kill takes no signal -9: it sends SIGTERM"),
        (["pods", "-l", "a b"], "'a b' is not a label selector: write KEY=VALUE"),
        (["pods", "--filter", "nodde=1"], "--filter 'nodde=1': There is no column 'nodde'. Did you mean node?"),
        (["wait", "r"], "the following arguments are required: --for"),
        (["wait", "r", "--for=soon"], "'soon' is not a condition: use running, learned=VALUE, done"),
        (["wait", "r", "--for=learned"], "learned takes the return to wait for, such as learned=200"),
        (["wait", "r", "--for=done=3"], "done takes no value"),
        (
            ["wait", "r", "--for=done", "--timeout", "soon"],
            "'soon' is not a duration: write seconds, or 30m, 12h",
        ),
        (["launch", "-f", "x", "--sed", "3"], "launch has no option --sed. Did you mean --seeds"),
        (["launch", "-f", "x", "--polcy=pack"], "launch has no option --polcy. Did you mean --policy"),
        (["slots", "--zzz"], "slots has no option --zzz. See `l2rtui slots --help`."),
        (["leaks", "phortx1"], "leaks takes no further argument 'phortx1'."),
        (["--sluts"], "l2rtui without a verb has no option --sluts."),
        (["slots", "-o", "xml"], "argument -o/--output: invalid choice: 'xml'"),
        (["launch"], "launch needs a spec. Write `l2rtui launch -f SPEC`"),
        (["launch", "-f", "x", "--seeds", "a"], "'a' is not a seed"),
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
        (["slots", "--backend", "demo", "--config", "nowhere.toml"], "nowhere.toml cannot be read"),
    ],
)
def test_wrong_words_are_a_usage_error_with_a_sentence(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
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


@pytest.mark.parametrize("words", [["get", "--help"], ["-h", "apply"], ["help"]])
def test_help_on_a_word_of_another_tool_is_that_of_the_program(words, capsys):
    assert entry.main(words) == 0
    assert "exit codes:" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help", "me"], ["me", "-h"], ["help", "me"]])
def test_help_on_a_word_that_nobody_knows_names_it(words, capsys):
    assert entry.main(words) == 2
    assert "There is no verb 'me'." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--replay", "nosuch", "--record", "x"], "--record and --replay exclude each other"),
        (["--replay", "x", "--speed", "1000"], "'1000' is not a number from 0.01 to 100"),
        (["--replay", "x", "--speed", "fast"], "'fast' is not a number"),
    ],
)
def test_options_of_recordings_that_cannot_be(words, sentence, capsys, monkeypatch):
    for stream in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert entry.main(words) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["get", "pods"], ["pods"]),
        (["get", "po", "-l", "a=b", "-w"], ["pods", "-l", "a=b", "-w"]),
        (["get", "-n", "lab", "node/n1", "-o", "wide"], ["nodes", "-n", "lab", "n1", "-o", "wide"]),
        (["get", "sts"], ["runs"]),
        (["get", "secrets"], ["secret", "ls"]),
        (["get", "pvc"], ["volume", "ls"]),
        (["get", "x"], []),
        (["ls"], ["runs"]),
        (["ls", "pods"], ["pods"]),
        (["ps"], ["pods"]),
        (["status", "racing-sac"], ["runs", "racing-sac"]),
        (["top"], ["nodes", "-o", "wide"]),
        (["top", "nodes", "n1"], ["nodes", "n1", "-o", "wide"]),
        (["top", "pods"], ["slots", "--state", "busy,failed", "-o", "wide"]),
        (["top", "secrets"], []),
        (["log", "x"], ["logs", "x"]),
        (["run", "x"], ["runs", "x"]),
        (["run", "x.yaml"], []),
        (["diff", "-f", "x.yaml"], ["plan", "--diff", "-f", "x.yaml"]),
        (["help", "wait"], ["wait", "--help"]),
        (["version"], ["--version"]),
        (["delete", "pods"], []),
        (["-x"], []),
    ],
)
def test_words_that_only_look_are_another_spelling(words, meant):
    assert translated(words[0], words[1:]) == meant


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        (["pod", "x"], ["x"]),
        (["-o", "json", "node", "n1"], ["-o", "json", "n1"]),
        (["x"], ["x"]),
        (["x", "y"], ["x", "y"]),
    ],
)
def test_describe_takes_a_kind_before_the_name(words, rest):
    assert without_kind(words) == rest


def test_no_word_of_other_tools_hides_a_verb_and_each_leads_to_one():
    assert not {*other_words.ADVICE, *other_words.SAME, *other_words.LISTS} & set(VERBS)
    for word in other_words.ADVICE:
        hint = advice(word, [])
        assert any(f"`l2rtui {name}" in hint for name in (*VERBS, "--context")), hint
    for meant in (*other_words.SAME.values(), *other_words.LISTS.values(), *KINDS.values()):
        assert not meant or meant.split()[0] in (*VERBS, "--version")


@pytest.mark.parametrize("word", ["demon", "inti", "nw", "paus", "kind", "skills", "seal", "desk", "tory"])
def test_a_verb_that_changes_something_is_not_proposed_for_a_likeness(word):
    with pytest.raises(UsageError) as caught:
        find_verb(word)
    proposed = re.findall(r"[a-z-]+", caught.value.hint.partition("Did you mean")[2])
    assert CHANGING.isdisjoint(proposed)


@pytest.mark.parametrize("word", ["destory", "destrou", "destroyy", "detroy", "lanch", "klil"])
def test_a_slip_of_the_fingers_names_its_verb(word):
    with pytest.raises(UsageError, match=r"Did you mean (destroy|launch|kill)\?"):
        find_verb(word)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1d2h3m4s", 93784), ("0", 0)],
)
def test_a_time_span_is_read_as_people_write_it(text, seconds):
    assert span(text) == seconds


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("running", ("running", None)),
        ("learned=-1.5", ("learned", -1.5)),
        ("delete", ("gone", None)),
        ("condition=Complete", ("done", None)),
        ("condition=Ready", ("running", None)),
        ("condition=Failed", ("failed", None)),
    ],
)
def test_a_condition_may_be_spelled_as_kubectl_does(text, condition):
    args = verb_parser(find_verb("wait")).read(["r", "--for", text])
    assert args.condition == condition


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
    missing = str(tmp_path / "missing")
    monkeypatch.setenv("KUBECONFIG", "" if by_flag else missing)
    monkeypatch.delenv("L2RTUI_BACKEND", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "spec.yaml").write_text("kind: job\nname: mine\njob: {command: [sleep, '60']}\n")
    monkeypatch.chdir(tmp_path)
    assert entry.main([*words, *(["--kubeconfig", missing] if by_flag else [])]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith(f"l2rtui: There is no kubeconfig {missing}.")


def test_cluster_writes_a_kubeconfig_that_need_not_be_there(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "new"))
    assert entry.main(["cluster", "token"]) == 2
    assert "cluster token needs --name" in capsys.readouterr().err


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("files", "revision"),
    [
        ({"l2rtui/COMMIT": f"{COMMIT}\n"}, COMMIT),
        ({".git/HEAD": f"{COMMIT}\n"}, COMMIT),
        ({".git/HEAD": "ref: refs/heads/a\n", ".git/refs/heads/a": f"{COMMIT}\n"}, COMMIT),
        ({".git/HEAD": "ref: refs/heads/a\n", ".git/packed-refs": f"# pack\n{COMMIT} refs/heads/a\n"}, COMMIT),
        (
            {
                ".git": "gitdir: main/worktrees/w\n",
                "main/worktrees/w/HEAD": "ref: refs/heads/a\n",
                "main/worktrees/w/commondir": "../..\n",
                "main/refs/heads/a": f"{COMMIT}\n",
            },
            COMMIT,
        ),
        ({"README": ""}, ""),
    ],
    ids=("wheel", "detached", "branch", "packed", "worktree", "none"),
)
def test_the_version_names_the_commit_where_it_is_known(files, revision, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # git writes an absolute folder into a worktree, this test one from here
    (tmp_path / "l2rtui").mkdir()
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("l2rtui.__file__", str(tmp_path / "l2rtui" / "__init__.py"))
    assert entry.main(["--version"]) == 0
    assert capsys.readouterr().out == f"l2rtui {__version__}{f' (commit {revision[:12]})' if revision else ''}\n"
