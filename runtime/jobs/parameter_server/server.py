"""A parameter server: one shard of the weights, moved by each gradient as it comes."""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from typing import Final

import numpy as np

from runtime import contract
from runtime.accounts import Accounts
from runtime.channels import LearnerChannel
from runtime.checkpoints import Checkpoints
from runtime.commands import InterruptedWorkError
from runtime.counters import Counters, next_epoch, read_journal, write_journal
from runtime.endpoint import Endpoint, parse
from runtime.events import Published
from runtime.exchange import Exchange
from runtime.files import held
from runtime.gradients import Gradients
from runtime.keys import LearnerKeys
from runtime.members import Terms
from runtime.membership import Membership
from runtime.metrics import Console, record
from runtime.pacing import Pace
from runtime.policy_store import PolicyStore
from runtime.process import Context, NotFiniteError, UsageError
from runtime.ps.adam import Adam
from runtime.ps.log import LoggedConsole
from runtime.ps.place import Place
from runtime.stopping import Stop

RECORD_SECONDS: Final = 2.0
CHECKPOINT_SECONDS: Final = 10.0
CHECKPOINTS_KEPT: Final = 3
WAIT_SECONDS: Final = 0.2
WAITING_GRADIENTS: Final = 4
"""Gradients that may wait beside the one that is applied: more would only grow old."""
FAREWELL_SECONDS: Final = (2.0, 30.0)
"""How long a server that is done stays at least, for late workers, and at most, for those that are there."""
LOCK_SECONDS: Final = 10.0


def run(place: Place, stop: Stop, console: Console) -> int:
    """Serve until the last step, and return the exit code. Raises with a sentence as the learner does."""
    context = place.servers[place.index]
    place.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as holds:
        for each in {place.folder, context.endpoint.folder or place.folder}:
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            holds.enter_context(held(each, "the folder", LOCK_SECONDS, stop.is_set))
        logged = LoggedConsole(place.log, console)
        holds.callback(logged.close)
        server = Server(place, context, logged)
        holds.callback(server.close)
        server.loop(stop)
    return contract.EXIT_DONE


