"""``--view`` on the command line: links and files, the context in which the app opens, and refusals."""

from __future__ import annotations

import os

import pytest

from l2rtui.cli.main import main
from l2rtui.cli.parser import app_parser
from l2rtui.cli.shared_view import take_place
from l2rtui.domain.selection.shared_view import MAX_CHARS, SharedView

VIEW = SharedView("kubernetes", "blue", ("rl", "lab"), "pods", filters=(("pods", "status=Failed"),))


def read(*words):
    args = app_parser().read(list(words))
    take_place(args)
    return args


@pytest.mark.parametrize("form", ["link", "file"])
def test_a_view_names_the_place_and_what_is_shown(form, tmp_path):
    (tmp_path / "view").write_text(f"{VIEW.link}\nmore\n")
    args = read("--view", VIEW.link if form == "link" else str(tmp_path / "view"))
    assert args.view == VIEW
    assert (args.backend, args.context, args.namespace) == ("kubernetes", "blue", "rl,lab")


def test_the_command_line_wins_over_the_place_of_the_view():
    args = read("--view", VIEW.link, "--backend", "demo")
    assert (args.backend, args.context, args.namespace) == ("demo", None, None)
    args = read("--view", VIEW.link, "-n", "mine")
    assert (args.context, args.namespace) == ("blue", "mine")
    assert read().view is None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "is neither a file nor a link of a view"),
        (b"", "not a link of a view"),
        (b"\xff\xfe", "holds no link of a view"),
        (b"x" * (MAX_CHARS + 100), "4096 at most"),
        (b"l2rtui:view?run=\x1b[2J", "cannot be seen"),
    ],
)
def test_files_that_hold_no_view_are_refused_in_a_sentence(tmp_path, capsys, content, sentence):
    path = tmp_path / "view"
    if content is not None:
        path.write_bytes(content)
    assert main(["--view", str(path)]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert "\x1b" not in err


def test_a_pipe_is_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert main(["--view", str(tmp_path / "pipe")]) == 2
    assert "is neither a file" in capsys.readouterr().err
    assert main(["--view", "l2rtui:erase?all=1"]) == 2
