"""Output: tables with safe text only, JSON and YAML that stay data, colours on request."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass

import pytest
import yaml

from l2rtui.cli.output import Output, StderrReporter, to_json, to_yaml
from l2rtui.cli.verbs.logs import since
from l2rtui.domain.status import Level
from l2rtui.errors import UsageError
from l2rtui.tables.cluster import format_age
from l2rtui.tables.column import Column, View

VIEW = View(
    lambda document: document["name"],
    (
        Column("NAME", lambda document: document["name"], level=lambda document: document.get("level")),
        Column("N", lambda document: document["n"], is_number=True),
        Column("MORE", lambda document: document.get("more"), is_wide=True),
    ),
)
EVIL = "a\x1b]0;t\x07b\x9b2Jc\u202ed\u200be\nf\x7fg\U000e0041\udcff"


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@dataclass
class _Sink:
    form: str
    is_terminal: bool = False

    def __enter__(self):
        self.stream = _Terminal() if self.is_terminal else io.StringIO()
        return Output(self.form, self.stream), self.stream

    def __exit__(self, *_):
        pass


def test_a_table_is_aligned_and_says_dash_for_nothing():
    with _Sink("wide") as (out, stream):
        out.show_all(VIEW, [{"name": "long-name", "n": 5, "more": None}, {"name": "x", "n": 1200.5, "more": True}])
    assert stream.getvalue() == "NAME          N  MORE\nlong-name     5  -\nx          1200  yes\n"


def test_wide_columns_are_for_wide_alone():
    with _Sink("table") as (out, stream):
        out.show_one(VIEW, {"name": "x", "n": 0.12345678, "more": "m"})
    assert stream.getvalue() == "NAME       N\nx     0.1235\n"


def test_no_rows_still_have_a_header():
    with _Sink("table") as (out, stream):
        out.show_all(VIEW, [])
    assert stream.getvalue() == "NAME  N\n"


@pytest.mark.parametrize("form", ["table", "wide", "name", "json", "yaml"])
def test_nothing_that_a_terminal_obeys_or_hides_is_written(form):
    with _Sink(form) as (out, stream):
        out.show_all(VIEW, [{"name": EVIL, "n": 1, "more": EVIL}])
        out.stream_one(VIEW, {"name": EVIL, "n": 1, "more": EVIL})
    written = stream.getvalue()
    assert not set(written) & set("\x1b\x07\x9b\u202e\u200b\x7f\U000e0041\udcff")
    written.encode()


@pytest.mark.parametrize("indent", [None, 2])
def test_json_comes_back_as_it_was(indent):
    data = [{"text": EVIL + "äöü日本\U0001f3ce", "n": None}]
    text = to_json(data, indent)
    assert json.loads(text) == data
    assert "äöü日本" in text


def test_yaml_comes_back_as_it_was():
    data = [{"text": EVIL.replace("\udcff", "") + "äöü", "n": None, "list": ["a", 1.5]}]
    assert yaml.safe_load(to_yaml(data)) == data


def test_one_is_an_object_and_many_are_a_list():
    for form, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        with _Sink(form) as (out, stream):
            out.show_one(VIEW, {"name": "x"})
        assert load(stream.getvalue()) == {"name": "x"}
        with _Sink(form) as (out, stream):
            out.show_all(VIEW, [{"name": "x"}])
        assert load(stream.getvalue()) == [{"name": "x"}]


def test_a_stream_is_one_object_a_line_in_json_and_a_document_each_in_yaml():
    rows = [{"name": "x", "n": 1}, {"name": "y", "n": 2}]
    for form, load in (
        ("json", lambda text: list(map(json.loads, text.splitlines()))),
        ("yaml", lambda text: list(yaml.safe_load_all(text))),
    ):
        with _Sink(form) as (out, stream):
            for row in rows:
                out.stream_one(VIEW, row)
        assert load(stream.getvalue()) == rows


def test_rows_are_written_as_they_come_as_wide_as_the_first_of_them():
    with _Sink("table") as (out, stream):

        def rows():
            for number in range(300):
                yield {"name": "long name" if number == 1 else "x", "n": number}
                if number == 200:
                    assert "\nx          99\n" in stream.getvalue()
            yield {"name": "a longer name", "n": 1}

        assert out.show_rows(VIEW, rows()) == 301
    lines = stream.getvalue().splitlines()
    assert lines[:3] == ["NAME        N", "x           0", "long name   1"]
    assert lines[-2:] == ["x          299", "a longer name   1"]
    for form, written in (("json", "[]"), ("name", ""), ("table", "NAME  N")):
        with _Sink(form) as (out, stream):
            assert out.show_rows(VIEW, iter(())) == 0
        assert stream.getvalue().strip() == written


def test_a_stream_as_a_table_has_one_header():
    with _Sink("table") as (out, stream):
        for number in (1, 22):
            out.stream_one(VIEW, {"name": "x", "n": number})
    assert stream.getvalue() == "NAME         N\nx            1\nx           22\n"


@pytest.mark.parametrize(
    ("is_terminal", "environ", "has_colours"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {}, False),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_colours_need_a_terminal_and_no_objection(is_terminal, environ, has_colours, monkeypatch):
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with _Sink("table", is_terminal) as (out, stream):
        out.show_one(VIEW, {"name": "x", "n": 1, "level": Level.BAD})
    assert ("\x1b[31mx" in stream.getvalue()) is has_colours


def test_progress_is_a_live_line_on_a_terminal_and_lines_elsewhere(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal, pipe = _Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        talk = StderrReporter(stream)
        for text in ("1 left", "1 left", "0 left"):
            talk.progress(text)
        talk.say("done")
    assert pipe.getvalue() == "1 left\n0 left\ndone\n"
    assert terminal.getvalue() == "1 left\r\x1b[K1 left\r\x1b[K0 left\r\x1b[Kdone\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0, "0s"),
        (59, "59s"),
        (119, "1m"),
        (7199, "1h59m"),
        (7200, "2h00m"),
        (12_000, "3h20m"),
        (864_000, "10d"),
    ],
)
def test_ages_are_short(seconds, text):
    assert format_age(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 910.0),
        ("10m", 400.0),
        ("0.25h", 100.0),
        ("1m30s", 910.0),
        ("10 m", 400.0),
        ("19700101", 1000.0 - 1000.0),
        ("1d", 1000.0 - 86_400),
        ("1970-01-01T00:05:00Z", 300.0),
        ("1970-01-01T01:05:00+01:00", 300.0),
        ("1970-01-01T00:05:00", 300.0),
    ],
)
def test_since_is_a_span_or_a_time(text, seconds):
    assert since(text, now=1000.0) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "yesterday", "-5m", "10w", "\u0663m", "9" * 40 + "d"])
def test_since_refuses_what_is_neither(text):
    with pytest.raises(UsageError, match="is no time"):
        since(text, now=1000.0)
