"""plan, launch and relaunch: place, check, ask, execute, and roll back an interrupted launch."""

from __future__ import annotations

import asyncio
import logging
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from l2rtui.backends.common.refusals import SlotTakenError
from l2rtui.cli.output import can_ask
from l2rtui.cli.session import Session
from l2rtui.cli.targets import listed
from l2rtui.domain.kinds import Binding
from l2rtui.domain.placement import PlacementPolicy
from l2rtui.domain.plan import LaunchPlan, StepDone
from l2rtui.domain.preflight import Finding, Severity, cpu_sets, refusals, shared_pods, taken_names, watched
from l2rtui.domain.quantity import counted
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEFT_BEHIND, EXIT_REFUSED, LaunchError, UsageError
from l2rtui.services import destroyed_specs, launcher
from l2rtui.services.history import recorder
from l2rtui.services.launcher import CheckedPlan
from l2rtui.services.queue.submission import divide, may_wait, other_refusals, submit
from l2rtui.services.spec import spec_file
from l2rtui.services.spec.templates import template_path
from l2rtui.services.training_preflight import MEMORY
from l2rtui.tables import operations
from l2rtui.tables.documents import (
    destroyed_document,
    launched_document,
    plan_document,
    planned_pod,
    queued_document,
    started_document,
)

_TRIES: Final = 5
_RACE_SECONDS: Final = 0.5
"""Pause after another launch was faster: on a cluster its pods appear some time after its claim."""
Start = Callable[[CheckedPlan], Awaitable[list[dict[str, Any]] | None]]
_MAX_STEPS = 24
_log = logging.getLogger(__name__)


def is_queueing(session: Session, prepared: CheckedPlan) -> bool:
    """Return True if the runs of a plan may wait for room, according to the command line or their specs.

    Raises:
        UsageError: ``--queue`` contradicts another option, or has no meaning on this backend.
    """
    args = session.args
    has_queue = session.backend.queue is not None
    if args.queue and not has_queue:
        raise UsageError(f"The {session.backend.name} backend has no queue: --queue means nothing there.")
    if args.queue and args.overcommit:
        sentence = "--queue waits for free slots, and --overcommit shares slots of others."
        raise UsageError(sentence, "Leave out one of the two.")
    is_allowed = args.queue or (any(run.spec.may_wait for run in prepared.plan.runs) and not args.overcommit)
    return bool(has_queue and is_allowed and not other_refusals(prepared))


async def launch_or_queue(
    session: Session, prepared: CheckedPlan, start: Start, *, is_one: bool, tries: int = _TRIES
) -> int:
    """Start the runs that fit and queue the others.

    Args:
        start: Executes a plan and returns the documents of its runs; None if objects were left behind.
        tries: Number of divisions of the runs, while other launches take the slots of those that would start.
    """
    with session.interruption("nothing was created or queued."):
        submissions = await divide(session.backend, prepared)
    _say_warnings(session, submissions.start or prepared)
    if not session.confirm(lambda: f"{submissions.sentence} {session.backend.acts_on()}. Go ahead?"):
        return EXIT_FAILED
    launched: list[dict[str, Any]] = []
    if submissions.start is not None:
        try:
            documents = await start(submissions.start)
        except SlotTakenError:
            if not (session.args.yes and tries > 1):
                raise
            await asyncio.sleep(_RACE_SECONDS)
            return await launch_or_queue(session, prepared, start, is_one=is_one, tries=tries - 1)
        if documents is None:
            return EXIT_LEFT_BEHIND
        launched = documents
    if submissions.waiting:
        # Last: a launch that fails is undone as a whole, and then nothing must be queued.
        await submit(session.backend, submissions)
        session.talk.say(f"queued {listed(ticket.spec.name for ticket in submissions.waiting)}")
    session.talk.say(f"{submissions.sentence}.")
    launched += [queued_document(ticket) for ticket in submissions.waiting]
    if is_one:
        session.out.show_one(operations.LAUNCHED, launched[0])
    else:
        session.out.show_all(operations.LAUNCHED, launched)
    return EXIT_DONE


