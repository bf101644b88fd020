"""The stop flag of a process beside foreign code that sets handlers of its own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.base.signals import Stop


@pytest.fixture
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "its own"])
def test_a_signal_is_heeded_although_an_environment_has_set_a_handler(handler: Any) -> None:
    stop = Stop()
    stop.install()
    signal.signal(signal.SIGTERM, handler)
    signal.raise_signal(signal.SIGTERM)
    assert not stop.is_set()
    stop.keep()
    signal.raise_signal(signal.SIGTERM)
    assert stop.reason == "SIGTERM"


@pytest.mark.usefixtures("_handlers")
def test_a_flag_that_was_not_installed_sets_no_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    Stop().keep()
    assert signal.getsignal(signal.SIGTERM) is before
