"""Commands around commands: what joins elastic nodes, and what orders the steps of a job; written and read again.

A RunSpec holds each command complete, as it is started. These functions are the only ones that know how the words
of ``l2r-runtime elastic`` and ``l2r-runtime step`` are put together, and take them apart for a spec file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_RUNTIME = "l2r-runtime"
_END = "--"


@dataclass(frozen=True, slots=True)
class Elastic:
    """What ``l2r-runtime elastic`` is told.

    Attributes:
        rendezvous: Name of the set of the rendezvous process.
        low, high: Fewest and most nodes. processes: of each node.
    """

    rendezvous: str
    backend: str
    low: int
    high: int
    processes: int


@dataclass(frozen=True, slots=True)
class Step:
    """What ``l2r-runtime step`` is told.

    Attributes:
        after: Steps that must be done before.
        parts: Replicas that must all be done. is_once: a failure is final, and ends the steps that wait.
    """

    name: str
    after: tuple[str, ...] = ()
    parts: int = 1
    is_once: bool = False


def elastic(one: Elastic, program: Sequence[str]) -> tuple[str, ...]:
    """The command of a node."""
    return (
        *(_RUNTIME, "elastic", "--rendezvous", one.rendezvous, "--nodes", f"{one.low}:{one.high}"),
        *("--nproc-per-node", str(one.processes), "--backend", one.backend, _END, *program),
    )


def read_elastic(command: Sequence[str]) -> tuple[Elastic, tuple[str, ...]] | None:
    """Take the command of a node apart; None when it is another command."""
    if tuple(command[:2]) != (_RUNTIME, "elastic") or len(command) < 11:
        return None
    low, _, high = command[5].partition(":")
    return Elastic(command[3], command[9], int(low), int(high), int(command[7])), tuple(command[11:])


def step(one: Step, command: Sequence[str]) -> tuple[str, ...]:
    """The command of a step."""
    return (
        *(_RUNTIME, "step", one.name),
        *(("--after", ",".join(one.after)) if one.after else ()),
        *(("--parts", str(one.parts)) if one.parts > 1 else ()),
        *(("--once",) if one.is_once else ()),
        *(_END, *command),
    )


def read_step(command: Sequence[str]) -> tuple[Step, tuple[str, ...]] | None:
    """Take the command of a step apart; None when it is another command."""
    if tuple(command[:2]) != (_RUNTIME, "step") or _END not in command:
        return None
    end = command.index(_END)
    words = list(command[3:end])
    after = words[words.index("--after") + 1].split(",") if "--after" in words else []
    parts = int(words[words.index("--parts") + 1]) if "--parts" in words else 1
    return Step(command[2], tuple(after), parts, "--once" in words), tuple(command[end + 1 :])


def rendezvous(backend: str, until: str = "") -> tuple[str, ...]:
    """The command of a rendezvous process.

    Args:
        until: Step with whose end it ends, too.
    """
    return (_RUNTIME, "rendezvous", "--backend", backend, *(("--until", until) if until else ()))