def _say_warnings(session: Session, prepared: CheckedPlan) -> None:
    for finding in prepared.findings:
        if finding.severity is Severity.WARNING:
            session.talk.say(f"warning: {finding.subject}: {finding.sentence}. {finding.hint}".rstrip())


async def _prepare(session: Session) -> launcher.CheckedPlan:
    args, settings = session.args, session.settings
    if getattr(args, "like", ""):
        return await _prepare_exactly(session)
    if getattr(args, "changes", ()):
        raise UsageError(
            "--with changes a setting of a run of the past.", "Name it with --like; --set is for a file."
        )
    (path, *more), limits = _spec_paths(args), settings.default_limits
    load = partial(
        spec_file.load,
        path,
        args.set,
        binding=settings.binding,
        limits=limits,
        more=more,
        allows_outside=args.allow_outside,
    )
    wish = load(args.name)
    # After the spec, so that an error in it does not need a second call; before a plan, which may take a while.
    session.require_answer(args.verb)
    if args.image:
        wish = await _with_image(session, wish)

    async def prepared_as(wish: spec_file.LaunchRequest) -> launcher.CheckedPlan:
        return await launcher.prepare(
            session.backend,
            wish,
            seeds=args.seeds,
            pins=args.on,
            policy=PlacementPolicy(args.policy) if args.policy else None,
            overcommit=args.overcommit,
            wave=args.wave,
            binding=Binding(args.binding) if args.binding else None,
        )

    prepared = await prepared_as(wish)
    if name := await _free_name(session, prepared, lambda names: wish.free_name(args.seeds, names)):
        # Read again if possible: names of imported objects follow the name of the run.
        again = wish.named(name) if path == "-" or args.image else load(name)
        prepared = await prepared_as(again)
    if session.backend.name != "kubernetes" or args.image or args.no_pin:
        return prepared
    from l2rtui.services import images

    absent = await images.absent(images.names_in(prepared.plan))
    return replace(prepared, findings=(*prepared.findings, *absent))


async def _free_name(
    session: Session, prepared: launcher.CheckedPlan, free_name: Callable[[AbstractSet[str]], str]
) -> str:
    """Return a new name for a launch whose own is taken; empty if it is free, or the launch stays refused."""
    names = taken_names(prepared.findings)
    if not names:
        return ""
    args, snapshot = session.args, await session.backend.snapshot()
    name = free_name({text for run in snapshot.runs.values() for text in (run.name, run.experiment)})
    exists = f"{listed(names)} {'exists' if len(names) == 1 else 'exist'} already"
    if args.rename:
        session.talk.say(f"{exists}: this launch is named {name}.")
        return name
    if args.verb == "launch" and not args.yes and can_ask():
        with_name = session.confirm(lambda: f"{exists[0].upper()}{exists[1:]}. Launch it as {name}?")
        return name if with_name else ""
    session.talk.say(f"Add --rename to launch it as {name}.")
    return ""


def _spec_paths(args: Namespace) -> list[str]:
    if args.file and args.template:
        raise UsageError("-f and -t both name the spec.", "Leave one out.")
    if args.template:
        return [str(template_path(args.template))]
    if not args.file:
        again = ", or --like RUN for one of the past" if args.verb == "launch" else ""
        hint = f"Write `l2rtui {args.verb} -f SPEC`, -t NAME for a template{again}."
        raise UsageError(f"{args.verb} needs a spec.", hint)
    return [str(path) for path in args.file]


