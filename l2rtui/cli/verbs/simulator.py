"""simulator: status of workers' simulators, restart, signal, camera image."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

from l2rtui.cli.output import has_colours
from l2rtui.cli.session import Session
from l2rtui.cli.targets import one_pod, pods_named
from l2rtui.domain.simulator import Simulator
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.workload import Role
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, L2RError, NotFoundError, UsageError
from l2rtui.services import simulators
from l2rtui.services.ownership import refuse_others
from l2rtui.tables.resources import SIMULATORS, SimulatorRow

_AT_ONCE = 16


async def run_simulator(session: Session) -> int:
    """Act on one simulator, or print the status of the simulators of many workers."""
    args = session.args
    if args.what == "signal" and not args.signal:
        raise UsageError("simulator signal needs --signal NAME.", "Such as --signal USR1.")
    if args.what in ("restart", "signal"):
        session.require_change("simulator")
    snapshot = await session.backend.snapshot()
    if args.what == "status":
        return await _status(session, pods_named(snapshot, [args.target]))
    pod = one_pod(snapshot, args.target)
    if args.what == "frame":
        return await _frame(session, pod)
    refuse_others(f"simulator {args.what}", [pod], is_admin=args.admin)
    action = f"{args.what} of simulator {args.index} of {pod.name}"
    if not session.confirm(lambda: f"Ask for a {action}? Its episode is lost."):
        return EXIT_FAILED
    if args.what == "restart":
        await simulators.restart(session.backend, pod, args.index)
    else:
        await simulators.send_signal(session.backend, pod, args.signal, args.index)
    session.talk.say(f"asked for a {action}")
    return EXIT_DONE


async def _status(session: Session, pods: tuple[PodView, ...]) -> int:
    """Print the status of all together; pods without a simulator are skipped, unless there are no others."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask(pod: PodView) -> tuple[Simulator, ...] | L2RError:
        async with room:
            try:
                return await simulators.status(session.backend, pod)
            except L2RError as error:
                return error

    chosen = [pod for pod in pods if pod.role in (Role.WORKER, Role.EVALUATOR)] or list(pods)
    answers = await asyncio.gather(*map(ask, chosen))
    rows = [
        SimulatorRow(pod.name, simulator)
        for pod, answer in zip(chosen, answers, strict=True)
        if not isinstance(answer, L2RError)
        for simulator in answer
    ]
    errors = [answer for answer in answers if isinstance(answer, L2RError)]
    if not rows and errors:
        raise errors[0]
    for error in errors:
        if not isinstance(error, NotFoundError):
            session.talk.say(str(error))
    session.out.show_all(SIMULATORS, rows)
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
    from l2rtui.domain.simulator import to_ansi

    columns, rows = shutil.get_terminal_size()
    for line in to_ansi(picture, columns, max(1, rows - 2), has_colours=has_colours(sys.stdout)):
        sys.stdout.write(f"{line}\n")
    return EXIT_DONE


def _write(path: Path, data: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(data)
    except OSError as error:
        reason = "it is there already" if isinstance(error, FileExistsError) else error.strerror
        raise UsageError(f"{path} was not written: {reason}.", "Name another file.") from error
