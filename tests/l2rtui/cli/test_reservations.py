"""``reserve`` and ``unreserve`` on this machine: their output, the view of other users, and refusals."""

from __future__ import annotations

import json

import pytest

from l2rtui.cli.main import main
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(*words, name="anna", code=EXIT_DONE):
        monkeypatch.setenv("LOGNAME", name)
        assert main([*words, "--backend", "local"]) == code
        return capsys.readouterr()

    return run


def slots(command, *words, name):
    return json.loads(command("slots", *words, "-o", "json", name=name).out)


def test_slots_are_reserved_listed_and_released(command):
    node = slots(command, name="anna")[0]["node"]
    written = command("reserve", f"{node}/cpu.0-1", "--for", "4h", "--note", "paper figures")
    assert [line.split()[:3] for line in written.out.splitlines()[1:]] == [
        [f"{node}/cpu.{slot}" if "cpu" in written.out else f"{node}/0.{slot}", "free", "anna"] for slot in (0, 1)
    ]
    assert "reserved 2 slots until 20" in written.err
    reserved = slots(command, "--state", "reserved", name="bob")
    facts = {(slot["reserved_by"], slot["reserved_note"], slot["owner"]) for slot in reserved}
    assert (len(reserved), facts) == (2, {("anna", "paper figures", None)})
    assert slots(command, "--state", "reserved", name="anna") == []
    assert [item["id"] for item in json.loads(command("reserve", "-o", "json", name="bob").out)] == [
        slot["id"] for slot in reserved
    ]
    err = command("reserve", reserved[0]["id"], "--for", "1h", name="bob", code=EXIT_REFUSED).err
    assert f"Slot {reserved[0]['id']} is reserved by anna until " in err
    err = command("unreserve", reserved[0]["id"], "--yes", name="bob", code=EXIT_REFUSED).err
    assert "does not belong to you" in err
    assert f"no longer reserved: {reserved[0]['id']}" in command("unreserve", "--mine", "--yes").err
    assert slots(command, "--state", "reserved", name="bob") == []


@pytest.mark.parametrize("text", [b"garbage", b'{"a": ', b"[]", b'{"n": 3}', b'{"n": ' + b"[" * 3_000])
def test_damaged_reservations_are_said_and_kept_aside(command, tmp_path, text):
    node = slots(command, name="anna")[0]["node"]
    command("reserve", f"{node}/cpu.0-1", "--for", "4h")
    (file,) = tmp_path.rglob("reservations.json")
    file.write_bytes(text)
    assert "it is not known which slots are reserved" in command("check").out
    assert slots(command, "--state", "reserved", name="bob") == []
    assert file.read_bytes() == text, "who only looks changes nothing"
    command("reserve", f"{node}/cpu.0", "--for", "4h")
    assert len(slots(command, "--state", "reserved", name="bob")) == 1
    (aside,) = tmp_path.rglob("reservations.json.damaged-*")
    assert aside.read_bytes() == text
    assert "it is not known" not in command("check").out


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("reserve", "nowhere", "--for", "1h"), EXIT_USAGE, "There is no slot nowhere"),
        (("reserve", "nowhere/0"), EXIT_USAGE, "reserve needs a time. Add --for 4h"),
        (("reserve", "--for", "1h"), EXIT_USAGE, "reserve needs the slots"),
        (("reserve", "nowhere", "--for", "soon"), EXIT_USAGE, "'soon' is not a duration"),
        (("unreserve", "--yes"), EXIT_USAGE, "unreserve needs the slots, or --mine"),
        (("unreserve", "--mine", "--yes"), EXIT_FAILED, "None of these slots is reserved"),
        (("reserve", "nowhere", "--for", "1h", "--readonly"), EXIT_REFUSED, "is read-only here"),
    ],
)
def test_what_cannot_be_is_said(command, words, code, sentence):
    assert sentence in command(*words, code=code).err