async def _prepare_exactly(session: Session) -> launcher.CheckedPlan:
    """Return the plan of a run of the history, with findings about inputs that are no longer available."""
    from l2rtui.services.history.again import exact_launch  # with SQLite, which other launches load later
    from l2rtui.services.history.lookup import find_record
    from l2rtui.services.history.store import HistoryStore

    args = session.args
    if args.file or args.template or args.set or args.seeds or args.image:
        sentence = (
            "--like launches the recorded spec: it cannot be combined with -f, -t, --set, --seeds or --image."
        )
        raise UsageError(sentence, "--with gamma=0.9 changes a setting of it.")
    session.require_answer(args.verb)
    with HistoryStore() as store:
        record = find_record(store, args.like)
    exact = await asyncio.to_thread(
        exact_launch, session.backend, record, is_inexact=args.inexact, name=args.name, changes=args.changes
    )
    for note in exact.notes:
        if note.severity is Severity.OK:
            session.talk.say(f"{note.subject}: {note.sentence}")

    async def prepared_as(spec: RunSpec) -> launcher.CheckedPlan:
        return await launcher.prepare_runs(
            session.backend,
            [spec],
            pins=args.on or (),
            policy=PlacementPolicy(args.policy) if args.policy else PlacementPolicy.PACK,
            overcommit=args.overcommit,
            wave=args.wave,
            binding=Binding(args.binding) if args.binding else None,
            notes=exact.notes,
            source=record.launch.source.root and f"{record.launch.source.root}/spec.yaml",
        )

    prepared = await prepared_as(exact.spec)
    request = spec_file.LaunchRequest(exact.spec)
    if name := await _free_name(session, prepared, lambda names: request.free_name((), names)):
        prepared = await prepared_as(replace(exact.spec, name=name))
    return prepared


async def _with_image(session: Session, wish: spec_file.LaunchRequest) -> spec_file.LaunchRequest:
    """Return the request with the image of ``--image`` by its digest, and a finding that names it."""
    from l2rtui.services import images  # with the HTTP client, which most launches do not need here

    name = session.args.image
    if session.backend.name not in ("kubernetes", "docker"):
        raise UsageError(f"The {session.backend.name} backend runs no images: --image means nothing there.")
    images.named(name)  # also where no registry is asked
    # An Engine runs what it has, and an image that was built there is in no registry.
    asks_registry = session.backend.name != "docker" and not session.args.no_pin
    pinned = await images.pinned(name) if asks_registry else name
    sentence = f"it is {pinned}" if pinned != name else f"{name} is taken as it is named"
    session.talk.say(f"image: {sentence}")
    note = Finding(Severity.OK, "image", sentence)
    wish = wish.changed(lambda spec: replace(spec, image=pinned))
    return replace(wish, notes=(*wish.notes, note))


async def _prepare_again(session: Session) -> launcher.CheckedPlan:
    args = session.args
    return await launcher.prepare_runs(
        session.backend,
        destroyed_specs.find(args.target),
        pins=args.on or (),
        policy=PlacementPolicy(args.policy) if args.policy else PlacementPolicy.PACK,
        overcommit=args.overcommit,
        wave=args.wave,
        binding=Binding(args.binding) if args.binding else None,
    )


def _say(session: Session, findings: Iterable[Finding]) -> None:
    """Print warnings and refusals; the same one for many subjects, such as the seeds of an experiment, once."""
    heads = {Severity.WARNING: "warning", Severity.REFUSAL: "refused"}
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        if finding.severity in heads:
            sentence = finding.sentence.replace(finding.subject, "") if finding.subject else finding.sentence
            groups.setdefault((heads[finding.severity], sentence, finding.hint), []).append(finding)
    for (head, _, hint), (first, *others) in groups.items():
        same = f" The same of {listed(finding.subject for finding in others)}." if others else ""
        end = "" if first.sentence.endswith("?") else "."
        session.talk.say(f"{head}: {first.subject}: {first.sentence}{end}{same}{f' {hint}' if hint else ''}")


async def run_plan(session: Session) -> int:
    """Print the plan; exit code 3 if it would be refused."""
    prepared = await _prepare(session)
    is_refused = bool(refusals(prepared.findings))
    renderer = session.backend.renderer
    if session.args.diff:
        if renderer is None:
            raise UsageError(f"The {session.backend.name} backend keeps no objects that could be compared.")
        for line in await renderer.differences(prepared.plan):
            session.out.line(sanitize(line))
    elif session.out.form == "yaml" and renderer is not None:
        for manifest in await renderer.manifests(prepared.plan):
            session.out.line("---")
            session.out.dump(manifest)
    elif session.out.form in ("json", "yaml"):
        session.out.dump(plan_document(prepared.plan, prepared.findings, is_refused=is_refused))
    else:
        pods = [planned_pod(pod, run.spec.name) for run in prepared.plan.runs for pod in run.pods]
        session.out.show_all(operations.PLANNED, pods)
    # Positive findings are printed here, too: users use them to choose a place, and the size of a replay.
    in_memory = (item for item in prepared.findings if item.severity is Severity.OK and item.subject == MEMORY)
    in_order = (item for item in watched(prepared.plan) if item.severity is Severity.OK)
    # The plan must report fields of a file that a run changes or drops; users should not find out from pods.
    imported = (item for item in prepared.notes if item.severity is Severity.OK)
    for finding in (*cpu_sets(prepared.plan), *shared_pods(prepared.plan), *in_memory, *in_order, *imported):
        session.talk.say(f"{finding.subject}: {finding.sentence}.")
    _say(session, prepared.findings)
    return EXIT_REFUSED if is_refused else EXIT_DONE


