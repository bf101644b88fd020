"""Several workers in one pod: their names, their log, restarts, a kill of one, and the end of all."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from runtime.base import contract
from runtime.base.errors import FailedError
from runtime.jobs.supervise import ask_to_kill, worker_environment
from tests.runtime.programs import Programs, wait_for
from tests.tiers import starts_processes

pytestmark = pytest.mark.process

TICKS = """\
import os, time
print(os.environ["L2R_POD"], flush=True)
while True:
    print("tick", flush=True)
    time.sleep(0.1)
"""
ONCE = """\
import os, sys
print("x" * 40_000 + "\\n10%\\r50%\\r\\nhalf", end="")
sys.exit(3 * os.environ["L2R_POD"].endswith("1"))
"""


@pytest.fixture
@starts_processes
def programs(tmp_path: Path):
    # A socket's path has 108 characters at most, and folders of tests are longer.
    with (
        tempfile.TemporaryDirectory(prefix="l2r-") as folder,
        Programs(tmp_path, TMPDIR=folder, L2R_POD="run-w-x", L2R_POD_ID="uid-1") as started,
    ):
        yield started


def lines(program, number):
    prefix = contract.WORKER_LINE.format(number)
    return [line.removeprefix(prefix) for line in program.text().splitlines() if line.startswith(prefix)]


def newest(program):
    return (program.records(contract.WORKERS_RECORD) or [{"workers": []}])[-1]["workers"]


def test_each_worker_has_a_name_and_lines_of_its_own_and_one_of_them_can_be_killed(programs, tmp_path):
    script = tmp_path / "ticks.py"
    script.write_text(TICKS)
    pod = programs.start("supervise", "--workers", "3", "--grace", "2", "--", "python", str(script))
    wait_for(lambda: all("tick" in lines(pod, number) for number in range(3)), "all to run", pod)
    assert [lines(pod, number)[0] for number in range(3)] == ["run-w-x.0", "run-w-x.1", "run-w-x.2"]
    assert [worker["restarts"] for worker in newest(pod)] == [0, 0, 0]

    assert programs.run("supervise", "--kill", "1").process.returncode == 0
    wait_for(lambda: [worker["restarts"] for worker in newest(pod)] == [0, 1, 0], "a restart", pod)
    wait_for(lambda: lines(pod, 1).count("run-w-x.1") == 2, "its successor", pod)
    assert newest(pod)[1]["exit_code"] == 128 + signal.SIGTERM
    assert "[1]! restart 1, ended with 143; starts again at once" in pod.text()
    assert [lines(pod, number).count(f"run-w-x.{number}") for number in (0, 2)] == [1, 1]

    refused = programs.run("supervise", "--kill", "3")
    assert (refused.process.returncode, "this pod has workers 0 to 2" in refused.text()) == (1, True)
    assert pod.end() == 128 + signal.SIGTERM
    assert {worker["state"] for worker in newest(pod)} == {"ended"}


def test_a_worker_that_ignores_sigterm_is_killed_after_its_grace(programs):
    command = ["sh", "-c", "trap '' TERM; echo up; while true; do sleep 0.1; done"]
    pod = programs.start("supervise", "--workers", "1", "--grace", "0.3", "--", *command)
    wait_for(lambda: "up" in lines(pod, 0), "it to run", pod)
    assert pod.end() == 128 + signal.SIGKILL


def test_it_ends_with_its_workers_where_they_are_not_started_again(programs, tmp_path):
    script = tmp_path / "once.py"
    script.write_text(ONCE)
    pod = programs.run("supervise", "--workers", "2", "--restart", "Never", "--", "python", str(script))
    assert pod.process.returncode == 3
    assert [worker["exit_code"] for worker in newest(pod)] == [0, 3]
    for number in range(2):
        assert "".join(lines(pod, number)) == "x" * 40_000 + "50%" + "half"


def test_on_failure_starts_again_those_that_have_failed(programs, tmp_path):
    script = tmp_path / "twice.sh"
    script.write_text(f"test -e {tmp_path}/$L2R_POD && exit 0\ntouch {tmp_path}/$L2R_POD\nexit 7\n")
    pod = programs.run("supervise", "--workers", "2", "--restart", "OnFailure", "--", "sh", str(script))
    assert pod.process.returncode == 0
    assert [(worker["restarts"], worker["exit_code"]) for worker in newest(pod)] == [(1, 0), (1, 0)]


def test_a_command_that_is_not_there_gets_a_sentence(programs):
    pod = programs.run("supervise", "--restart", "Never", "--", "no-such-program")
    assert pod.process.returncode == 128
    assert "[0]! no-such-program cannot be started" in pod.text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--workers", "2"), "supervise needs a command"),
        (("--workers", "0", "--", "true"), "--workers is 0; it must be at least 1"),
        (("--kill", "a,b"), "--kill 'a,b': write the numbers of workers"),
    ],
)
def test_wrong_options_get_a_sentence(programs, words, sentence):
    program = programs.run("supervise", *words)
    assert (program.process.returncode, sentence in program.text()) == (contract.EXIT_USAGE, True)


def test_a_worker_has_the_index_of_its_pod_times_their_number():
    pod = {contract.ENV_POD: "p", contract.ENV_POD_ID: "u", contract.ENV_INDEX: "2", "A": "1"}
    assert worker_environment(pod, 3, 4) == {
        contract.ENV_POD: "p.3",
        contract.ENV_POD_ID: "u.3",
        contract.ENV_INDEX: "11",
        "A": "1",
    }
    assert contract.ENV_INDEX not in worker_environment({contract.ENV_POD: "p"}, 1, 4)


def test_where_no_supervisor_runs_a_kill_gets_a_sentence():
    with pytest.raises(FailedError, match="no supervisor of workers answers in this pod"):
        ask_to_kill({contract.ENV_POD_ID: f"none-{os.getpid()}"}, [0], 1.0)