class Server:
    """State and loop of one server."""

    def __init__(self, place: Place, context: Context, console: Console) -> None:
        self._place, self._console = place, console
        self._steps = place.hyper.train_steps
        self._joiners = context.joiners
        number = place.index
        layout = place.layout(number)
        self._adam = Adam(place.first_weights()[place.shard(number)].copy(), place.hyper.learning_rate)
        self._store = Gradients(layout, 1)
        self._checkpoints = Checkpoints(place.folder / "checkpoints", CHECKPOINTS_KEPT)
        self._counters, accounts = self._resume()
        terms = Terms(
            run=context.run,
            run_id=context.run_id,
            token=context.token,
            epoch=self._counters.epoch,
            environment=context.settings.environment,
            layout=layout.text,
            actor_floats=place.shard_shape(number).size,
            transition_bytes=layout.item_bytes,
            segment_transitions=1,
            max_policy_lag=place.hyper.max_staleness,
        )
        membership = Membership(terms, accounts)
        self._policies = PolicyStore(terms.epoch, terms.token, self._counters.policy_version)
        membership.handle(Published(self._counters.policy_version))
        pace = Pace(0, 1.0, WAITING_GRADIENTS)
        channel = LearnerChannel(_listening(context), terms.largest_message, _keys(context))
        self._exchange = Exchange(
            channel, membership, self._store, self._policies, pace, console.say, deque(maxlen=1)
        )
        self._recorded = self._saved = time.monotonic()

    def loop(self, stop: Stop) -> None:
        """Take gradients in until there were enough."""
        place = self._place
        self._exchange.start()
        self._publish()
        self._console.say(
            f"server {place.index} of {len(place.servers)} holds {len(self._adam.weights)} weights "
            f"from global step {self._counters.kept_updates} on"
        )
        while not stop.is_set() and not self._is_over:
            if self._exchange.await_data(self._counters.kept_updates, WAIT_SECONDS):
                self._update()
            now = time.monotonic()
            if now - self._recorded >= RECORD_SECONDS:
                self._record(now)
            if now - self._saved >= CHECKPOINT_SECONDS:
                self._save(now)
        self._record(time.monotonic())
        self._save(time.monotonic())
        if not self._is_over:
            raise InterruptedWorkError(
                f"server {place.index} was ended by {stop.reason} at global step {self._counters.kept_updates}"
            )
        self._console.say(f"server {place.index} is done: global step {self._counters.kept_updates}")
        self._exchange.finish(f"{self._steps} global steps", *FAREWELL_SECONDS)
        self._exchange.await_latecomers(self._joiners, stop.is_set)

    def close(self) -> None:
        """Stop answering."""
        self._exchange.close()

    @property
    def _is_over(self) -> bool:
        return bool(self._steps) and self._counters.kept_updates >= self._steps

    def _resume(self) -> tuple[Counters, Accounts]:
        """Take the newest whole checkpoint over, and begin a new epoch."""
        found, aside = self._checkpoints.load()
        for sentence in aside:
            self._console.say(sentence)
        saved, accounts = None, Accounts()
        if found is not None:
            try:
                self._adam.load({name.removeprefix("adam."): each for name, each in found.tensors.items()})
                saved = Counters.from_facts(found.facts["counters"])
                accounts = Accounts.from_state(found.facts["accounts"])
            except (KeyError, ValueError) as error:
                raise UsageError(
                    f"{found.name} in {self._place.folder} does not fit: {error}; set the servers back or take "
                    "another folder"
                ) from error
            self._console.say(f"resumed {found.name}: global step {saved.kept_updates}")
        return next_epoch(saved, read_journal(self._place.folder), time.time()), accounts

    def _update(self) -> None:
        gradient = self._exchange.draw(self._store.take_array)
        if gradient is None:
            return
        self._adam.step(gradient)
        if not np.isfinite(self._adam.weights).all():
            raise NotFiniteError("the weights are not finite any more; lower learning_rate")
        self._counters.updates += 1
        self._publish()

    def _publish(self) -> None:
        """Give the weights out under a new number, which is in the journal first."""
        counters = self._counters
        counters.policy_version += 1
        write_journal(self._place.folder, counters)
        self._policies.publish(counters.policy_version, self._adam.weights.copy())
        self._exchange.published(counters.policy_version, counters.kept_updates)

    def _record(self, now: float) -> None:
        self._recorded = now
        figures = self._exchange.figures()
        fields = {
            "role": "ps",
            "index": self._place.index,
            "global_step": self._counters.kept_updates,
            "workers": figures["workers"],
            "staleness": figures["policy_lag"],
            "refused": figures["refused"],
        }
        self._console.record(record("ps", fields))
        self._console.say(f"global step {self._counters.kept_updates} workers {figures['workers']}")

    def _save(self, now: float) -> None:
        self._saved = now
        holdings = self._exchange.holdings(0)
        self._counters.env_steps = max(self._counters.env_steps, holdings.env_steps)
        facts = {
            "counters": {**self._counters.facts(), "env_steps": holdings.env_steps},
            "accounts": holdings.accounts,
        }
        arrays = {f"adam.{name}": each for name, each in self._adam.arrays().items()}
        self._checkpoints.save(self._counters.updates, holdings.env_steps, arrays, facts)
        self._exchange.saved(holdings)


def _listening(context: Context) -> Endpoint:
    """Return where a server listens: at every address of its pod, since a pod does not know the one of its name."""
    endpoint = context.endpoint
    return endpoint if endpoint.is_private() else parse(f"tcp://*:{endpoint.port}")


def _keys(context: Context) -> LearnerKeys | None:
    """Return what this server proves itself with. Raises UsageError if strangers could join it."""
    if not context.token and not context.endpoint.is_private():
        raise UsageError(
            f"the endpoint {context.endpoint.data} can be reached from other machines and there is no token; "
            f"set {contract.ENV_TOKEN_FILE} to the run's token file"
        )
    return context.learner_keys()
