"""scale, kill, exec and attach: changes of a running run."""

from __future__ import annotations

from l2rtui.cli.session import Session
from l2rtui.cli.targets import (
    listed,
    one_pod,
    pods_named,
    queued_targets,
    require_only_named,
    runs_meant,
)
from l2rtui.domain.plan import ScalePlan
from l2rtui.domain.quantity import counted
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, NotFoundError, UsageError, nearest
from l2rtui.services import launcher
from l2rtui.services.ownership import refuse_others
from l2rtui.services.queue import changes
from l2rtui.services.terminal import carry, leave_text
from l2rtui.tables import cluster, operations
from l2rtui.tables.documents import pod_document, scale_document


async def run_scale(session: Session) -> int:
    """Set the number of replicas of a set."""
    args = session.args
    session.require_writable("scale")
    if "/" not in args.target.strip("/"):
        raise _no_set(args.target)
    snapshot = await session.backend.snapshot()
    runs, set_name = sets_named(snapshot, args.target)
    refuse_others("scale", runs, is_admin=args.admin)
    require_only_named(session, "scale", runs_meant(snapshot, [args.target]))
    if len(runs) > 1:
        # A single run is changed without a question, as in earlier versions: nothing is lost that cannot be started
        # again.
        session.require_answer("scale")
        names, where = listed(run.name for run in runs), session.backend.acts_on({run.namespace for run in runs})
        if not session.confirm(lambda: f"Scale {set_name} of {names} to {args.replicas} {where}?"):
            return EXIT_FAILED
    documents = []
    for run in runs:
        with session.interruption("`l2rtui pods` shows whether it was done."):
            plan = await launcher.scale(
                session.backend,
                run.name,
                set_name,
                args.replicas,
                overcommit=args.overcommit,
                planned=lambda plan: session.talk.say(_told(plan)),
            )
        documents.append(scale_document(plan))
    if len(runs) > 1:
        session.out.show_all(operations.SCALED, documents)
    else:
        session.out.show_one(operations.SCALED, documents[0])
    return EXIT_DONE


def _told(plan: ScalePlan) -> str:
    slots = listed(str(slot) for pod in plan.added for slot in pod.seat.slots)
    on = f" on {slots}" if slots else ""
    return f"{plan.run}/{plan.set_name}: {len(plan.added)} to start{on}, {len(plan.removed)} to stop"


def sets_named(snapshot: ClusterSnapshot, target: str) -> tuple[tuple[RunView, ...], str]:
    """Return the runs and the set of ``RUN/SET``, or of ``experiment/NAME/SET``.

    Raises:
        NotFoundError: the run does not exist. UsageError: the target names no set.
    """
    runs, parts = snapshot.runs_in(target)
    if not runs:
        run = target.partition("/")[0]
        hint = nearest(run, (view.name for view in snapshot.runs.values()), most=2)
        raise NotFoundError(f"There is no run {run}.", hint or "See `l2rtui runs`.")
    if len(parts) != 1 or not parts[0]:
        raise _no_set(target)
    return runs, parts[0]


def _no_set(target: str) -> UsageError:
    hint = "Write RUN/SET, such as racing-sac/w; `l2rtui runs -o wide` lists them."
    return UsageError(f"{target!r} is no set.", hint)


async def run_kill(session: Session) -> int:
    """Stop pods; their sets replace them."""
    session.require_writable("kill")
    if signal := next((target for target in session.args.targets if target.startswith("-")), ""):
        sentence = f"kill takes no signal {signal}: it sends SIGTERM, and SIGKILL after the grace period."
        raise UsageError(sentence, "Write --grace 0 for an immediate SIGKILL.")
    with session.interruption("no pod was stopped."):
        snapshot = await session.backend.snapshot()
        queued = queued_targets(snapshot, session.args.targets)
        runs = list({name: None for names in runs_meant(snapshot, queued).values() for name in names})
        pods = pods_named(snapshot, [target for target in session.args.targets if target not in queued])
    require_only_named(session, "kill", runs_meant(snapshot, session.args.targets))
    if queued:
        # A queued run has no pods: stopping it means removing it from the queue.
        await cancel_queued(session, runs)
    if not pods:
        return EXIT_DONE
    refuse_others("kill", pods, is_admin=session.args.admin)
    session.require_answer("kill")
    names = listed(pod.name for pod in pods)
    where = session.backend.acts_on({pod.namespace for pod in pods})
    of_runs = dict.fromkeys(pod.run for pod in pods if pod.run)
    of = f" of {listed(of_runs)}" if len(of_runs) > 1 else ""
    if not session.confirm(
        lambda: f"Kill {counted(len(pods), 'pod')}{of} {where}: {names}? Their sets replace them."
    ):
        return EXIT_FAILED
    grace = session.args.grace if session.args.grace is not None else session.settings.grace_seconds
    with session.interruption("`l2rtui pods` shows which were stopped."):
        await launcher.kill(session.backend, pods, grace)
    session.out.show_all(cluster.PODS, [pod_document(pod) for pod in pods])
    return EXIT_DONE


async def cancel_queued(session: Session, names: list[str]) -> None:
    """Take runs out of the queue, after the question."""
    store = session.backend.queue
    session.require_answer("kill")
    if store is not None and session.confirm(lambda: f"Take {listed(names)} out of the queue?"):
        await changes.cancel(store, names, is_admin=session.args.admin)
        session.talk.say(f"out of the queue: {listed(names)}")


async def run_exec(session: Session) -> int:
    """Run a command in a pod, next to its process, on this terminal; l2rtui returns its exit code."""
    session.require_change("exec")
    if not session.args.command:
        raise UsageError("exec needs a command.", "Write `l2rtui exec TARGET -- CMD`.")
    pod = one_pod(await session.backend.snapshot(), session.args.target)
    with session.interrupt_belongs_to_child():
        return await session.backend.exec(pod, session.args.command)


async def run_attach(session: Session) -> int:
    """Connect this terminal to a pod's process until it ends or the user detaches."""
    session.require_change("attach")
    pod = one_pod(await session.backend.snapshot(), session.args.target)
    async with session.backend.attach(pod) as process:
        session.talk.say(f"{pod.name}: {leave_text(has_terminal=process.has_terminal)}")
        is_left = await carry(process)
    session.talk.say(f"{pod.name} runs on" if is_left else f"the output of {pod.name} has ended")
    return EXIT_DONE
