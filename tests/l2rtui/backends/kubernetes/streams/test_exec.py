"""Commands in containers, against a scripted server: messages sent, output written, and each way to end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import termios
from types import SimpleNamespace

import pytest

from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.streams import channels
from l2rtui.backends.kubernetes.streams import channels as execution
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import BackendError
from tests.l2rtui.backends.kubernetes.api_server import Server, refusal, serving

SUCCESS = json.dumps({"status": "Success"}).encode()
POD = PodView("", "p", namespace="ml")


def failure(code):
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return json.dumps({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}).encode()


def outputs(*messages):
    """A stream that sends these (channel, data) pairs and closes."""

    async def act(socket, _request):
        for channel, data in messages:
            await socket.send_bytes(bytes((channel,)) + data)

    return act


@contextlib.asynccontextmanager
async def client(on_stream, **kwargs):
    server = Server(on_stream=on_stream, **kwargs)
    async with asyncio.timeout(30), serving(server):
        api = server.api()
        try:
            yield server, api
        finally:
            await api.close()


async def test_a_captured_command_gives_both_its_outputs_byte_by_byte_and_its_code():
    act = outputs((1, b""), (1, b"a\xff"), (2, b"bad"), (1, b"\x00b"), (9, b"?"), (3, failure(5)), (1, b"late"))
    async with client(act) as (server, api):
        result = await execution.capture(api, POD, ["sh", "-c", "x y"], container="main")
    assert (result.code, result.out, result.err) == (5, b"a\xff\x00b", b"bad")
    ((path, query),) = server.streams
    assert path == "/api/v1/namespaces/ml/pods/p/exec"
    assert query == [
        *[("command", argument) for argument in ("sh", "-c", "x y")],
        *[("stdin", "false"), ("stdout", "true"), ("stderr", "true"), ("tty", "false"), ("container", "main")],
    ]


async def test_a_captured_command_is_bounded_and_its_code_comes_all_the_same(monkeypatch):
    monkeypatch.setattr(execution, "_MAX_CAPTURED_BYTES", 5)
    async with client(outputs((1, b"abc"), (1, b"defg"), (1, b"h"), (3, SUCCESS))) as (_, api):
        result = await execution.capture(api, PodView("", "p"), ["x"])
    assert (result.code, result.out) == (0, b"abcde")


async def test_a_command_whose_connection_is_cut_is_not_taken_for_one_that_ended():
    async with client(outputs((1, b"half"))) as (_, api):
        with pytest.raises(BackendError, match="The connection to x was lost"):
            await execution.capture(api, POD, ["x"])
        with pytest.raises(execution.CutError):
            await execution.pipe(api, "ml", "p", ["x"])


async def test_a_server_that_refuses_says_why():
    async with client(refusal(403, "Forbidden", "no exec for you")) as (_, api):
        with pytest.raises(ApiError) as caught:
            await execution.capture(api, POD, ["x"])
    assert caught.value.is_forbidden
    assert "no exec for you" in caught.value.message, "the handshake hides it, so it is asked for once more"


async def test_a_pipe_sends_its_input_and_hands_its_output_on_block_by_block():
    received, blocks = [], []

    async def cat(socket, _request):
        received.extend([(await socket.receive()).data for _ in range(2)])
        await socket.send_bytes(b"\x01one")
        await socket.send_bytes(b"\x01two")
        await socket.send_bytes(b"\x03" + SUCCESS)

    async def source():
        yield b"first"
        yield b"second"

    async def sink(block):
        blocks.append(block)

    async with client(cat) as (server, api):
        assert await execution.pipe(api, "ml", "p", ["cat"], on_output=sink, stdin=source()) == b""
    assert (received, blocks) == ([b"\x00first", b"\x00second"], [b"one", b"two"])
    assert ("stdin", "true") in server.streams[0][1]


async def test_a_pipe_that_fails_names_the_last_line_of_its_complaint():
    act = outputs((2, b"tar: first\ntar: no space"), (2, b" left\n"), (3, failure(2)))
    async with client(act) as (_, api):
        with pytest.raises(BackendError, match=r"tar ended with 2 .*: tar: no space left") as caught:
            await execution.pipe(api, "ml", "p", ["tar", "x"])
    assert not isinstance(caught.value, execution.CutError), "another attempt would fail as well"


@contextlib.contextmanager
def piped_streams(monkeypatch):
    """Pipes for our stdin, stdout and stderr.

    Within the test, not as a fixture: pytest restores its own streams before the test's body runs.
    """
    with contextlib.ExitStack() as stack:
        ends = []
        for name in ("stdin", "stdout", "stderr"):
            reading, writing = os.pipe()
            reader = stack.enter_context(os.fdopen(reading, "rb", buffering=0))
            writer = stack.enter_context(os.fdopen(writing, "wb", buffering=0))
            ours, theirs = (reader, writer) if name == "stdin" else (writer, reader)
            monkeypatch.setattr(sys, name, ours)
            ends.append(theirs)
        yield ends


async def echo(socket, _request):
    """Echo the input until the channel is closed; then write a word to stderr and exit with a code."""
    async for message in socket:
        if message.data == channels.close_frame(channels.STDIN):
            break
        await socket.send_bytes(b"\x01" + message.data[1:])
        if message.data.endswith(b"stop"):
            break
    await socket.send_bytes(b"\x02bad\n")
    await socket.send_bytes(b"\x03" + failure(7))


async def test_a_command_gets_our_streams_and_its_stdin_ends_with_ours(monkeypatch):
    async with client(echo) as (server, api):
        with piped_streams(monkeypatch) as (stdin, stdout, stderr):
            stdin.write(b"hello\n")
            stdin.close()
            assert await execution.run(api, POD, ["cat"]) == 7
            assert (stdout.read(100), stderr.read(100)) == (b"hello\n", b"bad\n")
    assert {("stdin", "true"), ("stderr", "true"), ("tty", "false")} <= set(server.streams[0][1])


async def test_a_file_is_sent_though_it_cannot_be_waited_for_and_an_old_server_is_not_told_of_its_end(
    monkeypatch, tmp_path
):
    path = tmp_path / "input"
    path.write_bytes(b"stop")
    received = []

    async def old(socket, _request):
        received.append((await socket.receive()).data)
        await socket.send_bytes(b"\x01done")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):  # nothing follows: v4 cannot close a channel
                received.append((await socket.receive()).data)
        await socket.send_bytes(b"\x03" + SUCCESS)

    async with client(old, protocols=("v4.channel.k8s.io",)) as (_, api):
        with path.open("rb") as file, piped_streams(monkeypatch) as (_, stdout, _):
            monkeypatch.setattr(sys, "stdin", file)
            assert await execution.run(api, POD, ["cat"]) == 0
            assert (received, stdout.read(100)) == ([b"\x00stop"], b"done")


async def test_a_terminal_is_raw_while_the_command_runs_told_of_its_size_and_given_back(monkeypatch):
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    tty = SimpleNamespace(fileno=lambda: slave, isatty=lambda: True)
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, tty)
    before = termios.tcgetattr(slave)
    sizes, modes = [], []

    async def shell(socket, _request):
        sizes.append((await socket.receive()).data)
        modes.append(termios.tcgetattr(slave)[3] & (termios.ECHO | termios.ICANON))
        termios.tcsetwinsize(slave, (40, 120))
        os.kill(os.getpid(), signal.SIGWINCH)
        sizes.append((await socket.receive()).data)
        await socket.send_bytes(b"\x03" + SUCCESS)

    try:
        async with client(shell) as (server, api):
            assert await execution.run(api, POD, ["sh"]) == 0
        assert (sizes, modes) == ([channels.resize(80, 24), channels.resize(120, 40)], [0])
        assert termios.tcgetattr(slave) == before
        assert {("tty", "true"), ("stderr", "false")} <= set(server.streams[0][1])
    finally:
        os.close(master)
        os.close(slave)