async def run_launch(session: Session) -> int:
    """Start the runs of a spec and print them; Ctrl-C before that rolls everything back."""
    session.require_writable("launch")
    with session.interruption("nothing was created."):
        prepared = await _prepare(session)
    specs = [run.spec for run in prepared.plan.runs]
    is_one = not session.args.seeds and len(specs) == 1 and specs[0].trial is None
    return await _launch(session, prepared, is_one=is_one)


async def run_relaunch(session: Session) -> int:
    """Launch destroyed runs again with their specs, or list them."""
    if session.args.list:
        documents = [destroyed_document(run) for run in destroyed_specs.destroyed_runs()]
        session.out.show_all(operations.DESTROYED_RUNS, documents)
        if not documents:
            session.talk.say("Nothing has been destroyed from here yet.")
        return EXIT_DONE
    session.require_change("relaunch")
    with session.interruption("nothing was created."):
        prepared = await _prepare_again(session)
    return await _launch(session, prepared, is_one=len(prepared.plan.runs) == 1)


async def _launch(session: Session, prepared: launcher.CheckedPlan, *, is_one: bool) -> int:
    if is_queueing(session, prepared):
        return await launch_or_queue(session, prepared, partial(_start, session), is_one=is_one)
    _say(session, prepared.findings)
    if refusals(prepared.findings):
        if may_wait(session.backend, prepared):
            session.talk.say("Add --queue to let the runs that find no room wait for it.")
        return EXIT_REFUSED
    if not session.confirm(lambda: _question(session, prepared.plan)):
        return EXIT_FAILED
    launched = await _start(session, prepared)
    if launched is None:
        return EXIT_LEFT_BEHIND
    if is_one:
        session.out.show_one(operations.LAUNCHED, launched[0])
    else:
        session.out.show_all(operations.LAUNCHED, launched)
    return EXIT_DONE


async def _start(session: Session, prepared: launcher.CheckedPlan) -> list[dict[str, Any]] | None:
    """Execute a plan and return documents of its runs; None if an interruption left objects behind."""
    plan = prepared.plan
    names = [run.spec.name for run in plan.runs]
    with session.announcing("Interrupted: rolling back the launch."):
        try:
            plan = await _carry_out(session, prepared)
            if session.args.wait:
                session.talk.progress(f"waiting for {listed(names)} to run")
                snapshot = await launcher.wait_running(
                    session.backend, names, session.args.timeout, settle_seconds=session.settings.ready_seconds
                )
                launched = _launched_documents(snapshot, names)
            elif session.backend.renderer is not None:
                # Controllers create the pods later: the plan is printed, not a snapshot without them.
                launched = [started_document(run) for run in plan.runs]
            else:
                launched = _launched_documents(await session.backend.snapshot(), names)
        except asyncio.CancelledError:
            # The launcher rolls back while it launches; a Ctrl-C during --wait comes later and is undone here.
            if await _take_back(session, plan):
                return None
            raise
    session.talk.clear()
    for sentence in recorder.take_warnings():
        session.talk.say(f"warning: {sentence}")
    if session.talk.is_live:  # elsewhere each run was reported when it existed
        session.talk.say(f"launched {listed(names)}: {counted(sum(len(run.pods) for run in plan.runs), 'pod')}")
    return launched


def _launched_documents(snapshot: ClusterSnapshot, names: Iterable[str]) -> list[dict[str, Any]]:
    runs = [snapshot.run_named(name) for name in names]
    if None in runs:
        raise LaunchError("A run was removed while it was being launched.", "See `l2rtui runs`.")
    return [launched_document(run, snapshot) for run in runs if run is not None]


