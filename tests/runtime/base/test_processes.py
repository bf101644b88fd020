"""Exit codes, back-off, process groups; addresses of the other processes; commands that replace a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.base import addresses, cli_options, contract
from runtime.base.addresses import EndpointError, parse
from runtime.base.errors import FailedError, SetupError
from runtime.base.launch_context import LaunchContext
from runtime.base.processes import exponential_delay, shell_exit_code, signal_process_group


def test_an_exit_code_is_what_a_shell_shows() -> None:
    assert [shell_exit_code(code) for code in (0, 3, -9, -15)] == [0, 3, 137, 143]


def test_the_delay_doubles_up_to_its_limit() -> None:
    assert [exponential_delay(failures, 0.5, 3.0) for failures in range(6)] == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.floats(1e-3, 1e6))
def test_no_number_of_failures_overflows(failures: int, first: float, limit: float) -> None:
    assert 0.0 <= exponential_delay(failures, first, limit) <= limit


@pytest.mark.process
def test_a_group_is_signalled_with_all_that_its_leader_started() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"1\n"  # by the grandchild
        signal_process_group(leader.pid, signal.SIGKILL)
        assert leader.stdout.read() == b""  # the end of the last process that holds the pipe
    signal_process_group(leader.pid, signal.SIGKILL)  # no process left: no error


def test_peers_are_addressed_by_set_and_index() -> None:
    peers = addresses.from_environment({contract.ENV_PEERS: '{"ps":["tcp://a:1","ipc:///tmp/b"],"worker":[]}'})
    assert (peers.of_set("ps"), peers.of_replica("ps", 1)) == (("tcp://a:1", "ipc:///tmp/b"), "ipc:///tmp/b")
    with pytest.raises(SetupError, match="has no set 'eval'; there are: ps, worker"):
        peers.of_set("eval")
    for index in (-1, 2):
        with pytest.raises(SetupError, match=f"there is no index {index}"):
            peers.of_replica("ps", index)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"ps":5}', '{"ps":["http://a"]}', '{"ps":["tcp://a:0"]}'])
def test_wrong_peers_name_their_variable(text: str) -> None:
    with pytest.raises(SetupError, match=contract.ENV_PEERS):
        addresses.from_environment({contract.ENV_PEERS: text})


@pytest.mark.parametrize("text", ["-1", "1.5", "x", "\u0662"])
def test_an_index_is_a_decimal_number(text: str) -> None:
    with pytest.raises(SetupError, match=contract.ENV_INDEX):
        addresses.index({contract.ENV_INDEX: text})
    assert addresses.index({}) == 0


def test_commands_of_python_run_in_this_interpreter() -> None:
    assert cli_options.program(["l2r-runtime", "step"]) == [sys.executable, "-m", "runtime", "step"]
    assert cli_options.program(["train.py", "-x"]) == [sys.executable, "-u", "train.py", "-x"]
    assert cli_options.program(["python3", "-c", "0"]) == [sys.executable, "-c", "0"]
    assert cli_options.program(["true"]) == ["true"]


def test_a_command_that_is_not_there_fails_with_its_name() -> None:
    with pytest.raises(FailedError, match="/no/such/program cannot be started"):
        cli_options.become(["/no/such/program"])


def context(**variables: str) -> LaunchContext:
    environ = {contract.ENV_ENDPOINT: "tcp://127.0.0.1:5555", **variables}
    return LaunchContext.from_environment(environ, "worker")


def test_a_context_holds_the_launchers_variables() -> None:
    plain = context()
    assert (plain.run, plain.run_id, plain.pod, plain.index, plain.cpus) == (
        "run",
        "run",
        f"worker-{os.getpid()}",
        0,
        1.0,
    )
    named = context(L2R_RUN="r", L2R_RUN_ID="id", L2R_POD="w-0", L2R_INDEX="3", L2R_CPUS="0.5", L2R_JOINERS="4")
    assert (named.run_id, named.pod, named.index, named.cpus, named.joiners) == ("id", "w-0", 3, 0.5, 4)
    assert (
        LaunchContext.from_environment({contract.ENV_ENDPOINT: "ipc:///tmp/x"}, "w", environment="e").environment
        == "e"
    )


def test_pods_without_an_index_get_different_ones_from_their_ids() -> None:
    indices = {context(L2R_POD_ID=f"id-{number}").index for number in range(50)}
    assert len(indices) == 50
    assert context(L2R_POD_ID="id-1", L2R_INDEX="7").index == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("L2R_ENDPOINT", ""),
        ("L2R_ENDPOINT", "http://x"),
        ("L2R_RUN", "a\nb"),
        ("L2R_POD", "x" * 513),
        ("L2R_SEED", "-1"),
        ("L2R_CPUS", "nan"),
        ("L2R_CPUS", "0"),
        ("L2R_TOKEN_FILE", "/no/such/file"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(SetupError, match=name):
        context(**{name: value})


def test_the_token_is_not_in_the_text_of_a_context(tmp_path) -> None:
    (tmp_path / "token").write_text("s3cr3t\n")
    with_token = context(L2R_TOKEN_FILE=str(tmp_path / "token"))
    assert with_token.token == "s3cr3t"
    assert "s3cr3t" not in repr(with_token)


@pytest.mark.parametrize(
    ("status", "address"), [("", ("127.0.0.1", 5557)), ("10.0.0.7:80", ("10.0.0.7", 80)), ("[::1]:80", ("::1", 80))]
)
def test_the_status_server_has_an_address(status: str, address: tuple[str, int]) -> None:
    assert context(L2R_STATUS=status).status_address() == address


@pytest.mark.parametrize("status", ["80", ":80", "host:", "host:0", "host:65536"])
def test_a_wrong_address_of_the_status_server_is_refused(status: str) -> None:
    with pytest.raises(SetupError, match="must be HOST:PORT"):
        context(L2R_STATUS=status).status_address()


def test_a_learner_that_others_reach_needs_a_token(tmp_path) -> None:
    with pytest.raises(SetupError, match="there is no token"):
        context(L2R_ENDPOINT="tcp://0.0.0.0:5555", L2R_DIR=str(tmp_path)).learner_folder()
    with pytest.raises(SetupError, match=contract.ENV_DIR):
        context().learner_folder()
    assert context(L2R_DIR=str(tmp_path)).learner_folder() == tmp_path


def test_endpoints_are_two_addresses() -> None:
    tcp, ipc = parse("tcp://[::1]:5555"), parse("ipc:///tmp/run")
    assert (tcp.data, tcp.model, tcp.is_private()) == ("tcp://[::1]:5555", "tcp://[::1]:5556", True)
    assert (ipc.data, ipc.model) == ("ipc:///tmp/run/data.sock", "ipc:///tmp/run/model.sock")
    assert not parse("tcp://node-7:5555").is_private()


@pytest.mark.parametrize(
    "text",
    ["", "tcp://", "tcp://host", "tcp://host:0", "tcp://host:65535", "tcp://host:+5", "ipc://run", "ipc:///a@b"],
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(EndpointError):
        parse(text)


def test_a_socket_path_that_is_too_long_is_refused_before_it_is_bound() -> None:
    with pytest.raises(EndpointError, match="choose a shorter folder"):
        parse(f"ipc:///{'x' * 120}")


def test_a_host_name_is_looked_up_for_binding() -> None:
    assert parse("tcp://localhost:5555").bound().host in ("127.0.0.1", "::1")
    with pytest.raises(EndpointError, match="cannot be looked up"):
        parse("tcp://no-such-host.invalid:5555").bound()


@pytest.mark.process
def test_a_signal_at_the_very_end_does_not_replace_the_exit_code() -> None:
    program = (
        "import atexit, os, signal\n"
        "from runtime.base.processes import end_process\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
        "end_process(66)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 66
