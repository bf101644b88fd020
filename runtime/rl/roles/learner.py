"""The learner: collect, update, publish, checkpoint.

The loop waits for nothing but data: the exchange with the workers runs in a thread of its own, and so does the
writing of checkpoints. How much of the time it waited is in every record as `idle_share`.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import torch

from runtime import contract
from runtime.accounts import Accounts
from runtime.algos.actor import NumpyActor
from runtime.algos.descent import Descent
from runtime.algos.device_actor import DeviceActor
from runtime.algos.method import Stats
from runtime.algos.plan import Plan, make_store
from runtime.algos.sac import SAC
from runtime.algos.team import assemble
from runtime.channels import LearnerChannel
from runtime.checkpoints import Checkpoints
from runtime.counters import Counters, next_epoch, read_journal, write_journal
from runtime.events import Published
from runtime.exchange import Exchange
from runtime.files import held
from runtime.gradients import Gradients
from runtime.inference import Inference, Network
from runtime.inference_channel import AnswerChannel
from runtime.logbook import Logbook
from runtime.members import Terms, window_of
from runtime.membership import Membership
from runtime.messages import Evaluation
from runtime.metrics import Console
from runtime.mirror import PATIENCE_SECONDS, Mirror, bring_newest
from runtime.pacing import Pace
from runtime.packing import pack, unpack
from runtime.places import open_place
from runtime.policy_store import PolicyStore
from runtime.process import Context, NotFiniteError, UsageError, environment_plan, make_environment
from runtime.questions import proof_of
from runtime.remote import shapes_of
from runtime.replay import Replay
from runtime.rollouts import Rollouts
from runtime.saving import Saver
from runtime.settings import Settings
from runtime.status import StatusServer
from runtime.stopping import Stop

_MEMORY: Final = 128 * 1024 * 1024
"""Bytes of segments that may be on their way, over all workers."""
WAIT_SECONDS: Final = 0.2
"""Longest wait for data; a signal is seen within it."""
FAREWELL_SECONDS: Final = (2.0, 5.0)
"""How long a finished learner stays at least, and at most, to tell its peers."""
VERSIONS_AHEAD: Final = 64
"""Policy versions that one entry in the journal makes sure of; after a kill up to so many numbers are left out."""
STOPPED_PATIENCE_SECONDS: Final = 4.0
"""How long a learner that was told to end waits for its last copy to move on: less than the usual grace."""
LOCK_PATIENCE_SECONDS: Final = 5.0
"""How long a learner waits for the one that it replaces to go."""


def run(context: Context, folder: Path, stop: Stop, console: Console) -> None:
    """Learn until the settings say that it is enough or `stop` is set; what is to last goes to `folder`.

    Raises UsageError, EndpointError, NotFiniteError, BlockingIOError and OSError with a sentence.
    """
    with ExitStack() as holds:
        # ZeroMQ takes a socket file away from whoever has it, so the folder of an ipc endpoint is held as well.
        for each in {folder, context.endpoint.folder or folder}:
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            holds.enter_context(held(each, "the folder", LOCK_PATIENCE_SECONDS, stop.is_set))
        if stop.is_set():
            return
        learner = Learner(context, folder, console)
        holds.callback(learner.close)
        learner.loop(stop)


class Learner:
    """State and loop of the learner process."""

    def __init__(self, context: Context, folder: Path, console: Console) -> None:
        settings = context.settings
        self._settings = settings
        self._folder = folder
        self._console = console
        self._context = context
        self._status: StatusServer | None = None
        torch.set_num_threads(context.threads)
        torch.manual_seed(context.seed)

        env = make_environment(settings, 1, {})
        plan = self._plan = environment_plan(settings, env)
        devices = _devices(settings)
        self._device = devices[0]
        try:
            self._team = assemble(plan, settings, context.seed, devices)
        except ValueError as error:
            raise UsageError(f"{contract.ENV_CONFIG}: {error}") from error
        self._method = self._team.members[0]
        self._store = make_store(plan, settings, context.seed, pinned=self._device.startswith("cuda"))
        checkpoints = Checkpoints(folder / "checkpoints", settings.checkpoints_kept)
        self._mirror = self._bring(folder / "checkpoints", checkpoints)
        self._counters, accounts = self._resume(checkpoints)
        self._has_policy = self._plan.is_on_policy or self._counters.policy_version > 0
        """Whether one can be given out before the first update: once there was a policy, there always is one."""
        if self._keeps_version:
            self._counters.policy_version -= 1
        self._journalled_version = 0

        balance = plan.balance
        terms = Terms(
            run=context.run,
            run_id=context.run_id,
            token=context.token,
            epoch=self._counters.epoch,
            environment=settings.environment,
            layout=plan.layout.text,
            actor_floats=plan.shape.size,
            transition_bytes=plan.layout.item_bytes,
            segment_transitions=plan.segment_transitions,
            max_policy_lag=balance.max_policy_lag,
            window=window_of(plan.segment_transitions * plan.layout.item_bytes),
            inflight_transitions=max(balance.band_steps, _MEMORY // plan.layout.item_bytes, 1),
        )
        membership = Membership(terms, accounts)
        self._policies = PolicyStore(terms.epoch, terms.token, self._counters.policy_version)
        membership.handle(Published(self._counters.policy_version))
        self._pace = Pace(balance.warmup_steps, balance.updates_per_step, balance.band_steps)
        evaluations: deque[tuple[str, Evaluation]] = deque()  # the network thread takes them, this one writes them
        channel = LearnerChannel(context.endpoint, terms.largest_message, context.learner_keys())
        self._exchange = Exchange(
            channel, membership, self._store, self._policies, self._pace, console.say, evaluations
        )
        self._inference = self._answers(plan) if settings.remote_inference else None
        self._saver = Saver(checkpoints, console.say, self._exchange.saved, self._mirror)
        self._logbook = Logbook(folder, console, evaluations, self._env_steps, self._counters.updates)
        self._stats: Stats | None = None
        self._began = self._saved = time.monotonic()

    def _answers(self, plan: Plan) -> Inference:
        """Make what answers workers that ask for each action. Raises EndpointError."""
        context, shapes = self._context, shapes_of(plan, self._settings)
        network: Network = NumpyActor(plan.shape)
        if self._device != "cpu" or plan.shape.images:  # of small networks NumPy is done before torch has begun
            network = DeviceActor(plan.shape, self._device)
        channel = AnswerChannel(context.endpoint, shapes.question_bytes, context.learner_keys())
        return Inference(channel, network, shapes, proof_of(context.token, context.run_id))

    def _bring(self, folder: Path, checkpoints: Checkpoints) -> Mirror | None:
        """Fetch the checkpoint to begin with if it lies elsewhere; return what copies later ones away, if asked.

        Raises OSError: nobody can tell whether there is one, and nothing is trained twice for a line that is down.
        """
        settings, mirror = self._settings, None
        if settings.artifacts is not None:
            place = open_place(settings.artifacts, self._context.run, self._context.run_id)
            if (name := bring_newest(place, folder, self._console.say)) is not None:
                self._console.say(f"brought {name} from {place.url}")
            mirror = Mirror(place, folder, settings.checkpoints_kept, self._console.say)
        if settings.resume_from is not None and not checkpoints.names():
            place = open_place(settings.resume_from)
            if (name := bring_newest(place, folder, self._console.say)) is None:
                raise UsageError(f"resume_from: there is no whole checkpoint in {place.url}")
            self._console.say(f"begins with {name} of {place.url}")
        elif mirror is not None and (names := checkpoints.names()):
            mirror.offer(names[-1])  # an earlier process may have ended before it was copied
        return mirror

    def _resume(self, checkpoints: Checkpoints) -> tuple[Counters, Accounts]:
        """Load the newest whole checkpoint, if there is one, and begin a new epoch."""
        self._keeps_version = False
        checkpoint, aside = checkpoints.load()
        for sentence in aside:
            self._console.say(sentence)
        journal = read_journal(self._folder)
        if checkpoint is None:
            counters, accounts = next_epoch(None, journal, time.time()), Accounts()
        else:
            try:
                saved, accounts = unpack(checkpoint, self._method, self._store)
            except (KeyError, ValueError) as error:
                raise UsageError(
                    f"{checkpoint.name} in {self._folder} does not fit these settings: {error}; "
                    "set them back or use another folder"
                ) from error
            self._team.align()
            counters = next_epoch(saved, journal, time.time())
            lost = counters.lost_updates - saved.lost_updates
            # Nothing was lost, so the policy that is given out first is the one that the workers have: under its
            # old number, what they have collected with it meanwhile is not refused.
            self._keeps_version = self._settings.lockstep and counters.policy_version == saved.policy_version > 0
            self._console.say(
                f"resumed {checkpoint.name}: {saved.env_steps} env steps, {saved.updates} updates, "
                f"{len(self._store)} transitions; {lost} updates after it were lost"
            )
        write_journal(self._folder, counters)
        return counters, accounts

    def loop(self, stop: Stop) -> None:
        """Learn until done or stopped; then leave a checkpoint."""
        counters = self._counters
        if self._has_policy:  # before anybody is welcomed, or they would collect without it
            self._publish()
        if self._inference is not None:
            self._inference.start()
        self._exchange.start()
        self._status = self._listen()
        self._console.say(f"learner of {self._settings.environment} ready, epoch {counters.epoch}")
        while not stop.is_set() and self._end() is None:
            before = time.monotonic()
            has_data = self._exchange.await_data(counters.kept_updates, WAIT_SECONDS)
            self._logbook.waited(time.monotonic() - before)
            if has_data:
                self._learn()
            now = time.monotonic()
            if self._logbook.is_due(now):
                self._record()
            if now - self._saved >= self._settings.checkpoint_seconds and not self._saver.is_busy:
                self._checkpoint()
        end = self._end()
        if end is not None:
            self._console.say(f"the run is done: {end}")
            self._exchange.finish(end, *FAREWELL_SECONDS)
        self._record()
        self._checkpoint()
        self._saver.wait()
        self._journal(ahead=0)
        if end is None:
            self._console.say(f"learner ends on {stop.reason}")
        else:
            self._exchange.await_latecomers(self._context.joiners, stop.is_set)

    def _listen(self) -> StatusServer | None:
        """Answer questions about the run; a port that is taken is no reason not to train."""
        address = self._context.status_address()
        try:
            return StatusServer(address, self._say_status)
        except OSError as error:
            self._console.say(f"nobody can ask this learner for its status at {address}: {error}")
            return None

    def _say_status(self) -> dict[str, Any]:
        """What the status socket says; its thread asks."""
        answers = {"inference": self._inference.status()} if self._inference is not None else {}
        return {**self._exchange.status(), "idle_share": round(self._logbook.idle_share, 6), **answers}

    def close(self) -> None:
        """End the threads and close every file."""
        if self._status is not None:
            self._status.close()
        self._saver.wait()
        if self._mirror is not None:
            self._mirror.close(PATIENCE_SECONDS if self._end() else STOPPED_PATIENCE_SECONDS)
        self._exchange.close()
        self._team.close()
        if self._inference is not None:
            self._inference.close()
        self._logbook.close()

    @property
    def _env_steps(self) -> int:
        """Env steps behind all that was taken in; the exchange counts items."""
        return self._exchange.env_steps * self._plan.item_steps

    def _end(self) -> str | None:
        """Return why the run is complete, or None."""
        settings = self._settings
        if settings.total_env_steps is not None and self._env_steps >= settings.total_env_steps:
            return f"{self._env_steps} env steps"
        if settings.total_updates is not None and self._counters.kept_updates >= settings.total_updates:
            return f"{self._counters.kept_updates} updates"
        if settings.max_seconds is not None and time.monotonic() - self._began >= settings.max_seconds:
            return f"{settings.max_seconds:g} seconds"
        return None

    def _learn(self) -> None:
        """Do the update that the data allows; in lockstep all of them, before anybody collects on."""
        counters, settings = self._counters, self._settings
        self._update()
        if settings.lockstep:
            while self._pace.allows_update(self._exchange.env_steps, counters.kept_updates):
                self._update()
            self._publish()
        elif counters.kept_updates % self._plan.balance.publish_every == 0 or not counters.policy_version:
            self._publish()

    def _update(self) -> None:
        """Take a batch and learn from it."""
        if isinstance(self._store, Rollouts):
            rollouts = self._exchange.draw(self._store.take)
            assert rollouts is not None  # noqa: S101  (the pace saw to it)
            self._stats = self._team.update(rollouts)
        elif isinstance(self._store, Gradients):
            gradient = self._exchange.draw(self._store.take)
            assert gradient is not None and isinstance(self._method, Descent)  # noqa: S101, PT018
            self._stats = self._method.update(gradient.to(self._device))
        else:
            assert isinstance(self._method, SAC)  # noqa: S101
            self._stats = self._learn_from(self._store, self._method)
        self._counters.updates += 1

    def _learn_from(self, replay: Replay, sac: SAC) -> Stats:
        size = sac.config.batch_size
        stats = self._team.update(self._exchange.draw(lambda: replay.sample(size)))
        if sac.config.prioritised:
            misjudged = torch.cat(
                [each.misjudged.cpu() for each in self._team.members if isinstance(each, SAC)]
            ).numpy()
            self._exchange.draw(lambda: replay.judge(misjudged))
        return stats

    def _publish(self) -> None:
        """Give out the present policy. Its version is in the journal first: no version ever names two policies."""
        arena = self._method.actor_arena()
        if not np.isfinite(arena).all():
            self._refuse_to_go_on()
        self._counters.policy_version += 1
        if self._counters.policy_version > self._journalled_version:
            self._journal(VERSIONS_AHEAD)
        self._policies.publish(self._counters.policy_version, arena)
        if self._inference is not None:
            self._inference.publish(self._counters.policy_version, arena)
        self._exchange.published(self._counters.policy_version, self._counters.kept_updates)

    def _journal(self, ahead: int = VERSIONS_AHEAD) -> None:
        """Write the counters down, and the versions that are given out before this is done again."""
        self._journalled_version = self._counters.policy_version + ahead
        write_journal(self._folder, replace(self._counters, policy_version=self._journalled_version))

    def _checkpoint(self) -> None:
        """Copy what a checkpoint needs, and have it written."""
        self._saved = time.monotonic()
        holdings = self._exchange.holdings(self._settings.checkpoint_replay_bytes)
        arrays, facts = pack(self._method, self._counters, holdings, holdings.env_steps * self._plan.item_steps)
        facts["made"] = self._made()
        if not all(np.isfinite(array).all() for name, array in arrays.items() if name.startswith("method.")):
            self._refuse_to_go_on()
        self._saver.save(self._counters.updates, arrays, facts, holdings)

    def _made(self) -> dict[str, Any]:
        """What tells checkpoints apart for people; nothing is resumed from it."""
        context, last = self._context, self._logbook.evaluation
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

    def _refuse_to_go_on(self) -> NoReturn:
        """End before a policy or a checkpoint is spoiled: a restart goes on from the last good checkpoint."""
        raise NotFiniteError(
            f"after {self._counters.updates} updates the networks hold values that are not finite; a restart goes "
            "on from the newest checkpoint; if this comes again, lower the step sizes or bound the rewards"
        )

    def _record(self) -> None:
        """Print and keep one metric record, and the counters first: none that was seen is ever forgotten."""
        self._counters.env_steps = max(self._counters.env_steps, self._env_steps)
        self._journal()
        self._logbook.write(self._counters, self._env_steps, self._exchange.figures(), self._stats)


def _devices(settings: Settings) -> list[str]:
    """Return where to compute. Raises UsageError for what is wanted and not there."""
    device, count = _device(settings), settings.devices
    if count == 1:
        return [device]
    if device == "cuda" and count > torch.cuda.device_count():
        raise UsageError(f"devices is {count} and this learner sees {torch.cuda.device_count()} GPUs")
    return [f"cuda:{index}" if device == "cuda" else device for index in range(count)]


def _device(settings: Settings) -> str:
    """Return the kind of device to compute on. Raises UsageError for one that is wanted and not there."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if settings.device == "auto":
        return "cuda" if there["cuda"] else "cpu"
    if not there[settings.device]:
        raise UsageError(f"device is {settings.device} and torch finds none here; use cpu or auto")
    return settings.device
