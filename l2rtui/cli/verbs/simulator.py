"""simulator: how the simulators of workers are, a restart or a signal for one, and what its camera sees."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

from l2rtui.cli.choose import counted, listed, pods_named
from l2rtui.cli.output import Column, View, has_colours
from l2rtui.cli.session import Session
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Level
from l2rtui.domain.workload import Role
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, L2RError, NotFoundError, UsageError
from l2rtui.services import simulators
from l2rtui.services.owners import refuse_others

_LEVELS = {"ready": None, "starting": Level.WAIT, "stopped": Level.DONE, "lost": Level.WARN, "given up": Level.BAD}
_AT_ONCE = 16


def _column(header: str, key: str, *, is_number: bool = False) -> Column:
    return Column(header, lambda document: document[key], is_number=is_number)


_VIEW = View(
    lambda document: f"{document['pod']}/{document['index']}",
    (
        _column("POD", "pod"),
        _column("INDEX", "index", is_number=True),
        Column("STATE", lambda document: document["state"], level=lambda document: _LEVELS.get(document["state"])),
        _column("RESTARTS", "restarts", is_number=True),
        _column("FPS", "fps", is_number=True),
        _column("KIND", "kind"),
        _column("ERROR", "error"),
    ),
)


async def run_simulator(session: Session) -> int:
    """Do one thing with one simulator, or tell how those of many workers are."""
    args = session.args
    if args.what == "signal" and not args.signal:
        raise UsageError("simulator signal needs --signal NAME.", "Such as --signal USR1.")
    if args.what in ("restart", "signal"):
        session.require_change("simulator")
    pods = pods_named(await session.backend.snapshot(), [args.target])
    if args.what == "status":
        return await _status(session, pods)
    if len(pods) != 1:
        names = listed(pod.name for pod in pods)
        raise UsageError(f"{args.target} names {counted(len(pods), 'pod')}: {names}.", "Name one of them.")
    if args.what == "frame":
        return await _frame(session, pods[0])
    refuse_others(f"simulator {args.what}", pods, is_admin=args.admin)
    asked = f"{args.what} of simulator {args.index} of {pods[0].name}"
    if not session.confirm(lambda: f"Ask for a {asked}? Its episode is lost."):
        return EXIT_FAILED
    if args.what == "restart":
        await simulators.restart(session.backend, pods[0], args.index)
    else:
        await simulators.send_signal(session.backend, pods[0], args.signal, args.index)
    session.talk.say(f"asked for a {asked}")
    return EXIT_DONE


async def _status(session: Session, pods: tuple[PodView, ...]) -> int:
    """All of them at once; those that drive none are passed over, unless there are no others."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask(pod: PodView) -> tuple[simulators.Simulator, ...] | L2RError:
        async with room:
            try:
                return await simulators.status(session.backend, pod)
            except L2RError as error:
                return error

    chosen = [pod for pod in pods if pod.role in (Role.WORKER, Role.EVALUATOR)] or list(pods)
    answers = await asyncio.gather(*map(ask, chosen))
    documents = [
        _document(pod, one)
        for pod, answer in zip(chosen, answers, strict=True)
        if not isinstance(answer, L2RError)
        for one in answer
    ]
    errors = [answer for answer in answers if isinstance(answer, L2RError)]
    if not documents and errors:
        raise errors[0]
    for error in errors:
        if not isinstance(error, NotFoundError):
            session.talk.say(str(error))
    session.out.show_all(_VIEW, documents)
    return EXIT_DONE


async def _frame(session: Session, pod: PodView) -> int:
    args = session.args
    width = simulators.WIDTH if not args.to else 4096
    picture = await simulators.frame(session.backend, pod, args.index, camera=args.camera, width=width)
    if args.to:
        head = f"P6 {picture.width} {picture.height} 255\n".encode()
        await asyncio.to_thread(_write, Path(args.to), head + picture.pixels)
        session.talk.say(f"wrote {picture.width}x{picture.height} pixels to {args.to}")
        return EXIT_DONE
    from l2rtui.services import pictures

    columns, rows = shutil.get_terminal_size()
    for line in pictures.ansi(picture, columns, max(1, rows - 2), has_colours=has_colours(sys.stdout)):
        sys.stdout.write(f"{line}\n")
    return EXIT_DONE


def _write(path: Path, data: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(data)
    except OSError as error:
        reason = "it is there already" if isinstance(error, FileExistsError) else error.strerror
        raise UsageError(f"{path} was not written: {reason}.", "Name another file.") from error


def _document(pod: PodView, one: simulators.Simulator) -> dict[str, Any]:
    return {
        "pod": pod.name,
        "index": one.index,
        "kind": one.kind,
        "state": one.state,
        "restarts": one.restarts,
        "uptime_seconds": one.uptime_seconds,
        "fps": one.fps,
        "error": one.error,
        "tail": list(one.tail),
    }
