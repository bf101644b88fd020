"""Learner: collects segments, updates, publishes and writes checkpoints.

The loop waits only for data: the exchange with the workers and the checkpoint writer have their own threads. Every
record contains the share of time that it waited, `idle_share`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.base import contract
from runtime.base.atomic_files import lock_folder
from runtime.base.errors import NotFiniteError, SetupError
from runtime.base.metrics import Console
from runtime.base.object_store import open_store
from runtime.base.signals import Stop
from runtime.base.training import Settings
from runtime.exchange.learner_server import LearnerServer
from runtime.exchange.machines.member_state import Accounts, SessionTerms
from runtime.exchange.status_server import StatusServer
from runtime.exchange.transport import curve_keys
from runtime.rl.algos.algorithm import Stats
from runtime.rl.algos.impala import GradientServer
from runtime.rl.algos.method_config import ReplayConfig
from runtime.rl.algos.plan import assemble
from runtime.rl.buffers.batch_source import BatchSource
from runtime.rl.buffers.priorities import LatePriorities
from runtime.rl.buffers.replay import Replay, TensorBatch
from runtime.rl.buffers.rollout_buffer import DeviceRollouts, Gradients, Rollouts
from runtime.rl.checkpoints.checkpoint_files import UPLOAD_PATIENCE_SECONDS, Checkpoints, Mirror, bring_newest
from runtime.rl.checkpoints.counters import Counters, next_epoch, read_journal, write_journal
from runtime.rl.checkpoints.learner_state import (
    CheckpointWriter,
    LearnerSnapshot,
    collector_state,
    not_finite_report,
    unpack,
)
from runtime.rl.checkpoints.saved_policy import open_run
from runtime.rl.device.accelerator import DeviceMeter, device_failures
from runtime.rl.device.staging import HostCopy
from runtime.rl.roles.device_collector import DataSource, DeviceCollector, DeviceSource
from runtime.rl.roles.experience import DatasetSource, Experience, fill_replay
from runtime.rl.roles.launch_context import Context, plan_of
from runtime.rl.roles.metrics_log import MetricsLog
from runtime.rl.roles.publishing import PolicyPublisher
from runtime.rl.roles.remote_inference import remote_inference
from runtime.rl.roles.run_watch import RunWatch, watch_of
from runtime.rl.roles.tracking import tracking

if TYPE_CHECKING:
    from runtime.rl.algos.plan import Plan
    from runtime.rl.envs.base import VectorEnv
    from runtime.rl.roles.ranks import RankGroup

WAIT_SECONDS: Final = 0.2
"""Longest wait for data, which also delays the reaction to a signal."""
FAREWELL_SECONDS: Final = (2.0, 5.0)
"""Shortest and longest wait of a finished learner for its peers to leave."""
VERSIONS_AHEAD: Final = 64
"""Policy versions reserved by one journal entry; a kill skips at most this many numbers."""
STOPPED_UPLOAD_SECONDS: Final = 4.0
"""Longest wait of a stopped learner for the upload of its last checkpoint: less than the usual grace period."""
FIRST_CHECKPOINT_SECONDS: Final = 5.0
"""Longest time from the start to the first checkpoint of a run that has data."""
LOCK_SECONDS: Final = 5.0
"""Longest wait for the folder's lock, which the previous learner may still hold."""


def run(
    context: Context,
    folder: Path,
    stop: Stop,
    console: Console,
    tried: VectorEnv | None = None,
    main: Callable[[Sequence[str]], int] | None = None,
) -> int:
    """Train until a limit in the settings is reached or `stop` is set; writes checkpoints and records to `folder`.

    ``tried`` is a copy of the environment that was made for its spaces. For several ranks this process starts them;
    each calls ``main`` with a command line, and so this function again. Returns the exit code.

    Raises SetupError, EndpointError, FailedError, NotFiniteError, BlockingIOError and OSError, with a sentence for
    the user.
    """
    if context.settings.devices > 1 or context.nodes > 1:
        return _run_ranks(context, folder, stop, console, main)
    _run(context, folder, stop, console, None, tried)
    return contract.EXIT_DONE


