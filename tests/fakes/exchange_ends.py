"""Both ends of the exchange without learning: a learner that writes down what it stores, workers that count.

    python -m tests.fakes.exchange_ends learner|worker INDEX

Variables are a launcher's. What a learner stored is part of its checkpoint, together with the accounts; so it can
be compared, number by number, with what the workers say that they sent.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runtime import contract, memory
from runtime.accounts import Accounts
from runtime.algos.actor import ActorShape
from runtime.arenas import Arenas
from runtime.channels import LearnerChannel
from runtime.exchange import Exchange
from runtime.files import write_whole
from runtime.layout import Columns, Field, Layout
from runtime.members import Terms
from runtime.membership import Membership
from runtime.messages import Trajectory
from runtime.metrics import Console
from runtime.pacing import Pace
from runtime.peer import Peer
from runtime.policy_store import PolicyStore
from runtime.process import Context, RefusedError
from runtime.status import StatusServer

F64 = np.dtype(np.float64)
LAYOUT = Layout((Field("pod", F64), Field("born", F64), Field("seq", F64), Field("ballast", F64, (32,))))
TRANSITIONS = 8
SHAPE = ActorShape(2, 1, (4,))


class Diary:
    """Stores nothing but who sent which numbers, in the order in which they came: as runs without a hole.

    A number that comes twice or late begins a run of its own, so that it shows; and a diary of an hour is short.
    """

    layout = LAYOUT

    def __init__(self, runs: Iterable[Sequence[int]] = ()) -> None:
        self._runs: dict[tuple[int, int], list[list[int]]] = {}
        for pod, born, first, last in runs:
            self._runs.setdefault((pod, born), []).append([first, last])

    def __len__(self) -> int:
        return sum(last - first + 1 for runs in self._runs.values() for first, last in runs)

    def put(self, columns: Columns) -> None:
        pod, born, seq = (int(column[0]) for column in columns[:3])
        assert all((column == column[0]).all() for column in columns[:3]), "a segment of two"
        assert (columns[3] == seq).all(), "a segment that was changed on its way"
        runs = self._runs.setdefault((pod, born), [])
        if runs and runs[-1][1] + 1 == seq:
            runs[-1][1] = seq
        else:
            runs.append([seq, seq])

    def state(self, most_bytes: int | None = None) -> dict[str, Any]:
        lines = [(*sender, *run) for sender, runs in self._runs.items() for run in runs]
        return {"runs": np.array(lines, dtype=np.int64).reshape(-1, 4)}


def learner(context: Context) -> int:
    """Take what comes, save often, end when a file says so."""
    folder = context.learner_folder()
    file, diary, accounts = folder / "saved.json", Diary(), Accounts()
    if file.exists():
        saved = json.loads(file.read_bytes())
        diary = Diary(saved["runs"])
        accounts = Accounts.from_state(saved["accounts"])
    terms = Terms(
        run=context.run,
        run_id=context.run_id,
        token=context.token,
        epoch=time.time_ns() // 1_000_000,
        environment=context.settings.environment,
        layout=LAYOUT.text,
        actor_floats=SHAPE.size,
        transition_bytes=LAYOUT.item_bytes,
        segment_transitions=TRANSITIONS,
        max_policy_lag=2,
    )
    machine = Membership(terms, accounts)
    policies = PolicyStore(terms.epoch, terms.token, int(time.time() * 10))
    channel = LearnerChannel(context.endpoint, terms.largest_message, context.learner_keys())
    exchange = Exchange(channel, machine, diary, policies, Pace(0, 1.0, 10**12), print, deque())
    exchange.start()
    try:
        status = StatusServer(context.status_address(), exchange.status)
        serve(exchange, policies, folder / "stop", file)
        status.close()
    finally:
        exchange.close()
    return contract.EXIT_DONE


def serve(exchange: Exchange, policies: PolicyStore, stop: Path, file: Path) -> None:
    """Publish twice a second and save all the time, until there is a file `stop`."""
    published = 0.0
    while not stop.exists():
        exchange.await_data(10**9, 0.05)
        if time.monotonic() - published > 0.5:
            published = time.monotonic()
            policies.publish(policies.version + 1, np.zeros(SHAPE.size, dtype=np.float32))
            exchange.published(policies.version, 10**9)
        save(exchange, file)
    exchange.finish("enough", 0.0, 20.0)
    save(exchange, file)


def save(exchange: Exchange, file: Path) -> None:
    """Accounts and diary in one piece, as a checkpoint has them."""
    holdings = exchange.holdings(0)
    state = {"runs": holdings.store["runs"].tolist(), "accounts": holdings.accounts}
    write_whole(file, json.dumps(state).encode(), durable=False)
    exchange.saved(holdings)


def worker(context: Context, index: int) -> int:
    """Send numbered segments until the learner has enough, and say how many."""
    if index % 2:
        memory.place = lambda: f"as if on host {index}"
    arenas = Arenas(TRANSITIONS * LAYOUT.item_bytes)
    sent = 0
    with Peer(context, SHAPE, LAYOUT, TRANSITIONS, Console()) as peer:
        born = peer.session.hello.incarnation
        try:
            while peer.finished is None and os.getppid() != 1:
                ready = peer.session.has_credit and peer.policy_version and not peer.is_too_old
                peer.exchange(0.001 if ready else 0.1)
                peer.adopt()
                if ready:
                    sent = max(sent, peer.session.offered) + 1
                    arena = arenas.take()
                    for column, value in zip(
                        LAYOUT.columns(arena.view, TRANSITIONS), (index, born, sent, sent), strict=True
                    ):
                        column[:] = value
                    version = peer.policy_version
                    row = Trajectory(TRANSITIONS, version, version, 0, 0.0, 0.0)
                    peer.offer(row, arena)
                    peer.env_steps += TRANSITIONS
        except RefusedError as error:
            print(f"refused: {error}")
            return contract.EXIT_REFUSED
        print(json.dumps({"name": f"{context.pod}@{born}", "offered": peer.session.offered}), flush=True)
        peer.leave("done")
    return contract.EXIT_DONE


if __name__ == "__main__":
    here = Context.from_environment(os.environ, sys.argv[1])
    sys.exit(learner(here) if sys.argv[1] == "learner" else worker(here, int(sys.argv[2])))
