"""owners, reserve, unreserve: holders of slots and GPUs, and reservations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from l2rtui.cli.listings import SLOTS
from l2rtui.cli.selection import filtered
from l2rtui.cli.session import Session
from l2rtui.cli.targets import listed
from l2rtui.config import context_name
from l2rtui.domain import reservations
from l2rtui.domain.node import SlotId
from l2rtui.domain.owners import holdings
from l2rtui.domain.quantity import counted
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, L2RError, UsageError
from l2rtui.services import owners as looks
from l2rtui.services import reservations as changes
from l2rtui.services.owners import gpu_hours
from l2rtui.tables import cluster
from l2rtui.tables.column import Document
from l2rtui.tables.summaries import OWNERS, OwnerRow


async def run_owners(session: Session) -> int:
    """List the slots and GPUs of each owner."""
    args, settings = session.args, session.settings
    filtered(args.filter, OWNERS, ())  # a typo must not require a login
    snapshot = await session.backend.snapshot()
    now = time.time()
    place = args.context or context_name({"backend": settings.backend, "context": settings.context})
    idle = looks.idle_gpus(place, now)
    idle.take(snapshot, now)
    looks.remember(place, idle, now)
    try:
        # In a thread: thousands of records are read.
        hours = await asyncio.to_thread(gpu_hours, snapshot, session.backend.name, now)
    except L2RError as error:
        session.talk.say(f"warning: GPU-hours are unknown: {error}")
        hours = {}
    rows = holdings(snapshot, idle.long_idle(now, 0.0), now)
    owners = [OwnerRow(row, hours.get(row.owner)) for row in rows]
    session.out.show_all(OWNERS, filtered(args.filter, OWNERS, owners))
    return EXIT_DONE


async def run_reserve(session: Session) -> int:
    """Reserve slots for the user, or list reservations."""
    args = session.args
    if not args.places:
        if args.seconds is not None or args.note:
            raise UsageError("reserve needs the slots.", "Write NODE, NODE/GPU or NODE/GPU.SLOT.")
        return _list_reserved(session, await session.backend.snapshot())
    session.require_writable("reserve")
    if args.seconds is None:
        raise UsageError("reserve needs a time.", "Add --for 4h.")
    slots = changes.slots_named(args.places, await session.backend.snapshot())
    until = await changes.reserve(session.backend, slots, time.time(), args.seconds, args.note)
    snapshot = await session.backend.snapshot()
    _show(session, snapshot, slots)
    end = next((item.end for _, item in reservations.reserved(slots, snapshot.ledger) if item.until == until), "")
    session.talk.say(f"reserved {counted(len(slots), 'slot')}{f' until {end}' if end else ''}")
    return EXIT_DONE


async def run_unreserve(session: Session) -> int:
    """End reservations: those of the named slots, or with ``--mine`` all reservations of the user."""
    args = session.args
    session.require_writable("unreserve")
    if bool(args.places) == args.mine:
        raise UsageError("unreserve needs the slots, or --mine.", "`l2rtui reserve` lists reservations.")
    session.require_answer("unreserve")
    snapshot = await session.backend.snapshot()
    slots = changes.mine(snapshot) if args.mine else changes.slots_named(args.places, snapshot)
    names = listed(str(slot) for slot, _ in reservations.reserved(slots, snapshot.ledger))
    if names and not session.confirm(lambda: f"End the reservations of {names} {session.backend.acts_on()}?"):
        return EXIT_FAILED
    ended = await changes.unreserve(session.backend, snapshot, slots, is_admin=args.admin)
    session.talk.say(f"no longer reserved: {listed(str(slot) for slot, _ in ended)}")
    return EXIT_DONE


def _list_reserved(session: Session, snapshot: ClusterSnapshot) -> int:
    slots = [slot.id for slot in snapshot.ledger.slots.values() if slot.reservation is not None]
    _show(session, snapshot, slots)
    return EXIT_DONE


def _show(session: Session, snapshot: ClusterSnapshot, slots: Collection[SlotId]) -> None:
    names = {str(slot) for slot in slots}
    documents: list[Document] = [item for item in SLOTS.documents(snapshot) if item["id"] in names]
    session.out.show_all(cluster.RESERVED, documents)
