"""queue: runs that wait for slots, in start order; cancel them, move them."""

from __future__ import annotations

from collections.abc import Sequence

from l2rtui.backends.queue_store import QueueStore
from l2rtui.cli import watching
from l2rtui.cli.session import Session
from l2rtui.cli.targets import listed, require_only_named
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, UsageError
from l2rtui.services.queue import changes
from l2rtui.services.queue.listing import queue_rows
from l2rtui.tables import operations
from l2rtui.tables.column import Document
from l2rtui.tables.documents import queue_document

_VOLATILE = frozenset({"waits_for"})


async def run_queue(session: Session) -> int:
    """List the queue, or perform the action named by the first word."""
    args = session.args
    if args.action == "ls":
        if args.names or args.to is not None:
            raise UsageError("queue lists all runs that wait, and takes no names.", "See `l2rtui queue --help`.")
        return await _list(session)
    session.require_writable(f"queue {args.action}")
    if not args.names:
        raise UsageError(f"queue {args.action} needs the name of a run.", "See `l2rtui queue`.")
    if (args.to is not None) != (args.action == "move"):
        raise UsageError("queue move needs --to N, and cancel takes none.", "Write `l2rtui queue move RUN --to 1`.")
    if args.action == "cancel":  # a move can be undone by another, and asks nothing
        session.require_answer("queue cancel")
    store = await _store(session)
    return await (_cancel if args.action == "cancel" else _move)(session, store)


async def _store(session: Session) -> QueueStore:
    contexts = session.backend.contexts
    if contexts is not None:
        await contexts.open()  # the queue of a cluster goes by its context
    store = session.backend.queue
    if store is None:
        raise UsageError(
            f"The {session.backend.name} backend has no queue.", "Queueing works only on a single context."
        )
    return store


async def _list(session: Session) -> int:
    async def documents(snapshot: ClusterSnapshot) -> Sequence[Document]:
        return [queue_document(row) for row in await queue_rows(session.backend, snapshot)]

    if session.args.watch:
        writer = watching.writer_of(session, operations.QUEUE, "run", _VOLATILE)
        return await watching.follow(session, writer, documents)
    session.out.show_all(operations.QUEUE, await documents(await session.backend.snapshot()))
    return EXIT_DONE


async def _cancel(session: Session, store: QueueStore) -> int:
    args = session.args
    tickets = changes.tickets_named(store.read().queue, args.names)
    names = listed(ticket.spec.name for ticket in tickets)
    require_only_named(
        session,
        "cancel",
        {
            name: [ticket.spec.name for ticket in changes.tickets_named(store.read().queue, [name])]
            for name in args.names
        },
    )
    if not session.confirm(lambda: f"Take {names} out of the queue {session.backend.acts_on()}?"):
        return EXIT_FAILED
    await changes.cancel(store, args.names, is_admin=args.admin)
    session.talk.say(f"out of the queue: {names}")
    return EXIT_DONE


async def _move(session: Session, store: QueueStore) -> int:
    args = session.args
    if len(args.names) != 1 or args.to < 1:
        raise UsageError("queue move takes one run and a position from 1 up.", "Write `queue move RUN --to 1`.")
    await changes.move_to(store, args.names[0], args.to, is_admin=args.admin)
    rows = await queue_rows(session.backend, await session.backend.snapshot())
    session.out.show_all(operations.QUEUE, [queue_document(row) for row in rows])
    return EXIT_DONE
