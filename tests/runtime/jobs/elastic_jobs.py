"""A job whose nodes are processes of this machine, and a program without torch that distinguishes rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runtime.base import contract
from tests.runtime.programs import Program, Programs, wait_for

ROUND_PROGRAM = """
import json, os, sys, time
from pathlib import Path
folder, code = Path(sys.argv[1]), int(sys.argv[2])
if code:
    sys.exit(code)
print(json.dumps({name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "L2R_ROUND")}), flush=True)
while not (folder / "over").exists():
    time.sleep(0.05)
"""
"""Reports its state and waits for a file; or exits with a code immediately."""


class Job:
    """An elastic job of 1 to 3 nodes."""

    def __init__(self, programs: Programs, backend: str, *command: str, nodes: str = "1:3") -> None:
        self.programs = programs
        programs.variables.setdefault(contract.ENV_ENDPOINT, f"ipc://{programs.folder}/x")
        self._rendezvous = ("rendezvous", "--backend", backend)
        self._node = ("elastic", "--nodes", nodes, "--backend", backend, "--gather-seconds", "1", "--", *command)
        self.rendezvous = programs.start(*self._rendezvous)

    def again(self) -> None:
        """Restart the rendezvous."""
        self.rendezvous = self.programs.start(*self._rendezvous)

    def node(self, **variables: str) -> Program:
        return self.programs.start(*self._node, **variables)


def part(node: Program) -> dict:
    """Current state of a node, from its last record."""
    return next((each for each in reversed(node.records("elastic")) if "state" in each), {})


def together(*nodes: Program) -> Callable[[], bool]:
    """Whether these nodes, and no others, train in one round."""

    def look() -> bool:
        parts = [part(each) for each in nodes]
        rounds = {each.get("round") for each in parts}
        return len(rounds) == 1 and all(
            each.get("state") == "training" and each["nodes"] == len(nodes) for each in parts
        )

    return look


def come_and_go(programs: Programs, backend: str) -> None:
    """Nodes join, one is killed, one leaves, one is a stranger, the rendezvous dies; then all finish."""
    script, token, other = (Path(programs.folder) / name for name in ("round.py", "token", "other"))
    script.write_text(ROUND_PROGRAM)
    token.write_text("the run's token\n")
    other.write_text("another token\n")
    programs.variables[contract.ENV_TOKEN_FILE] = str(token)
    job = Job(programs, backend, str(script), str(programs.folder), "0")
    first, second = job.node(), job.node()
    wait_for(together(first, second), "two nodes in a round", first, second, job.rendezvous)
    assert {part(first)["rank"], part(second)["rank"]} == {0, 1}
    second.kill_all()
    stranger = job.node(**{contract.ENV_TOKEN_FILE: str(other)})
    wait_for(together(first), "a round without the killed one", first)
    third = job.node()
    assert stranger.code() == contract.EXIT_FAILED
    assert "do not accept each other's keys" in stranger.text()
    wait_for(together(first, third), "a round with a new one", first, third)
    assert first.end() == contract.EXIT_INTERRUPTED
    assert "this node leaves the training" in first.text()
    wait_for(together(third), "a round without the one that left", third)
    before = part(third)["time"]
    job.rendezvous.kill_all()
    wait_for(lambda: "waiting for the rendezvous" in third.text(), "it to be missed", third)
    job.again()
    wait_for(lambda: together(third)() and part(third)["time"] > before, "a round over the new one", third)
    (programs.folder / "over").touch()
    assert third.code() == contract.EXIT_DONE
    assert job.rendezvous.code() == contract.EXIT_DONE
    late = job.node()
    assert late.code() == contract.EXIT_DONE
    assert "finished before this node came" in late.text()
    for each in programs.started:
        assert "Traceback" not in each.text(), each.text()
