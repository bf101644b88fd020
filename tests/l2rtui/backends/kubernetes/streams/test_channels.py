"""Messages of Kubernetes' channel protocol, and the exit status that ends a command."""

from __future__ import annotations

import json

import pytest

from l2rtui.backends.kubernetes.streams import channels
from l2rtui.errors import EXIT_FAILED, BackendError


def test_messages_begin_with_their_channel():
    assert channels.frame(channels.STDIN, b"x") == b"\x00x"
    assert channels.close_frame(channels.STDIN) == b"\xff\x00"
    assert channels.resize(80, 24) == b'\x04{"Width": 80, "Height": 24}'


def failure(code):
    cause = {"reason": "ExitCode", "message": code}
    return {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": "Other"}, cause]}}


@pytest.mark.parametrize(
    ("status", "code"),
    [({"status": "Success"}, 0), (failure("7"), 7), (failure(""), EXIT_FAILED), ([], EXIT_FAILED)],
)
def test_the_exit_code_stands_in_the_status(status, code):
    assert channels.exit_code(json.dumps(status).encode(), "sh") == code


def test_a_status_that_is_no_json_is_a_failure():
    assert channels.exit_code(b"command terminated", "sh") == EXIT_FAILED


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ('exec: "nope": executable file not found in $PATH', "There is no nope in the container."),
        ("no such file or directory", "There is no nope in the container."),
        ("permission denied.", "nope could not be run: permission denied."),
        ("", "nope could not be run: InternalError."),
    ],
)
def test_a_command_that_was_not_started_is_an_error_with_the_reason(message, sentence):
    status = {"status": "Failure", "reason": "InternalError", "message": message}
    with pytest.raises(BackendError) as caught:
        channels.exit_code(json.dumps(status).encode(), "nope")
    assert caught.value.message == sentence
