"""Python API: launch, wait, metrics, logs and destroy, over the services of the commands.

``Client`` is for asyncio. The functions of the same names are for programs without an event loop: each opens a
client, does its work and closes it. Failures are the errors of ``l2rtui.errors``, with the sentences and the rules
of the commands: preflight refuses, runs of other users are left alone, an interrupted launch is rolled back.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, Literal, Self, TypedDict, TypeVar, Unpack

from l2rtui.backends.base import Backend
from l2rtui.backends.common.refusals import SlotTakenError
from l2rtui.backends.registry import make_backend
from l2rtui.config import Settings, load_settings, state_dir
from l2rtui.domain.log import LogLine, LogQuery
from l2rtui.domain.metrics import RunMetrics
from l2rtui.domain.placement import parse_pins, parse_seeds
from l2rtui.domain.preflight import taken_names
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.errors import EXIT_OUT_OF_REACH, L2RError, NotFoundError, RefusedError, UsageError, nearest
from l2rtui.services import launcher
from l2rtui.services import logs as log_service
from l2rtui.services import metrics as metrics_service
from l2rtui.services.adoption import Adoption
from l2rtui.services.ownership import refuse_others
from l2rtui.services.run_waiting import Goal, RunWaiter, Verdict, WaitCondition, WaitOutcome
from l2rtui.services.spec import spec_file
from l2rtui.services.spec.templates import template_path

Until = Literal["running", "learned", "done", "failed", "gone"]
_Result = TypeVar("_Result")

_REACHING: Final = {
    WaitCondition.RUNNING: "run",
    WaitCondition.LEARNED: "reach a return of {:g}",
    WaitCondition.DONE: "be done",
    WaitCondition.FAILED: "fail",
    WaitCondition.GONE: "be gone",
}


class ClientSettings(TypedDict, total=False):
    """Settings of a client: each key overrides the setting of that name."""

    backend: str
    context: str
    namespaces: str | tuple[str, ...]
    readonly: bool


class OutOfReachError(L2RError):
    """A run can no longer reach the condition that ``wait`` waits for."""

    exit_code = EXIT_OUT_OF_REACH


class Client:
    """The runs of one place, for asyncio: ``async with Client(backend="local") as client: ...``."""

    def __init__(self, **place: Unpack[ClientSettings]) -> None:
        self._settings: Settings = load_settings(dict(place))
        self._made: Backend | None = None
        self._adoption: Adoption | None = None

    async def __aenter__(self) -> Self:
        self._made = make_backend(self._settings.backend, self._settings)
        if (
            self._made.adopt is not None
            and not self._settings.readonly
            and (state_dir() / "local" / "runs").is_dir()
        ):
            self._adoption = Adoption(self._made, logging.getLogger(__name__).warning)
            await self._adoption.first_outcomes()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._adoption is not None:
            await self._adoption.close()
        await self._backend.close()

    async def launch(
        self,
        spec: str | Path,
        *,
        overrides: Mapping[str, object] | None = None,
        name: str = "",
        seeds: Sequence[int] | str = (),
        on: str = "",
        rename: bool = False,
    ) -> tuple[str, ...]:
        """Start the runs of a spec; return their names.

        Args:
            spec: Path of a spec file, or the name of a template or an example, such as ``cartpole-ppo``.
            overrides: Values by field, as in ``{"train.ppo.lr": 1e-3, "workers.0.replicas": 4}``.
            name: Replaces the name of the spec.
            seeds: One run for each, as numbers or as ``0-11``; empty for the seeds of the spec.
            on: Devices or slots, in the form of ``--on``.
            rename: If the name is taken, use the next free one.

        Raises:
            SpecError, RefusedError, LaunchError: nothing is left of this launch.
        """
        self._require_writable("launch")
        try:
            pins = parse_pins(on) if on else None
        except ValueError as error:
            raise UsageError(f"on: {error}.") from None
        try:
            chosen = parse_seeds(seeds) if isinstance(seeds, str) and seeds else tuple(map(int, seeds))
        except ValueError as error:
            raise UsageError(f"seeds: {error}.") from None
        request = spec_file.load(
            _path_of(spec),
            [f"{field}={json.dumps(value)}" for field, value in (overrides or {}).items()],
            name,
            binding=self._settings.binding,
            limits=self._settings.default_limits,
        )
        prepared = await launcher.prepare(self._backend, request, seeds=chosen, pins=pins)
        if rename and taken_names(prepared.findings):
            present = (await self._backend.snapshot()).runs.values()
            used = {text for run in present for text in (run.name, run.experiment)}
            request = request.named(request.free_name(chosen, used))
            prepared = await launcher.prepare(self._backend, request, seeds=chosen, pins=pins)
        while True:
            try:
                async with aclosing(launcher.launch(self._backend, prepared)) as steps:
                    async for _ in steps:
                        pass
            except SlotTakenError as error:  # another launch was faster
                prepared = await launcher.replan(self._backend, prepared, error)
            else:
                return tuple(run.spec.name for run in prepared.plan.runs)

    async def wait(
        self,
        *names: str,
        until: Until = "done",
        value: float = 0.0,
        timeout: float | None = None,  # noqa: ASYNC109  (as in the function without a loop, which has no other)
    ) -> dict[str, Verdict]:
        """Wait until every run has reached a condition; return what each has reached, by name.

        Args:
            names: Runs, or ``experiment/NAME``.
            value: Return to reach; only for ``learned``.
            timeout: Seconds; None waits as long as it takes.

        Raises:
            OutOfReachError: a run can no longer reach it. TimeoutError: not within the time.
        """
        if until not in tuple(WaitCondition):
            raise UsageError(f"until is {until!r}: write {', '.join(WaitCondition)}.")
        snapshot, goal = await self._backend.snapshot(), Goal(WaitCondition(until), value)
        runs = _runs(snapshot, names, may_be_gone=goal.condition is WaitCondition.GONE)
        failures = self._adoption.failures if self._adoption is not None else {}
        waiter = RunWaiter(self._backend, runs, goal, adoption_failure=lambda run: failures.get(run, ""))
        verdicts = dict[str, Verdict]()
        async with asyncio.timeout(timeout), aclosing(waiter.verdicts()) as readings:
            async for by_uid in readings:
                verdicts = {run.name: by_uid[run.uid] for run in runs}
                for run, verdict in verdicts.items():
                    if verdict.outcome is WaitOutcome.OUT_OF_REACH:
                        goal_text = _REACHING[goal.condition].format(value)
                        raise OutOfReachError(f"{run} cannot {goal_text} any more: it {verdict.reason}.")
                if all(verdict.outcome is WaitOutcome.REACHED for verdict in verdicts.values()):
                    break
        return verdicts

    async def metrics(self, run: str) -> RunMetrics | None:
        """Return the newest metrics of a run's learner; None before its first record.

        Raises:
            NotFoundError: there is no such run, or it has no learner.
        """
        snapshot = await self._backend.snapshot()
        (view,) = _runs(snapshot, [run], is_single=True)
        learner = metrics_service.learner_of(snapshot, view.name)
        return await metrics_service.newest(self._backend, view.name, learner)

    async def logs(
        self, *targets: str, follow: bool = False, tail: int | None = None, grep: str = ""
    ) -> AsyncGenerator[LogLine, None]:
        """Yield log lines of runs, sets or pods, merged by time.

        Args:
            follow: Continue with new lines until the runs are deleted or all their pods have ended.
            tail: Only this many lines of the backlog.
            grep: Regular expression that a line must contain.
        """
        snapshot = await self._backend.snapshot()
        pods: dict[str, PodView] = {}
        for target in targets:
            if not (selected := snapshot.select(target)):
                _runs(snapshot, [target])  # raises, unless the run has no pods yet
            pods |= {pod.uid: pod for pod in selected}
        runs = [target for target in targets if snapshot.runs_in(target)[0]]
        query = LogQuery(follow=follow, tail=tail)
        lines = log_service.merged(self._backend, list(pods.values()), query, include=grep, targets=runs)
        async with aclosing(lines):
            async for line in lines:
                yield line

    async def destroy(
        self, *names: str, purge: bool = False, all_matching: bool = False, grace_seconds: float | None = None
    ) -> list[Receipt]:
        """Remove runs and all that they own; return a receipt for each, counted where they ran.

        Args:
            purge: Delete the results, too.
            all_matching: Each name may stand for several runs, as ``experiment/NAME`` does.

        Raises:
            NotFoundError: there is no such run.
            RefusedError: a run is another user's, or a name stands for several. Nothing was changed.
        """
        self._require_writable("destroy")
        runs = _runs(await self._backend.snapshot(), names, is_single=not all_matching)
        refuse_others("destroy", runs, is_admin=False)
        grace = self._settings.grace(grace_seconds)

        async def remove(run: RunView) -> list[Receipt]:
            items = launcher.destroy(self._backend, run, grace_seconds=grace, purge=purge)
            return [item async for item in items if isinstance(item, Receipt)]

        outcomes = await asyncio.gather(*map(remove, runs), return_exceptions=True)
        for outcome in outcomes:  # after all of them: one failure must not stop the others half-way
            if isinstance(outcome, BaseException):
                raise outcome
        return [receipt for outcome in outcomes if isinstance(outcome, list) for receipt in outcome]

    @property
    def _backend(self) -> Backend:
        if self._made is None:
            raise UsageError("The client is not open.", "Write `async with Client() as client:`.")
        return self._made

    def _require_writable(self, verb: str) -> None:
        if self._settings.readonly:
            raise RefusedError(f"{verb} changes something, and l2rtui is read-only here.", "Set readonly to False.")


def launch(
    spec: str | Path,
    *,
    overrides: Mapping[str, object] | None = None,
    name: str = "",
    seeds: Sequence[int] | str = (),
    on: str = "",
    rename: bool = False,
    **place: Unpack[ClientSettings],
) -> tuple[str, ...]:
    """``Client.launch`` without an event loop."""
    options: dict[str, Any] = {"overrides": overrides, "name": name, "seeds": seeds, "on": on, "rename": rename}
    return _run(lambda client: client.launch(spec, **options), place)


def wait(
    *names: str,
    until: Until = "done",
    value: float = 0.0,
    timeout: float | None = None,
    **place: Unpack[ClientSettings],
) -> dict[str, Verdict]:
    """``Client.wait`` without an event loop."""
    return _run(lambda client: client.wait(*names, until=until, value=value, timeout=timeout), place)


def metrics(run: str, **place: Unpack[ClientSettings]) -> RunMetrics | None:
    """``Client.metrics`` without an event loop."""
    return _run(lambda client: client.metrics(run), place)


def logs(
    *targets: str, follow: bool = False, tail: int | None = None, grep: str = "", **place: Unpack[ClientSettings]
) -> Iterator[LogLine]:
    """``Client.logs`` without an event loop."""
    _refuse_loop()
    with asyncio.Runner() as runner:
        client = runner.run(Client(**place).__aenter__())
        lines = client.logs(*targets, follow=follow, tail=tail, grep=grep)

        async def following() -> LogLine | None:
            return await anext(lines, None)

        try:
            while (line := runner.run(following())) is not None:
                yield line
        finally:
            runner.run(lines.aclose())
            runner.run(client.__aexit__())


def destroy(
    *names: str,
    purge: bool = False,
    all_matching: bool = False,
    grace_seconds: float | None = None,
    **place: Unpack[ClientSettings],
) -> list[Receipt]:
    """``Client.destroy`` without an event loop."""
    options: dict[str, Any] = {"purge": purge, "all_matching": all_matching, "grace_seconds": grace_seconds}
    return _run(lambda client: client.destroy(*names, **options), place)


def _run(work: Callable[[Client], Awaitable[_Result]], place: ClientSettings) -> _Result:
    async def whole() -> _Result:
        async with Client(**place) as client:
            return await work(client)

    _refuse_loop()
    return asyncio.run(whole())


def _refuse_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError("An event loop runs here already.", "Write `async with l2rtui.api.Client() as client:`.")


def _path_of(spec: str | Path) -> str:
    is_name = isinstance(spec, str) and not Path(spec).suffix and not Path(spec).exists()
    return str(template_path(str(spec)) if is_name else spec)


def _runs(
    snapshot: ClusterSnapshot, names: Sequence[str], *, is_single: bool = False, may_be_gone: bool = False
) -> list[RunView]:
    """Return the runs that names select, each once.

    Args:
        is_single: Each name must select one run.
        may_be_gone: A name may select none.
    """
    chosen: dict[str, RunView] = {}
    if not names:
        raise UsageError("No run is named.", "Name a run, or experiment/NAME.")
    for name in names:
        runs = snapshot.runs_matching(name)
        if not runs and not may_be_gone:
            every = sorted(run.name for run in snapshot.runs.values())
            raise NotFoundError(f"There is no run {name!r}.", nearest(name, every))
        if is_single and len(runs) > 1:
            listed = ", ".join(run.name for run in runs)
            raise RefusedError(f"{name} names {len(runs)} runs: {listed}.", "Name one of them.")
        chosen |= {run.uid: run for run in runs}
    return list(chosen.values())