def _run_ranks(
    context: Context, folder: Path, stop: Stop, console: Console, main: Callable[[Sequence[str]], int] | None
) -> int:
    # Imported here: torch's launcher costs a second, and a single learner does not need it.
    from runtime.rl.roles import rank_launcher, ranks

    if main is not None and rank_launcher.are_wanted(context):
        checkpoints = Checkpoints(folder / "checkpoints", context.settings.checkpoints_kept, is_read_only=True)
        return rank_launcher.launch(context, checkpoints, main, ["learner"], stop, console)
    try:
        with ranks.joined(_device(context.settings), stop, console) as group:
            if group is not None and group.rank:
                with device_failures():
                    ranks.follow(context, group, console)
            else:
                _run(context, folder, stop, console, group)
    except ranks.RankLostError as error:
        ranks.end_after_loss(console, str(error))
    return contract.EXIT_DONE


def _run(
    context: Context,
    folder: Path,
    stop: Stop,
    console: Console,
    group: RankGroup | None,
    tried: VectorEnv | None = None,
) -> None:
    with device_failures(), ExitStack() as stack:
        # Binding an ipc endpoint removes the socket file of a live learner, so its folder is locked as well.
        for locked in {folder, context.endpoint.folder or folder}:
            locked.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(lock_folder(locked, LOCK_SECONDS, stop.is_set))
        if stop.is_set():
            return
        watch = watch_of(context, folder, console.say)
        stack.callback(watch.close)
        stack.enter_context(watch.reporting())
        stack.enter_context(tracking(context, folder, stop, console))
        learner = Learner(context, folder, console, watch, group, tried)
        stack.callback(learner.close)
        stop.keep()
        learner.loop(stop)


