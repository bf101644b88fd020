"""plan and launch: place, judge, ask, carry out, and take back what a stopped launch has made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from l2rtui.backends.base import Receipt, Renderer
from l2rtui.cli import documents, views
from l2rtui.cli.choose import counted
from l2rtui.cli.session import Session
from l2rtui.domain.containers import Binding
from l2rtui.domain.placement import Policy
from l2rtui.domain.plan import LaunchPlan
from l2rtui.domain.preflight import Finding, Weight, refusals
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEFT_BEHIND, EXIT_REFUSED, LaunchError, UsageError
from l2rtui.services import lastruns, launcher, specfile

_TAKE_BACK_GRACE_SECONDS = 2.0
_MOST_STEPS_SHOWN = 24


async def _prepare(session: Session) -> launcher.Prepared:
    args, settings = session.args, session.settings
    wish = specfile.load(args.file, args.set, args.name, binding=settings.binding)
    return await launcher.prepare(
        session.backend,
        await _with_image(session, wish) if args.image else wish,
        seeds=args.seeds,
        pins=args.on,
        policy=Policy(args.policy) if args.policy else None,
        overcommit=args.overcommit,
        wave=args.wave,
        binding=Binding(args.binding) if args.binding else None,
    )


async def _with_image(session: Session, wish: specfile.Wish) -> specfile.Wish:
    """The wish with the image of ``--image``, by its digest, and a finding that says so."""
    from l2rtui.services import images  # with the HTTP client, which most launches have no use for here

    name = session.args.image
    if session.backend.name not in ("kubernetes", "docker"):
        raise UsageError(f"The {session.backend.name} backend runs no images: --image means nothing there.")
    pinned = name if session.args.no_pin else await images.pinned(name)
    sentence = f"it is {pinned}" if pinned != name else f"{name} is taken as it is named"
    session.talk.say(f"image: {sentence}")
    note = Finding(Weight.OK, "image", sentence)
    return replace(wish, spec=replace(wish.spec, image=pinned), notes=(*wish.notes, note))


async def _prepare_again(session: Session) -> launcher.Prepared:
    args = session.args
    return await launcher.prepare_runs(
        session.backend,
        lastruns.find(args.target),
        pins=args.on or (),
        policy=Policy(args.policy) if args.policy else Policy.PACK,
        overcommit=args.overcommit,
        wave=args.wave,
        binding=Binding(args.binding) if args.binding else None,
    )


def _say(session: Session, findings: Iterable[Finding]) -> None:
    words = {Weight.WARNING: "warning", Weight.REFUSAL: "refused"}
    for finding in findings:
        if finding.weight in words:
            hint = f" {finding.hint}" if finding.hint else ""
            session.talk.say(f"{words[finding.weight]}: {finding.subject}: {finding.sentence}.{hint}")


async def run_plan(session: Session) -> int:
    """Print what would be created; 3 when it would be refused."""
    prepared = await _prepare(session)
    is_refused = bool(refusals(prepared.findings))
    renderer = session.backend if isinstance(session.backend, Renderer) else None
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
        session.out.dump(documents.plan_document(prepared.plan, prepared.findings, is_refused=is_refused))
    else:
        pods = [documents.planned_pod(pod, run.spec.name) for run in prepared.plan.runs for pod in run.pods]
        session.out.show_all(views.PLANNED, pods)
    _say(session, prepared.findings)
    return EXIT_REFUSED if is_refused else EXIT_DONE


async def run_launch(session: Session) -> int:
    """Start the runs of a spec and print them; Ctrl-C until then takes everything back."""
    session.require_change("launch")
    with session.interruption("nothing was created."):
        prepared = await _prepare(session)
    return await _launch(session, prepared, is_one=not session.args.seeds)


async def run_relaunch(session: Session) -> int:
    """Start runs again that were destroyed, with the specs that they had."""
    session.require_change("relaunch")
    with session.interruption("nothing was created."):
        prepared = await _prepare_again(session)
    return await _launch(session, prepared, is_one=len(prepared.plan.runs) == 1)


async def _launch(session: Session, prepared: launcher.Prepared, *, is_one: bool) -> int:
    plan = prepared.plan
    _say(session, prepared.findings)
    if refusals(prepared.findings):
        return EXIT_REFUSED
    if not session.confirm(lambda: _question(session, plan)):
        return EXIT_FAILED
    names = [run.spec.name for run in plan.runs]
    try:
        await _carry_out(session, prepared)
        if session.args.wait:
            session.talk.progress(f"waiting for {', '.join(names)} to run")
            snapshot = await launcher.wait_running(session.backend, names, session.args.timeout)
            launched = _seen(snapshot, names)
        elif isinstance(session.backend, Renderer):  # its pods show when their controllers have made them
            launched = [documents.started_document(run) for run in plan.runs]
        else:
            launched = _seen(await session.backend.snapshot(), names)
    except asyncio.CancelledError:
        if await _take_back(session, plan):
            return EXIT_LEFT_BEHIND
        raise
    session.talk.say(f"launched {', '.join(names)}: {counted(sum(len(run.pods) for run in plan.runs), 'pod')}")
    if is_one:
        session.out.show_one(views.LAUNCHED, launched[0])
    else:
        session.out.show_all(views.LAUNCHED, launched)
    return EXIT_DONE


def _seen(snapshot: ClusterSnapshot, names: Iterable[str]) -> list[dict[str, Any]]:
    """The launched runs as they stand."""
    runs = [snapshot.run_named(name) for name in names]
    if None in runs:
        raise LaunchError("A run was removed while it was being launched.", "See `l2rtui runs`.")
    return [documents.launched_document(run, snapshot) for run in runs if run is not None]


def _question(session: Session, plan: LaunchPlan) -> str:
    steps = plan.steps()
    for step in steps[:_MOST_STEPS_SHOWN]:
        session.talk.say(f"  {step.verb} {step.kind} {step.name}: {step.detail}")
    if len(steps) > _MOST_STEPS_SHOWN:
        session.talk.say(f"  and {len(steps) - _MOST_STEPS_SHOWN} more")
    pods = sum(len(run.pods) for run in plan.runs)
    return f"Launch {counted(len(plan.runs), 'run')} with {counted(pods, 'pod')}?"


async def _carry_out(session: Session, prepared: launcher.Prepared) -> None:
    total = len(prepared.plan.steps())
    async with aclosing(launcher.launch(session.backend, prepared)) as steps:
        number = 0
        async for done in steps:
            number += 1
            how = f" failed: {done.error}" if done.error else ""
            session.talk.progress(f"[{number}/{total}] {done.step.verb} {done.step.kind} {done.step.name}{how}")
            session.stop_if_asked()


async def _take_back(session: Session, plan: LaunchPlan) -> bool:
    """Remove what an interrupted launch has made, as far as the launcher has not done so; tell if any is left."""
    session.talk.say("Interrupted: taking back what was started.")
    snapshot = await session.backend.snapshot()
    is_left = False
    for run in plan.runs:
        view = snapshot.runs.get(run.uid)
        if view is None:
            continue
        destroyed = launcher.destroy(session.backend, view, grace_seconds=_TAKE_BACK_GRACE_SECONDS, purge=True)
        async for item in destroyed:
            if isinstance(item, Receipt) and item.left:
                is_left = True
                session.talk.say(f"{item.sentence}.")
    if not is_left:
        session.talk.say("What was started was taken back; nothing is left.")
    return is_left
