"""The program's log: its destinations, and data that must never reach it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2rtui import log
from l2rtui.cli.main import main
from l2rtui.domain.secret import HIDDEN_TEXT, redact
from l2rtui.errors import BackendError
from l2rtui.services.monitor import Monitor

LOGGER = logging.getLogger("l2rtui.tests")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    forget_setup()  # of a test that ran a command before
    yield tmp_path / "l2rtui"
    forget_setup()


def forget_setup() -> None:
    logger = logging.getLogger("l2rtui")
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def log_failure(text: str) -> None:
    try:
        int(text)
    except ValueError:
        LOGGER.exception("failed with %s", text)


SECRETS = {
    "a header": ("Authorization: Bearer abcDEF123.x-y_z", "abcDEF123"),
    "a header in a dictionary": ("{'authorization': 'Basic dXNlcjpwYXNz'}", "dXNlcjpwYXNz"),
    "a cookie": ("Cookie: session=4f5a; other=77aa", "77aa"),
    "a JSON field": ('{"refresh_token":"r3fr3sh","user":"ada"}', "r3fr3sh"),
    "JSON in JSON": (r'"{\"token\":\"inn3r\"}"', "inn3r"),
    "a variable": ("L2R_TOKEN=5ecret and more", "5ecret"),
    "an option": ("aws --secret-key hunter22 ls", "hunter22"),
    "an address": ("https://ada:hunter22@registry.example/v2", "hunter22"),
    "a signed address": ("https://b.s3/x?X-Amz-Signature=beef01&X-Amz-Security-Token=cafe02", "cafe02"),
    "a kubeconfig": ("client-key-data: TUlJRXBB", "TUlJRXBB"),
    "a private key": ("-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----", "MHcCAQ"),
    "half a private key": ("-----BEGIN PRIVATE KEY-----\nMHcCAQ", "MHcCAQ"),
    "a token of EKS": ("got k8s-aws-v1.aHR0cHM6Ly9zdHM for it", "aHR0cHM6Ly9zdHM"),
    "a token of GitHub": ("push with ghp_" + "a1" * 20, "ghp_a1"),
    "a signed token": ("eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0abc.c2lnbmF0dXJl0000", "c2lnbmF0dXJl"),
}


@pytest.mark.parametrize("kind", sorted(SECRETS))
def test_no_secret_reaches_the_file(state: Path, kind: str) -> None:
    text, secret = SECRETS[kind]
    path = log.configure(is_debug=True, is_app=True)
    LOGGER.debug("request: %s", text)
    LOGGER.info(text)
    log_failure(text)
    written = path.read_text()
    assert secret not in written
    assert written.count(HIDDEN_TEXT) >= 4
    assert "ValueError" in written


def test_what_is_harmless_stays(state: Path) -> None:
    path = log.configure()
    LOGGER.info("launch racing-sac-s0: begins, 12 pods on node phortx1/3.2, 50%% of the slots")
    LOGGER.info("the token file of %s is at /run/token", "r")
    assert "12 pods on node phortx1/3.2" in path.read_text()
    assert "the token file of r is at /run/token" in path.read_text()


@given(st.text(alphabet="atokensecr=:- '\"{}/@.\n", max_size=80))
def test_redaction_is_idempotent(text: str) -> None:
    assert redact(redact(text)) == redact(text)


def test_a_record_is_one_line_that_no_terminal_obeys(state: Path) -> None:
    path = log.configure()
    LOGGER.info("pod \x1b]0;title\x07says\n2026-01-01T00:00:00Z INFO 1 l2rtui: forged")
    log_failure("first\n2026-01-01T00:00:00Z INFO 1 l2rtui: forged \x1b[2J")
    lines = path.read_text().splitlines()
    assert not [line for line in lines if line.startswith("2026-01-01") or "\x1b" in line]
    assert "says" in lines[0]
    assert all(line.startswith("    | ") for line in lines[2:])


@pytest.mark.slow
def test_the_file_is_private_and_rotates(state: Path) -> None:
    path = log.configure()
    for _ in range(400):
        LOGGER.info("%s", "y" * 20_000)  # truncated at 16 kB: some 60 lines make a file
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["l2rtui.log", "l2rtui.log.1", "l2rtui.log.2", "l2rtui.log.3"]
    assert all(file.stat().st_size <= log.MAX_BYTES for file in path.parent.iterdir())
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_that_another_process_rotated_is_left_to_it(state: Path) -> None:
    path = log.configure()
    LOGGER.info("before")
    path.rename(path.with_name("l2rtui.log.1"))  # like the other process
    LOGGER.info("after")
    assert "after" in path.read_text()
    assert "after" not in path.with_name("l2rtui.log.1").read_text()


def test_a_folder_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert main(["runs", "--backend", "demo", "-o", "name"]) == 0
    assert capsys.readouterr().err == ""


def test_commands_are_silent_by_default_and_log_to_the_file(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--backend", "demo", "-o", "name"]) == 0
    assert capsys.readouterr().err == ""
    assert "INFO" in (state / log.FILE_NAME).read_text()


@pytest.mark.parametrize("flag", ["-v", "--verbose", "--debug"])
def test_commands_log_to_stderr_where_it_is_asked_for(
    state: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    assert main([flag, "runs", "--backend", "demo", "-o", "name"]) == 0
    written = capsys.readouterr()
    assert written.err == "l2rtui: INFO l2rtui.backends.registry: backend demo\n"
    assert "INFO" not in written.out


def test_debug_is_for_those_who_ask(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(is_verbose=True)
    LOGGER.debug("details")
    log.configure(is_debug=True)
    LOGGER.debug("more details")
    assert "DEBUG l2rtui.tests: more details" in capsys.readouterr().err
    assert (state / log.FILE_NAME).read_text().count("details") == 1


def test_the_app_logs_to_the_file_alone(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(is_verbose=True, is_debug=True, is_app=True)
    LOGGER.error("something")
    assert capsys.readouterr().err == ""
    assert "something" in (state / log.FILE_NAME).read_text()


def test_a_defect_is_logged_with_its_traceback(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("l2rtui.cli.session.make_backend", broken)
    with pytest.raises(ZeroDivisionError):
        main(["runs", "--backend", "demo"])
    written = (state / log.FILE_NAME).read_text()
    assert "unexpected error" in written
    assert "ZeroDivisionError: of all things" in written


def test_an_outage_of_the_watch_is_one_line_and_its_end_another(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "l2rtui")
    monitor = Monitor(None)  # type: ignore[arg-type]  # the backend is not used here
    error = BackendError("The server is away.")
    for _ in range(3):
        monitor._fail(str(error))
    monitor._publish(monitor.snapshot)
    assert [record.getMessage() for record in caplog.records] == [
        "the watch is lost: The server is away.",
        "the watch is back",
    ]


@pytest.mark.process
def test_version_and_help_do_not_import_logging() -> None:
    import subprocess

    code = (
        "import sys; from l2rtui.cli.main import main; main(['--version']); main(['--help']); "
        "sys.exit('logging' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