class Learner:
    """State and loop of the learner process."""

    def __init__(
        self,
        context: Context,
        folder: Path,
        console: Console,
        watch: RunWatch,
        group: RankGroup | None = None,
        tried: VectorEnv | None = None,
    ) -> None:
        settings = context.settings
        self._watch = watch
        self._settings, self._folder = settings, folder
        self._console, self._context, self._group = console, context, group
        self._status: StatusServer | None = None
        # Torch would use every core, including those of the workers on this machine.
        torch.set_num_threads(context.threads)
        torch.manual_seed(context.seed)

        plan = self._plan = plan_of(settings, tried)
        self._device = _device(settings) if group is None else group.device
        own_plan, own_settings = (plan, settings) if group is None else group.share(plan, settings)
        self._usage = DeviceMeter([self._device] if group is None else group.devices)
        self._method = assemble(own_plan, own_settings, context.seed, self._device)
        self._batch: TensorBatch | None = None
        """The latest batch of this process."""
        self._experience = Experience(own_plan, own_settings, context.seed, self._device, console.say)
        self._store = self._experience.store
        self._collector = self._make_collector(own_plan, own_settings)
        checkpoints = Checkpoints(folder / "checkpoints", settings.checkpoints_kept)
        self._mirror = self._fetch_checkpoint(folder / "checkpoints", checkpoints)
        self._counters, accounts = self._resume(checkpoints)
        self._has_saved = bool(checkpoints.names())
        """There is a checkpoint to go on from."""
        is_given = self._begin_with_policy()
        if group is not None:
            group.align(self._method, self._collector)
        self._has_policy = is_given or self._plan.is_on_policy or self._counters.policy_version > 0
        """True if a policy is published before the first update; off-policy methods start with random actions."""
        if self._keeps_version:
            self._counters.policy_version -= 1  # the first publication increments it to the same number
        self._journalled_version = 0

        terms = SessionTerms(
            run=context.run,
            run_id=context.run_id,
            token=context.token,
            epoch=self._counters.epoch,
            environment=settings.environment,
            layout=plan.layout.text,
            actor_floats=plan.shape.size,
            max_policy_lag=plan.balance.max_policy_lag,
            **self._experience.flow_terms(),
        )
        self._limiter = self._experience.limiter(self._counters)
        self._exchange = LearnerServer(
            context.endpoint,
            curve_keys.learner_keys(context),
            terms,
            self._store,
            self._limiter,
            console.say,
            accounts=accounts,
            policy_version=self._counters.policy_version,
        )
        self._batches = self._experience.batches(self._exchange.locked_sample)
        self._graphs = self._experience.graph_updates(self._method, self._exchange.locked_sample)
        self._source = self._data_source()
        self._inference = (
            remote_inference(context, plan, self._device, self._exchange.policies, console.say)
            if settings.remote_inference
            else None
        )
        self._saver = CheckpointWriter(checkpoints, console.say, self._exchange.saved, self._mirror)
        evaluations = self._exchange.evaluations
        evaluated = self._method.on_evaluation
        self._metrics = MetricsLog(folder, console, evaluations, self._env_steps, self._counters.updates, evaluated)
        self._publisher = PolicyPublisher(
            lambda: HostCopy({"policy": self._method.policy_weights()}), self._deliver_policy, "policy"
        )
        self._priorities = LatePriorities(self._set_priorities)
        self._stats: Stats | None = None
        self._began = self._saved = time.monotonic()

    def _make_collector(self, plan: Plan, settings: Settings) -> DeviceCollector | None:
        """Return the learner's own copies of the environment; None if workers collect."""
        context, console = self._context, self._console
        if settings.collect != "device":
            return None
        if self._group is not None and plan.is_on_policy:
            return self._group.leading_collector(context, settings, plan, self._method, console)
        weights = self._method.policy_weights
        return DeviceCollector(settings, plan, context.seed, self._device, weights, console.say)

    def _fetch_checkpoint(self, folder: Path, checkpoints: Checkpoints) -> Mirror | None:
        """Fetch the first checkpoint from an object store; return the uploader for later ones, if configured.

        Raises OSError if a store cannot be reached: it may have a checkpoint, and a start without it would train
        the same steps twice.
        """
        settings, mirror = self._settings, None
        if settings.artifacts is not None:
            place = open_store(settings.artifacts, self._context.run, self._context.run_id)
            if (name := bring_newest(place, folder, self._console.say)) is not None:
                self._console.say(f"brought {name} from {place.url}")
            mirror = Mirror(place, folder, settings.checkpoints_kept, self._console.say)
        # Only at the first start of a run: later its own checkpoints are newer.
        if settings.resume_from is not None and not checkpoints.names():
            place = open_store(settings.resume_from)
            if (name := bring_newest(place, folder, self._console.say)) is None:
                raise SetupError(f"resume_from: there is no complete checkpoint in {place.url}")
            self._console.say(f"begins with {name} of {place.url}")
        elif mirror is not None and (names := checkpoints.names()):
            mirror.offer(names[-1])  # an earlier process may have ended before the upload
        return mirror

    def _resume(self, checkpoints: Checkpoints) -> tuple[Counters, Accounts]:
        """Load the newest complete checkpoint, if any, and start a new epoch."""
        self._keeps_version = False
        checkpoint, aside = checkpoints.load()
        for sentence in aside:
            self._console.say(sentence)
        journal = read_journal(self._folder)
        if checkpoint is None:
            counters, accounts = next_epoch(None, journal, time.time()), Accounts()
            if journal.updates or journal.env_steps:
                self._console.say(
                    f"begins anew: there is no checkpoint, so the {journal.updates} updates and "
                    f"{journal.env_steps} env steps are lost; workers that still run send again what they have"
                )
        else:
            try:
                saved, accounts, notes = unpack(checkpoint, self._method, self._store)
            except ValueError as error:
                raise SetupError(
                    f"{checkpoint.name} in {self._folder} does not fit these settings: {error}; "
                    "set them back or use another folder"
                ) from error
            if self._collector is not None:
                notes += self._collector.load_state(collector_state(checkpoint))
            counters = next_epoch(saved, journal, time.time())
            self._delay_updates(counters, accounts)
            lost = counters.lost_updates - saved.lost_updates
            # Without lost updates, the first published policy is the one that the workers already have. In lockstep
            # the maximum lag is 0, so the policy must keep its number; otherwise segments collected with it would
            # be rejected as stale.
            self._keeps_version = self._settings.lockstep and counters.policy_version == saved.policy_version > 0
            self._console.say(
                f"resumed {checkpoint.name}: {saved.env_steps} env steps, {saved.updates} updates, "
                f"{len(self._store)} transitions; {lost} updates after it were lost"
                + "".join(f"; {note}" for note in notes)
            )
        write_journal(self._folder, counters)
        return counters, accounts

    def _data_source(self) -> DataSource:
        """Return the source of data: the workers, this learner's collector, or a dataset, which is read now."""
        settings, store = self._settings, self._store
        if self._collector is not None:
            return DeviceSource(self._collector, self._exchange, store)
        if settings.dataset is None or not isinstance(store, Replay):
            return self._exchange
        fill_replay(store, self._plan, settings.dataset, self._console.say)
        return DatasetSource(self._exchange)

    def _begin_with_policy(self) -> bool:
        """Load the policy of another run's checkpoint, if the settings name one and this run has no policy yet.

        Raises SetupError if its network has another shape.
        """
        place = self._settings.init_policy
        if place is None or self._counters.updates:
            return False
        run = open_run(place, "", self._console.say)
        plan = plan_of(run.settings)
        if plan.shape != self._plan.shape:
            raise SetupError(
                f"init_policy: the policy of {run.checkpoint.name} has another network: {plan.shape}, and this run "
                f"{self._plan.shape}; set hidden and bc.for_method to those of this run"
            )
        weights = torch.from_numpy(run.weights(plan))
        self._method.begin_with(weights)
        self._console.say(f"begins with the policy of {run.checkpoint.name} in {place}")
        return True

    def _delay_updates(self, counters: Counters, accounts: Accounts) -> None:
        """Delay updates of a resumed run until it has collected the data that its replay lacks."""
        if self._settings.collect == "dataset":
            return
        if missing := self._experience.missing_after_resume():
            env_steps = accounts.totals.transitions
            counters.delay_steps = self._experience.delay_steps(missing, env_steps, counters.kept_updates)
            self._console.say(f"collects {missing} env steps before it learns again: the checkpoint lacks them")

    def loop(self, stop: Stop) -> None:
        """Learn until done or stopped, then write a last checkpoint."""
        counters = self._counters
        if self._has_policy:  # before the exchange starts; otherwise workers would act at random
            self._publish()
            self._publisher.deliver_all()
        if self._inference is not None:
            self._inference.start()
        self._exchange.start()
        self._status = self._listen()
        self._console.say(f"learner of {self._settings.environment} ready, epoch {counters.epoch}")
        while not stop.is_set() and self._end() is None:
            self._learn_or_wait()
            now = time.monotonic()
            if self._metrics.is_due(now):
                self._record()
            if not self._saver.is_busy and now - self._saved >= self._checkpoint_seconds:
                self._checkpoint()
        self._publisher.deliver_all()
        end = self._end()
        if end is not None:
            self._console.say(f"the run is done: {end}")
            self._exchange.finish(end, *FAREWELL_SECONDS)
        self._record()
        self._checkpoint()
        self._saver.wait()
        if self._group is not None:
            self._group.end()
        if end is not None:
            counts = {"env_steps": self._counters.env_steps, "updates": self._counters.updates}
            self._console.record(self._watch.finish(end, counts))
        self._journal(ahead=0)  # exact, so that a restart after an orderly end skips no version
        if end is None:
            self._console.say(f"learner ends on {stop.reason}")
        else:
            self._exchange.await_latecomers(self._context.joiners, stop.is_set)

    def _learn_or_wait(self) -> None:
        """Learn if there is data, else wait for it briefly."""
        if self._inference is not None:
            self._inference.check()
        before = time.monotonic()
        # While weights are in transit do not wait here: without data they are delivered below, and with data the
        # next update starts in parallel.
        timeout = 0.0 if self._publisher.is_pending else WAIT_SECONDS
        if self._source.await_data(self._counters.kept_updates, timeout):
            self._count_wait(time.monotonic() - before)
            self._publisher.deliver_arrived()
            self._learn()
        else:
            self._publisher.deliver_all()
            if self._group is not None:
                self._group.wait()
            self._count_wait(time.monotonic() - before)

    def _count_wait(self, seconds: float) -> None:
        if self._collector is None:
            self._metrics.waited(seconds)
        else:  # collecting is work; on a GPU only its launch is in this time
            self._metrics.collected(seconds if self._device == "cpu" else None)

    def _listen(self) -> StatusServer | None:
        """Start the status server. Training continues without it if the port is in use."""
        address = self._context.status_address()
        try:
            return StatusServer(address, self._status_fields)
        except OSError as error:
            self._console.say(f"the status server could not listen on {address}: {error}")
            return None

    def _status_fields(self) -> dict[str, Any]:
        """Return the response to `GET /status`. Called by the status server's thread."""
        inference = {"inference": self._inference.status()} if self._inference is not None else {}
        shares = {"idle_share": self._metrics.idle_share, "network_share": self._exchange.network_share}
        figures = {**{name: round(share, 6) for name, share in shares.items()}, **self._usage.latest}
        return {**self._exchange.status(), **figures, **inference}

    def close(self) -> None:
        """Stop the threads and close all files. Raises the error of the last checkpoint, after everything is
        closed.
        """
        # Close everything whatever fails: a running exchange thread would keep the process alive forever. In
        # reverse order: the exchange is closed after the writer, whose thread announces the checkpoint to the
        # peers.
        with ExitStack() as stack:
            stack.callback(self._metrics.close)
            if self._inference is not None:
                stack.callback(self._inference.close)
            stack.callback(self._exchange.close)
            if self._mirror is not None:
                stack.callback(
                    self._mirror.close, UPLOAD_PATIENCE_SECONDS if self._end() else STOPPED_UPLOAD_SECONDS
                )
            stack.callback(self._saver.wait)
            if self._status is not None:
                stack.callback(self._status.close)

    @property
    def _env_steps(self) -> int:
        """Number of env steps in all accepted items; an item may be a gradient over many steps."""
        return self._exchange.env_steps * self._plan.item_steps

    def _end(self) -> str | None:
        """Return the reason why the run is complete, or None."""
        settings = self._settings
        if settings.total_env_steps is not None and self._env_steps >= settings.total_env_steps:
            return f"{self._env_steps} env steps"
        if settings.total_updates is not None and self._counters.kept_updates >= settings.total_updates:
            return f"{self._counters.kept_updates} updates"
        if settings.max_seconds is not None and time.monotonic() - self._began >= settings.max_seconds:
            return f"{settings.max_seconds:g} seconds"
        return self._watch.ended

    def _learn(self) -> None:
        """Launch updates once; in lockstep all that the data allows, before a worker gets credit for more."""
        counters, settings, every = self._counters, self._settings, self._plan.balance.publish_every
        before = counters.kept_updates
        self._update()
        if settings.lockstep:
            while self._limiter.allows_update(self._exchange.env_steps, counters.kept_updates):
                self._update()
            self._publish()
        elif counters.kept_updates // every > before // every or not (
            counters.policy_version or self._publisher.is_pending
        ):
            self._publish()

    def _update(self) -> None:
        """Take a batch from the store and update the networks, once or several times per launch."""
        if self._graphs is not None:
            count = self._graphs.count_of(self._launch_size())
            self._stats = self._graphs.run(count)
            self._counters.updates += count
            return
        if isinstance(self._store, Rollouts | DeviceRollouts):
            rollouts = self._exchange.locked_sample(self._store.take)
            assert rollouts is not None  # noqa: S101  (the rate limiter guarantees it)
            self._stats = self._learn_batch(rollouts)
        elif isinstance(self._store, Gradients):
            gradient = self._exchange.locked_sample(self._store.take)
            assert gradient is not None and isinstance(self._method, GradientServer)  # noqa: S101, PT018
            self._stats = self._method.update(gradient.to(self._device))
        else:
            assert self._batches is not None  # noqa: S101  (a replay has a source of batches)
            self._stats = self._learn_from(self._batches)
        self._counters.updates += 1

    def _launch_size(self) -> int:
        """Return the number of updates to launch together: the settings' number, or one."""
        most, done = self._settings.updates_per_launch, self._counters.kept_updates
        if not self._settings.cuda_graphs:
            return 1
        total = self._settings.total_updates
        fits = total is None or done + most <= total
        # All or one: each number of updates needs its own graph.
        return most if fits and self._limiter.allows_update(self._exchange.env_steps, done + most - 1) else 1

    def _learn_from(self, batches: BatchSource) -> Stats:
        stats = self._learn_batch(batches.take())
        if isinstance(self._plan.config, ReplayConfig) and self._plan.config.prioritised:
            td_error = self._method.td_error if self._group is None else self._group.errors(self._method)
            # Priorities are set once the errors have arrived from the device.
            self._priorities.add(batches.rows, HostCopy({"td_error": td_error}), is_exact=self._settings.lockstep)
        batches.prefetch()
        return stats

    def _learn_batch(self, batch: TensorBatch) -> Stats:
        """Update the networks with a batch, of which each rank gets a share unless it has collected its own."""
        if self._group is not None and not isinstance(self._store, DeviceRollouts):
            batch = self._group.scatter(batch)
        self._batch = batch.to(self._device)
        return self._method.update(self._batch)

    def _set_priorities(self, rows: NDArray[np.intp], td_error: NDArray[np.float32]) -> None:
        if isinstance(replay := self._store, Replay):
            self._exchange.locked_sample(lambda: replay.update_priorities(td_error, rows))

    def _publish(self) -> None:
        """Publish the policy once it was copied from the device; wait for it if workers must use the newest
        policy.
        """
        self._publisher.publish()
        # The update's credit is granted at the next wait for data. With a maximum lag of 0, it must not be used
        # with the previous policy: segments collected with that would be rejected.
        if self._plan.balance.max_policy_lag == 0:
            self._publisher.deliver_all()

    def _deliver_policy(self, arena: NDArray[np.float32]) -> None:
        """Publish weights. Their version is written to the journal first, so that no version ever means two
        policies.
        """
        if not np.isfinite(arena).all():
            raise NotFiniteError(not_finite_report(self._method, self._batch, self._counters.updates, self._stats))
        self._counters.policy_version += 1
        if self._counters.policy_version > self._journalled_version:
            self._journal(VERSIONS_AHEAD)
        self._exchange.publish(self._counters.policy_version, arena, self._counters.kept_updates)

    def _journal(self, ahead: int = VERSIONS_AHEAD) -> None:
        """Write the counters, and reserve the next `ahead` policy versions."""
        self._journalled_version = self._counters.policy_version + ahead
        write_journal(self._folder, replace(self._counters, policy_version=self._journalled_version))

    @property
    def _checkpoint_seconds(self) -> float:
        """Time between two checkpoints. The first one comes early: without any, a restart loses all."""
        seconds = self._settings.checkpoint_seconds
        is_first = not self._has_saved and (self._counters.updates > 0 or self._env_steps > 0)
        return min(seconds, FIRST_CHECKPOINT_SECONDS) if is_first else seconds

    def _checkpoint(self) -> None:
        """Mark the moment of a checkpoint; the writer's thread copies and saves the state."""
        self._saved, self._has_saved = time.monotonic(), True
        is_read = self._settings.collect == "dataset"  # data of a dataset need no copy
        cut = self._exchange.cut(0 if is_read else self._settings.checkpoint_replay_bytes)
        own = self._collector.live_state() if self._collector is not None else None
        snapshot = LearnerSnapshot(self._method, self._counters, cut, self._plan.item_steps, own)
        snapshot.facts["made"] = self._provenance()
        snapshot.facts["settings"] = asdict(self._settings)  # for driving and exporting the saved policy
        self._saver.save(snapshot)

    def _provenance(self) -> dict[str, Any]:
        """Return fields that help people to distinguish checkpoints; a resume does not use them."""
        context, last = self._context, self._metrics.evaluation
        return {
            "run": context.run,
            "run_id": context.run_id,
            "seed": context.seed,
            "time": round(time.time(), 3),
            "environment": self._settings.environment,
            "algorithm": self._settings.algorithm,
            "policy_version": self._counters.policy_version,
            "eval_return": last.eval_return if last else None,
            "eval_progress": last.eval_progress if last else None,
        }

    def _record(self) -> None:
        """Print and store one metric record. The journal is written first, so that no counter ever decreases."""
        # Sampled together: a segment that arrives in between would be in some of the numbers only.
        env_steps, counts = self._exchange.locked_sample(lambda: (self._env_steps, self._exchange.metric_fields()))
        self._counters.env_steps = max(self._counters.env_steps, env_steps)
        self._journal()
        own = self._collector.metric_fields() if self._collector is not None else {}
        # Apart: env steps never fall, and after a restart the networks may have learned from fewer.
        figures = {"learned_env_steps": env_steps, **counts, **own, **self._usage.report()}
        last = self._metrics.evaluation
        self._watch.update(
            env_steps, self._counters.updates, figures["mean_return"] if last is None else last.eval_return
        )
        figures |= self._watch.record_fields()
        if self._saver.trouble:
            figures["checkpoint_error"] = self._saver.trouble
        self._metrics.write(self._counters, env_steps, figures, self._stats)


def _device(settings: Settings) -> str:
    """Return the type of device to compute on. Raises SetupError if it is not available to torch."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if settings.device == "auto":
        return "cuda" if available["cuda"] else "cpu"
    if not available[settings.device]:
        raise SetupError(f"device is {settings.device} and torch finds none here; use cpu or auto")
    return settings.device