def _question(session: Session, plan: LaunchPlan) -> str:
    steps = plan.steps()
    for step in steps[:_MAX_STEPS]:
        session.talk.say(f"  {step.verb} {step.kind} {step.name}: {step.detail}")
    if len(steps) > _MAX_STEPS:
        session.talk.say(f"  and {len(steps) - _MAX_STEPS} more")
    pods = sum(len(run.pods) for run in plan.runs)
    where = session.backend.acts_on()
    return f"Launch {counted(len(plan.runs), 'run')} with {counted(pods, 'pod')} {where}?"


async def _carry_out(session: Session, prepared: launcher.CheckedPlan) -> LaunchPlan:
    """Execute a plan; if another launch is faster and the user has not confirmed the places, use other slots."""
    while True:
        progress = _Progress(session, prepared.plan)
        progress.begin()
        try:
            async with aclosing(launcher.launch(session.backend, prepared)) as steps:
                async for done in steps:
                    progress.tell(done)
                    # Steps of a fast backend may come without a single await, so the signal is checked here.
                    session.stop_if_asked()
        except SlotTakenError as error:
            if not session.args.yes:
                raise
            prepared = await launcher.replan(session.backend, prepared, error)
            if prepared.plan.conflicts and is_queueing(session, prepared):
                raise  # the caller that starts these runs queues them
            session.talk.say(f"{error.message} It is planned again.")
        else:
            return prepared.plan


class _Progress:
    """Progress of a launch: one updated line on a terminal, elsewhere a line for each run that exists."""

    def __init__(self, session: Session, plan: LaunchPlan) -> None:
        self._talk = session.talk
        self._total = len(plan.steps())
        self._number = 0
        self._left = {run.spec.name: len(run.pods) for run in plan.runs}
        self._ends = _last_steps(plan)

    def begin(self) -> None:
        """Say that the launch has started; a launch of many pods may take minutes."""
        if not self._talk.is_live:
            self._talk.say(f"launching {listed(self._left)}: {counted(self._total, 'object')}")

    def tell(self, done: StepDone) -> None:
        """Report one step."""
        step = done.step
        how = f" failed: {done.error}" if done.error else ""
        _log.debug("step %d of %d: %s %s %s%s", self._number + 1, self._total, step.verb, step.kind, step.name, how)
        for name in self._ends.get(self._number, ()):
            pods = self._left.pop(name)
            if not self._talk.is_live and not done.error:
                self._talk.say(f"launched {name}: {counted(pods, 'pod')}")
        self._number += 1
        waiting = f"{counted(len(self._left), 'run')} to go, " if len(self._left) > 1 else ""
        self._talk.live(
            f"launching: {waiting}[{self._number}/{self._total}] {step.verb} {step.kind} {step.name}{how}"
        )


def _last_steps(plan: LaunchPlan) -> dict[int, list[str]]:
    """Return the names of the runs that are complete after each step, by its number from 0."""
    names = sorted((run.spec.name for run in plan.runs), key=len, reverse=True)
    steps = plan.steps()
    last = dict.fromkeys(names, len(steps) - 1)  # for a run without an object of its name: the end of the launch
    for number, step in enumerate(steps):
        # Names of objects start with the name of their run; the longest matching run name is the owner.
        owner = next((name for name in names if step.name == name or step.name.startswith(f"{name}-")), None)
        if owner is not None:
            last[owner] = number
    ends: dict[int, list[str]] = {}
    for run in plan.runs:
        ends.setdefault(last[run.spec.name], []).append(run.spec.name)
    return ends


async def _take_back(session: Session, plan: LaunchPlan) -> bool:
    """Roll back what the launcher has not rolled back already; return True if any object is left."""
    receipts = await launcher.take_back(session.backend, plan, partial(launcher.destroy, session.backend))
    left = [f"{receipt.sentence}." for receipt in receipts if receipt.left]
    for sentence in left or ["The launch was rolled back; nothing is left."]:
        session.talk.say(sentence)
    return bool(left)
