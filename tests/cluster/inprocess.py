"""The program in the tests' own process: for tests that are many short calls."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from l2rtui.cli import main as entry
from tests.cluster.conftest import Cli


class Here(Cli):
    """``l2rtui`` as a function; the rest as in a separate process."""

    def __init__(self, cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
        self.env, self.namespace, self._capsys = cli.env, cli.namespace, capsys

    def call(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            for key, value in (self.env | env).items():
                patch.setenv(key, value)
            code = entry.main(words)
        return subprocess.CompletedProcess(words, code, *self._capsys.readouterr())


@contextlib.contextmanager
def in_process(cli: Cli, home: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Here]:
    """The program with an empty ~/.docker; signal handlers, which a verb keeps to its end, are restored."""
    cli.env["DOCKER_CONFIG"] = str(home / "docker-config")
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield Here(cli, capsys)
    for number, handler in kept.items():
        signal.signal(number, handler)
