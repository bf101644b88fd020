"""Selection and following of lists, over the in-memory cluster: the rows selected by a command's words."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import os
import re
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend, demo_cluster
from l2rtui.cli import main as entry
from l2rtui.cli import output
from l2rtui.cli.output import Output, StderrReporter
from l2rtui.cli.watching import ChangeLines, RepaintedTable, follow
from l2rtui.config import user_name
from l2rtui.domain.node import Node
from l2rtui.domain.receipt import DestroyProgress, Leak, LeakReport, Receipt
from l2rtui.domain.status import Phase
from l2rtui.errors import BackendError
from l2rtui.tables.column import Column, View


@pytest.fixture(autouse=True)
def demo(monkeypatch, tmp_path):
    monkeypatch.setenv("L2RTUI_BACKEND", "demo")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def named(capsys, *words):
    """Names that a command prints, and its messages."""
    assert entry.main([*words, "-o", "name"]) == 0
    written = capsys.readouterr()
    return written.out.split(), written.err


EVALUATORS = ["racing-sac-s0-eval-0", "racing-sac-s1-eval-0"]
WORKERS = [f"racing-sac-s0-w-{number}" for number in range(4)]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("nodes", "phortx1", "phortx3"), ["phortx1", "phortx3"]),
        (("nodes", "*2"), ["phortx2"]),
        (("nodes", "--state", "cordoned"), ["phortx3"]),
        (("nodes", "-l", "kubernetes.io/hostname in (phortx1,phortx2)"), ["phortx1", "phortx2"]),
        (("nodes", "-l", "nvidia.com/gpu.product", "-l", "kubernetes.io/hostname!=phortx1", "*2"), ["phortx2"]),
        (("nodes", "--filter", "free>0 ip=10.20.0.2"), ["phortx2"]),
        (("nodes", "--filter", "pods>15"), ["phortx1"]),
        (("nodes", "--gpu", "free>=4 model=A100 memory>=40G"), ["phortx1", "phortx2"]),
        (("nodes", "--gpu", "free>=4 model=H100"), []),
        (("slots", "phortx1", "--gpu", "free=4", "--filter", "slot~.0"), ["phortx1/6.0", "phortx1/7.0"]),
        (("slots", "phortx1/2.1"), ["phortx1/2.1"]),
        (("slots", "phortx2/7"), [f"phortx2/7.{slot}" for slot in range(4)]),
        (("slots", "--state", "failed"), ["phortx1/2.2"]),
        (("slots", "phortx1", "--run", "racing-sac-s0", "--filter", "set=learner"), ["phortx1/0.0"]),
        (("slots", "--state", "free,busy", "--node", "phortx1", "--owner", "u17", "--filter", "gpu=26"), []),
        (("pods", "racing-sac-s0/w"), WORKERS),
        (("pods", "racing-sac/w/0"), ["racing-sac-s0-w-0", "racing-sac-s1-w-0"]),
        (("pods", "racing-sac-s0-w-?"), WORKERS),
        (("pods", "pod/racing-sac-s0-w-1", "racing-sac-s0-w-1"), ["racing-sac-s0-w-1"]),
        (("pods", "--state", "failing"), ["racing-sac-s1-w-3"]),
        (("pods", "--state", "crashloopbackoff"), ["racing-sac-s1-w-3"]),
        (("pods", "--run", "racing-sac", "-l", "l2rtui.io/role=evaluator"), EVALUATORS),
        (("pods", "--node", "phortx3"), ["render-farm-0"]),
        (("runs", "racing-sac"), ["racing-sac-s0", "racing-sac-s1"]),
        (("runs", "--mine", "--state", "degraded"), ["racing-sac-s1"]),
        (("runs", "--state", "live", "--owner", "u17,u18"), ["lidar-ppo"]),
        (("runs", "-l", "l2rtui.io/experiment=racing-sac,l2rtui.io/seed=1"), ["racing-sac-s1"]),
        (("runs", "--node", "phortx1", "--filter", "seed=0 !racing"), ["lidar-ppo"]),
        (("metrics", "racing-*"), ["racing-sac-s0", "racing-sac-s1"]),
        (("metrics", "--filter", "steps>100,000,000"), ["lidar-ppo"]),
        (("metrics",), ["lidar-ppo", "racing-sac-s0", "racing-sac-s1"]),
    ],
)  # fmt: skip
def test_words_choose_and_all_of_them_hold(words, names, capsys):
    try:
        found, _ = named(capsys, *words)
    except AssertionError:
        pytest.fail(capsys.readouterr().err)
    assert found == names


def test_a_pod_that_does_not_fit_its_place_is_named_with_a_sentence(capsys, monkeypatch):
    whole = demo_cluster.foreign_pod

    def astray(*args):
        return replace(whole(*args), flags=("names device 3, its plan says 0",))

    monkeypatch.setattr(demo_cluster, "foreign_pod", astray)
    sentence = "render-farm-0 names device 3, its plan says 0"
    for words in (("pods", "render-farm-0"), ("slots", "--state", "busy", "--owner", "u31")):
        assert entry.main([*words, "-o", "json"]) == 0
        written = capsys.readouterr()
        assert [row["mismatches"] for row in json.loads(written.out)] == [[sentence]]
        assert f"Mismatch: {sentence}." in written.err
    assert entry.main(["pods", "render-farm-0", "-o", "wide"]) == 0
    assert sentence in capsys.readouterr().out
    for target in ("render-farm-0", "phortx3"):
        assert entry.main(["describe", target]) == 0
        assert f"Mismatch: {sentence}." in capsys.readouterr().out
    assert entry.main(["pods", "racing-sac-s0", "-o", "json"]) == 0
    written = capsys.readouterr()
    assert "Mismatch" not in written.err
    assert all(row["mismatches"] == [] for row in json.loads(written.out))


def test_leaks_are_removed_with_a_receipt_for_each_run(capsys, monkeypatch):
    async def leaked(self):  # the runs of two leaks exist in this cluster, so that there is something to remove
        runs = {run.name: run for run in (await self.snapshot()).runs.values()}
        leaks = (
            Leak("racing-sac-s0", "Pod", "p", "its run is gone", runs.get("racing-sac-s0")),
            Leak("racing-sac-s0", "Lease", "l", "claims slot a", runs.get("racing-sac-s0")),
            Leak("lidar-ppo", "Service", "s", "its run is gone", runs.get("lidar-ppo")),
            Leak("r", "Pod", "bare", "no controller looks after it"),
        )
        return LeakReport(leaks)

    monkeypatch.setattr(FakeBackend, "leaks", leaked)
    assert entry.main(["leaks", "-o", "name"]) == 4
    assert capsys.readouterr().out.split() == ["p", "l", "s", "bare"]
    assert entry.main(["leaks", "--clean", "--yes"]) == 3
    assert "lidar-ppo (u17) does not belong to you, so leaks --clean leaves everything" in capsys.readouterr().err
    assert entry.main(["leaks", "--clean", "--admin"]) == 2
    assert entry.main(["leaks", "--clean", "--yes", "--admin", "-o", "json"]) == 4
    written = capsys.readouterr()
    assert {receipt["run"]: receipt["left"] for receipt in json.loads(written.out)} == {
        "racing-sac-s0": 0,
        "lidar-ppo": 0,
    }
    assert "Pod bare stays: no controller looks after it." in written.err


def test_a_destroy_in_which_nothing_changes_says_for_how_long(capsys, monkeypatch):
    async def stuck(self, run, **_):
        yield DestroyProgress((("Pod", 13),))
        async with asyncio.timeout(30):
            while not any("(13 left), no change for" in text for text in written):
                await asyncio.sleep(0)
        yield Receipt(run.name, 13, (), 20.0)

    written: list[str] = []
    monkeypatch.setattr(output, "is_screen", lambda _: True)
    monkeypatch.setattr(StderrReporter, "_write", lambda _self, text: written.append(text))
    monkeypatch.setattr("l2rtui.cli.verbs.destroy._SILENT_SECONDS", 0.0)
    monkeypatch.setattr(FakeBackend, "destroy", stuck)
    assert entry.main(["destroy", "racing-sac-s0", "--yes"]) == 0
    assert "racing-sac-s0" in capsys.readouterr().out


def test_mismatches_are_summed_up_above_ten(capsys, monkeypatch):
    whole = demo_cluster.foreign_pod
    flags = tuple(f"holds more of device {number}" for number in range(25, 0, -1))
    monkeypatch.setattr(demo_cluster, "foreign_pod", lambda *args: replace(whole(*args), flags=flags))
    assert entry.main(["pods", "render-farm-0"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" ")[2] for line in lines[:10]] == [f"{number}." for number in range(1, 11)]
    assert lines[10:] == ["… and 15 more mismatches: see `-o wide`."]


def test_ready_is_measured_by_the_replicas_that_the_spec_wants(capsys, monkeypatch):
    whole = FakeBackend.snapshot

    async def refused(self):  # a quota let one worker of s0 not start; the others of s1 have ended well
        snapshot = await whole(self)
        pods = {
            uid: replace(pod, phase=Phase.SUCCEEDED, ready=False) if pod.run == "racing-sac-s1" else pod
            for uid, pod in snapshot.pods.items()
            if pod.name != "racing-sac-s0-w-3"
        }
        return dataclasses.replace(snapshot, pods=pods)

    monkeypatch.setattr(FakeBackend, "snapshot", refused)
    assert entry.main(["runs", "racing-sac"]) == 0
    header, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    ready = {row[0]: row[header.index("READY")] for row in rows}
    assert ready == {"racing-sac-s0": "5/6", "racing-sac-s1": "6/6"}


def test_lists_name_the_namespace_where_it_differs(capsys, monkeypatch):
    whole = FakeBackend.snapshot

    async def in_two(self):
        snapshot = await whole(self)
        pods = {uid: replace(pod, namespace="lab" if pod.run else "lab3") for uid, pod in snapshot.pods.items()}
        runs = {uid: replace(run, namespace="lab") for uid, run in snapshot.runs.items()}
        return dataclasses.replace(snapshot, pods=pods, runs=runs)

    monkeypatch.setattr(FakeBackend, "snapshot", in_two)
    tables = {}
    for words in (("pods",), ("pods", "--filter", "namespace=lab3"), ("runs",), ("runs", "-o", "wide")):
        assert entry.main(list(words)) == 0
        tables[words] = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert tables["pods",][0] == ["POD", "NAMESPACE"]
    assert {row[1] for row in tables["pods",][1:]} == {"lab", "lab3"}
    foreign = {name for name, _ in tables["pods", "--filter", "namespace=lab3"][1:]}
    assert foreign == {"notebook-7f9c", "render-farm-0", "segment-train-0"}
    assert tables["runs",][0] == ["RUN", "OWNER"]  # all in one
    assert tables["runs", "-o", "wide"][0] == ["RUN", "NAMESPACE"]
    assert entry.main(["runs", "-o", "json"]) == 0
    assert {row["namespace"] for row in json.loads(capsys.readouterr().out)} == {"lab"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("pods", "--owner", "nobody"), f"None of 24 pods matches by owner: the owners are {user_name()}, u17,"),
        (
            ("runs", "--state", "stalled"),
            "None of 3 runs matches by state: the states are Degraded, Running, live.",
        ),
        (("slots", "--run", "x*"), "None of 96 slots matches by run: the runs are lidar-ppo, racing-sac-s0,"),
        (("nodes", "x*"), "None of 3 nodes matches by name: the names are phortx1, phortx2, phortx3."),
        (("nodes", "-l", "zone=b"), "None of 3 nodes matches by label."),
        (("pods", "--node", "phortx3", "--run", "lidar-ppo"), "None of 24 pods matches all of these arguments."),
        (("metrics", "--owner", "nobody"), "None of 3 runs matches by owner"),
    ],
)
def test_an_empty_list_says_which_word_is_to_blame(words, sentence, capsys):
    names, talk = named(capsys, *words)
    assert names == []
    assert sentence in talk


def test_metrics_of_several_runs_are_a_list_and_of_one_by_its_name_an_object(capsys):
    assert entry.main(["metrics", "racing-sac", "-o", "json"]) == 0
    assert [one["run"] for one in json.loads(capsys.readouterr().out)] == ["racing-sac-s0", "racing-sac-s1"]
    assert entry.main(["metrics", "racing-sac-s0", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "racing-sac-s0"


def test_labels_are_the_same_on_every_backend(capsys):
    assert entry.main(["pods", "racing-sac-s0-w-1", "-o", "json"]) == 0
    (pod,) = json.loads(capsys.readouterr().out)
    assert pod["labels"] == {
        "l2rtui.io/run": "racing-sac-s0",
        "l2rtui.io/owner": user_name(),
        "l2rtui.io/seed": "0",
        "l2rtui.io/set": "w",
        "l2rtui.io/role": "worker",
    }
    assert re.fullmatch(r"10\.21\.\d+\.\d+", pod["ip"])


def test_a_word_of_another_tool_that_only_looks_is_carried_out(capsys):
    assert entry.main(["get", "po", "racing-sac-s0/w", "-o", "name"]) == 0
    written = capsys.readouterr()
    assert (written.out.split(), written.err) == (WORKERS, "")  # no message about it in a script


@pytest.mark.parametrize(
    ("words", "code", "outcomes"),
    [
        (("racing-sac-s0", "--for=running"), 0, {"racing-sac-s0": "reached"}),
        (("racing-sac", "--for=running", "--timeout", "0"), 124, {"racing-sac-s1": "waiting"}),
        (("racing-sac", "--for=running", "--any"), 0, {"racing-sac-s0": "reached"}),
        (("racing-sac-s0", "--for=done", "--timeout", "0"), 124, {"racing-sac-s0": "waiting"}),
        (("lidar-ppo", "--for=learned=-1e9"), 0, {"lidar-ppo": "reached"}),
        (("lidar-ppo", "--for=learned=-1e9", "--timeout", "0"), 0, {"lidar-ppo": "reached"}),
        (("lidar-ppo", "--for=learned=1e9", "--timeout", "0"), 124, {"lidar-ppo": "waiting"}),
        (("nobody", "--for=gone"), 0, {}),
    ],
)  # fmt: skip
def test_wait_ends_with_a_code_for_each_outcome(words, code, outcomes, capsys):
    assert entry.main(["wait", *words, "-o", "json"]) == code
    found = {one["run"]: one["outcome"] for one in json.loads(capsys.readouterr().out)}
    assert outcomes.items() <= found.items()


# --- writers of a followed list ----------------------------------------------------------------------------------
VIEW = View(
    "name",
    (
        Column("NAME", "name"),
        Column("STATE", "state"),
        Column("AGE", "age", is_number=True, is_volatile=True),
        Column("WHY", "why", is_wide=True),
    ),
)


def row(name, state="up", age=1, why="-"):
    return {"uid": name, "name": name, "state": state, "age": age, "why": why}


def lines(form="table", volatile=frozenset()):
    stream, talk = io.StringIO(), io.StringIO()
    return ChangeLines(Output(form, stream), StderrReporter(talk), VIEW, "uid", volatile), stream, talk


def test_a_pipe_gets_a_line_for_each_change_and_none_for_an_age():
    writer, stream, _ = lines()
    writer.show([row("a"), row("b")], "")
    writer.show([row("a", age=2), row("b", age=2, why="a wide column")], "")
    writer.show([row("a", "down", age=3), row("c")], "")
    written = [line.split() for line in stream.getvalue().splitlines()]
    assert written == [
        ["EVENT", "NAME", "STATE", "AGE"],
        ["added", "a", "up", "1"],
        ["added", "b", "up", "1"],
        ["changed", "a", "down", "3"],
        ["added", "c", "up", "1"],
        ["gone", "b", "up", "2"],
    ]


def test_json_is_one_object_a_line_and_a_field_that_always_differs_is_no_change():
    writer, stream, _ = lines("json", frozenset({"age"}))
    writer.show([row("a")], "")
    writer.show([row("a", age=2)], "")
    writer.show([row("a", age=3, why="new")], "")
    writer.show([], "")
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(one["event"], one["age"], one["why"]) for one in found] == [
        ("added", 1, "-"), ("changed", 3, "new"), ("gone", 3, "new"),
    ]  # fmt: skip


def test_trouble_is_said_once_and_so_is_its_end():
    writer, stream, talk = lines()
    documents = [row("a")]
    for trouble in ("", "nothing answers", "nothing answers", ""):
        writer.show(documents, trouble)
    assert talk.getvalue().splitlines() == [
        "warning: nothing answers",
        "The list is up to date again.",
    ]
    assert len(stream.getvalue().splitlines()) == 2


class _Terminal(io.StringIO):
    def isatty(self):
        return True


class Screen:
    """Contents of a terminal of some size: as much emulation as a repainted table needs."""

    def __init__(self, columns: int, rows: int, before: list[str]) -> None:
        self.columns, self.rows = columns, rows
        self.lines, self.before = list(before), len(before)
        self.row = len(before)

    def feed(self, text: str) -> None:
        for part in re.findall(r"\x1b\[\??\d*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if match := re.fullmatch(r"\x1b\[(\d+)A", part):
                self.row -= int(match[1])
                assert self.row >= 0
            elif part == "\x1b[J":
                del self.lines[self.row :]
            elif part == "\n":
                self.row += 1
            elif not part.startswith(("\x1b", "\r")):
                assert len(part) < self.columns
                self.lines[self.row : self.row + 1] = [part]
        assert len(self.lines) - self.before < self.rows  # earlier contents may scroll away


def test_a_terminal_shows_one_table_that_is_painted_over_itself(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    size = os.terminal_size((24, 8))
    monkeypatch.setattr("shutil.get_terminal_size", lambda: size)
    stream, screen = _Terminal(), Screen(24, 8, ["$ l2rtui"])
    writer = RepaintedTable(Output("wide", stream), VIEW)
    shown = []
    for documents, trouble in (
        ([row(f"name-{number}", why="because of many things") for number in range(3)], ""),
        ([row(f"name-{number}") for number in range(9)], ""),
        ([row("name-1", "down")], "nothing answers"),
        ([row("name-1", "down")], "nothing answers"),
    ):
        stream.seek(0)
        stream.truncate()
        writer.show(documents, trouble)
        screen.feed(stream.getvalue())
        shown.append(list(screen.lines))
    assert shown[0] == ["$ l2rtui", "NAME    STATE  AGE  WHY", *(f"name-{n}  up       1  be…" for n in range(3))]
    assert shown[1][1:] == [
        "NAME    STATE  AGE  WHY", *(f"name-{n}  up       1  -" for n in range(5)), "… 4 more: a taller term",
    ]  # fmt: skip
    assert shown[2] == ["$ l2rtui", "NAME    STATE  AGE  WHY", "name-1  down     1  -", "▲ nothing answers"]
    assert (shown[3], stream.getvalue()) == (shown[2], "")  # no difference: nothing is painted


def test_a_narrower_terminal_has_wrapped_the_lines_that_stand_there(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    size = os.terminal_size((40, 10))
    monkeypatch.setattr("shutil.get_terminal_size", lambda: size)
    stream = _Terminal()
    writer = RepaintedTable(Output("wide", stream), VIEW)
    writer.show([row("a-long-name", why="for a good reason")], "")
    size = os.terminal_size((20, 10))
    stream.seek(0)
    stream.truncate()
    writer.show([row("a-long-name", why="for a good reason")], "")
    assert stream.getvalue().startswith("\x1b[?7l\x1b[4A\r")  # two lines of 21 to 40 characters take two rows each


# --- the watch behind it ---------------------------------------------------------------------------------------
async def test_a_watch_that_is_lost_is_said_and_goes_on(monkeypatch):
    monkeypatch.setattr("l2rtui.services.monitor.FIRST_BACKOFF_SECONDS", 0.05)
    backend = FakeBackend()
    writer, stream, talk = lines("json")

    async def documents(snapshot):
        return [row(node) for node in snapshot.nodes]

    async def until(is_so):
        async with asyncio.timeout(60.0):
            while not is_so():
                await asyncio.sleep(0.01)

    following = asyncio.ensure_future(follow(SimpleNamespace(backend=backend), writer, documents))
    await until(lambda: stream.getvalue().count("added") == 3)
    backend.outage = "the cable is out"
    backend.advance(1)
    await until(lambda: "the watch is lost, the list is out of date: the cable is out" in talk.getvalue())
    backend.outage = ""
    backend.put_node(Node("phortx9"))
    await until(lambda: "The list is up to date again." in talk.getvalue())
    await until(lambda: stream.getvalue().count("added") == 4)
    assert "gone" not in stream.getvalue()  # an outage removes nothing
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_backend_that_cannot_be_read_at_all_is_an_error():
    backend = FakeBackend()
    backend.outage = "the cable is out"
    writer, stream, _ = lines()
    with pytest.raises(BackendError, match="the cable is out"):
        async with asyncio.timeout(60.0):
            await follow(SimpleNamespace(backend=backend), writer, None)
    assert stream.getvalue() == ""
