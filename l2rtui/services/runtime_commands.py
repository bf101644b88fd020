"""Wrapper commands ``l2r-runtime elastic``, ``step`` and ``rendezvous``: built for a RunSpec, and parsed back.

A RunSpec holds each full command, as it is started. Only these functions know its form; a spec file holds the
parsed values.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

_RUNTIME = "l2r-runtime"
_END = "--"
_AUTO = "auto"


class ElasticCommand(Struct, frozen=True):
    """Options of ``l2r-runtime elastic``.

    Attributes:
        rendezvous: Name of the set of the rendezvous process.
        low, high: Minimum and maximum of nodes.
        processes: Per node; None for one per GPU, or one without GPUs.
    """

    rendezvous: str
    backend: str
    low: int
    high: int
    processes: int | None = None


class Step(Struct, frozen=True):
    """Options of ``l2r-runtime step``.

    Attributes:
        after: Steps that must be done first.
        parts: Replicas that must all be done. is_once: a failure is final, and ends the steps that wait.
    """

    name: str
    after: tuple[str, ...] = ()
    parts: int = 1
    is_once: bool = False


def elastic(value: ElasticCommand, program: Sequence[str]) -> tuple[str, ...]:
    """Return the command of a node."""
    return (
        *(_RUNTIME, "elastic", "--rendezvous", value.rendezvous, "--nodes", f"{value.low}:{value.high}"),
        *("--nproc-per-node", str(value.processes or _AUTO), "--backend", value.backend, _END, *program),
    )


def read_elastic(command: Sequence[str]) -> tuple[ElasticCommand, tuple[str, ...]] | None:
    """Parse the command of a node; None if it is another command."""
    # Exactly the form that `elastic` builds: a user's own use of the program stays a plain command.
    if tuple(command[:2]) != (_RUNTIME, "elastic") or len(command) < 11:
        return None
    low, _, high = command[5].partition(":")
    processes = None if command[7] == _AUTO else int(command[7])
    return ElasticCommand(command[3], command[9], int(low), int(high), processes), tuple(command[11:])


def step(value: Step, command: Sequence[str]) -> tuple[str, ...]:
    """Return the command of a step."""
    return (
        *(_RUNTIME, "step", value.name),
        *(("--after", ",".join(value.after)) if value.after else ()),
        *(("--parts", str(value.parts)) if value.parts > 1 else ()),
        *(("--once",) if value.is_once else ()),
        *(_END, *command),
    )


def read_step(command: Sequence[str]) -> tuple[Step, tuple[str, ...]] | None:
    """Parse the command of a step; None if it is another command."""
    if tuple(command[:2]) != (_RUNTIME, "step") or _END not in command:
        return None
    end = command.index(_END)
    arguments = list(command[3:end])
    after = arguments[arguments.index("--after") + 1].split(",") if "--after" in arguments else []
    parts = int(arguments[arguments.index("--parts") + 1]) if "--parts" in arguments else 1
    return Step(command[2], tuple(after), parts, "--once" in arguments), tuple(command[end + 1 :])


def rendezvous(backend: str, until: str = "") -> tuple[str, ...]:
    """Return the command of a rendezvous process.

    Args:
        until: Step with which it ends.
    """
    return (_RUNTIME, "rendezvous", "--backend", backend, *(("--until", until) if until else ()))
