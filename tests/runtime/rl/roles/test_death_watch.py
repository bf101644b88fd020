"""Processes that their environment ends or changes: the end has a sentence, and a code that is no success."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from runtime.base import contract
from tests.runtime.conftest import RunUnderTest, Started

Wait = Callable[..., Any]
ENVIRONMENT = """
import asyncio, ctypes, os, signal, sys, threading
import gymnasium, numpy as np

class Ending(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def act(self, place):
        where, code = os.environ["BREAKS"].split(": ", 1)
        if where == place:
            exec(compile(code, __file__, "exec"))

    def reset(self, *, seed=None, options=None):
        self.act("reset")
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            self.act("step")
        return np.zeros(4, np.float32), 1.0, False, self.steps % 20 == 0, {}

    def close(self):
        self.act("close")

gymnasium.register("Ending-v0", entry_point=Ending)
"""
NAME = "ending:Ending-v0"
ENDS = "ended with exit code 0 within its work, as by os._exit(0) in the environment's code"
RAISED = f"the environment's code ended the process ({NAME} raised "


@pytest.fixture
def start(run: RunUnderTest) -> Callable[[str, str], Started]:
    """Start a role whose environment runs a statement in `reset`, in its third `step`, or in `close`."""
    (run.folder / "ending.py").write_text(ENVIRONMENT)
    run.settings["environment"] = NAME
    del run.settings["eval_options"]
    run.settings |= {"algorithm": "dqn", "dqn": {"batch_size": 32}}
    del run.settings["sac"]
    path = f"{Path.cwd()}:{run.folder}"
    return lambda role, breaks: run.start(role, BREAKS=breaks, PYTHONPATH=path)


# An evaluator steps at once, without a learner, and no role with fewer imports starts sooner.
@pytest.mark.process
@pytest.mark.parametrize(
    ("breaks", "code", "sentence"),
    [
        ("step: os._exit(0)", contract.EXIT_ENVIRONMENT, ENDS),
        ("reset: os._exit(0)", contract.EXIT_ENVIRONMENT, ENDS),
        ("step: threading.Thread(target=os._exit, args=(0,)).start()", contract.EXIT_ENVIRONMENT, ENDS),
        ("step: ctypes.CDLL(None).exit(0)", contract.EXIT_ENVIRONMENT, ENDS),
        ("step: sys.exit(0)", contract.EXIT_ENVIRONMENT, f"{RAISED}SystemExit(0)"),
        ("reset: raise asyncio.CancelledError", contract.EXIT_ENVIRONMENT, f"{RAISED}CancelledError()"),
        ("step: os.kill(os.getpid(), signal.SIGKILL)", 137, "was ended by SIGKILL: out of memory, or its environ"),
        ("step: os.kill(os.getpid(), signal.SIGTERM)", contract.EXIT_FAILED, "a signal that its launcher has not"),
        ("step: ctypes.string_at(0)", 139, "was ended by SIGSEGV: a crash of native code, or its environment's"),
        ("step: os.abort()", 134, "was ended by SIGABRT: a crash of native code, or its environment's code"),
        ("step: os.closerange(3, 256); os._exit(0)", contract.EXIT_ENVIRONMENT, ENDS),
    ],
)
def test_an_environment_that_ends_its_process_is_named(
    start: Callable[[str, str], Started], breaks: str, code: int, sentence: str
) -> None:
    ended = start("evaluator", breaks)
    assert ended.process.wait(60) == code, ended.text()
    last = ended.text().splitlines()[-1]
    assert sentence in last
    assert NAME in last
    if code in (134, 139):  # faulthandler names the line of the environment
        assert re.search(r'ending.py", line \d+ in act', ended.text())


@pytest.mark.process
@pytest.mark.parametrize(("role", "breaks"), [("worker", "reset: os._exit(0)"), ("learner", "reset: os._exit(0)")])
def test_no_role_of_a_run_ends_well_by_its_environment(
    start: Callable[[str, str], Started], role: str, breaks: str
) -> None:
    ended = start(role, breaks)
    assert ended.process.wait(60) == contract.EXIT_ENVIRONMENT, ended.text()
    assert f"this {role}, which steps {NAME}, {ENDS}" in ended.text()


@pytest.mark.process
def test_a_process_that_the_environment_forks_does_not_take_part(
    start: Callable[[str, str], Started], wait_until: Wait
) -> None:
    first = start("evaluator", "step: os.fork()")
    wait_until(lambda: "returned in a second process too (os.fork), which ends" in first.text(), "it", log=first)
    child = psutil.Process(first.process.pid).children()[0]
    wait_until(lambda: not _living(child.children()), "only the first goes on", log=first)
    assert first.end() == contract.EXIT_DONE
    assert first.text().count("evaluator ends: SIGTERM") == 1


@pytest.mark.process
@pytest.mark.parametrize(
    "breaks",
    [
        "step: os.closerange(0, 3)",
        "step: os.closerange(0, 3); Ending.files = [open(os.devnull, 'w') for _ in range(3)]",
        "step: os.chdir('/')",
        "close: sys.exit(0)",
        "close: os._exit(0)",
    ],
)
def test_a_process_goes_on_whatever_the_environment_does_to_it(
    start: Callable[[str, str], Started], wait_until: Wait, breaks: str
) -> None:
    process = start("evaluator", breaks)
    wait_until(lambda: "waiting for the learner" in process.text(), "the first episodes", log=process)
    assert process.end() == contract.EXIT_DONE, process.text()
    assert "evaluator ends: SIGTERM" in process.text()


@pytest.mark.process
def test_a_folder_that_is_named_from_the_working_folder_stays_there(
    run: RunUnderTest, start: Callable[[str, str], Started], wait_until: Wait
) -> None:
    relative = Path("../" * len(Path.cwd().parts[1:])) / str(run.folder)[1:] / "run"
    (run.folder / "ending.py").write_text(ENVIRONMENT)
    variables = {"BREAKS": "reset: os.chdir('/tmp')", "PYTHONPATH": f"{Path.cwd()}:{run.folder}"}
    learner = run.start("learner", **variables, **{contract.ENV_DIR: str(relative)})
    wait_until(lambda: "ready" in learner.text(), "the learner", log=learner)
    assert learner.end() == contract.EXIT_DONE
    assert (run.folder / "run" / "metrics.jsonl").exists()


@pytest.mark.process
def test_the_end_of_the_parent_is_the_end_of_its_child(
    start: Callable[[str, str], Started], wait_until: Wait
) -> None:
    process = start("evaluator", "step: pass")
    wait_until(lambda: "waiting for the learner" in process.text(), "the first episodes", log=process)
    children = psutil.Process(process.process.pid).children()
    assert process.end(signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: not _living(children), "the end of the child")


def _living(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
