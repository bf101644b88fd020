"""Both ends of the exchange without learning: a learner that records the segments it stores, workers that count.

    python -m tests.fakes.exchange_ends learner|worker INDEX

The variables are a launcher's. The learner's records are part of its checkpoint, together with the accounts; so
they can be compared, number by number, with the workers' reports of sent segments.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from runtime.base import contract
from runtime.base.atomic_files import write_atomic
from runtime.base.errors import PeerRefusedError
from runtime.base.metrics import Console
from runtime.exchange.learner_client import LearnerClient
from runtime.exchange.learner_server import LearnerServer
from runtime.exchange.machines.member_state import Accounts, SessionTerms
from runtime.exchange.protocol.messages import Trajectory
from runtime.exchange.protocol.segment_schema import Columns, Layout, SegmentField
from runtime.exchange.segments import SegmentAllocator
from runtime.exchange.status_server import StatusServer
from runtime.exchange.transport import curve_keys, shared_memory
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.buffers.replay_state import ConstantCut
from runtime.rl.roles.launch_context import Context
from runtime.rl.roles.rate_limiter import RateLimiter

F64 = np.dtype(np.float64)
LAYOUT = Layout(
    (
        SegmentField("pod", F64),
        SegmentField("born", F64),
        SegmentField("seq", F64),
        SegmentField("ballast", F64, (32,)),
    )
)
TRANSITIONS = 8
SHAPE = ActorShape(2, 1, (4,))


class Diary:
    """Stores only which sender sent which numbers, in order of arrival: as ranges without gaps.

    A number that arrives twice or late starts a new range, so that it is visible; a diary of an hour is short.
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

    def cut(self, most_bytes: int | None = None) -> ConstantCut:
        lines = [(*sender, *run) for sender, runs in self._runs.items() for run in runs]
        return ConstantCut(lambda: {"runs": np.array(lines, dtype=np.int64).reshape(-1, 4)})


def learner(context: Context) -> int:
    """Store all segments, save often, end when a file requests it."""
    folder = context.learner_folder()
    file, diary, accounts = folder / "saved.json", Diary(), Accounts()
    if file.exists():
        saved = json.loads(file.read_bytes())
        diary = Diary(saved["runs"])
        accounts = Accounts.from_state(saved["accounts"])
    terms = SessionTerms(
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
    keys, limiter = curve_keys.learner_keys(context), RateLimiter(0, 1.0, 10**12)
    # The clock gives versions that rise over restarts, like a real learner's journal.
    version = int(time.time() * 10)
    exchange = LearnerServer(
        context.endpoint, keys, terms, diary, limiter, print, accounts=accounts, policy_version=version
    )
    exchange.start()
    try:
        status = StatusServer(context.status_address(), exchange.status)
        serve(exchange, folder / "stop", file)
        status.close()
    finally:
        exchange.close()
    return contract.EXIT_DONE


def serve(exchange: LearnerServer, stop: Path, file: Path) -> None:
    """Publish twice a second and save continuously, until there is a file `stop`."""
    published = 0.0
    while not stop.exists():
        exchange.await_data(10**9, 0.05)
        if time.monotonic() - published > 0.5:
            published = time.monotonic()
            weights = np.zeros(SHAPE.size, dtype=np.float32)
            exchange.publish(exchange.policies.version + 1, weights, 10**9)
        save(exchange, file)
    exchange.finish("enough", 0.0, 20.0)
    save(exchange, file)


def save(exchange: LearnerServer, file: Path) -> None:
    """Save accounts and diary together, like in a checkpoint."""
    holdings = exchange.snapshot(0)
    state = {"runs": holdings.store["runs"].tolist(), "accounts": holdings.accounts}
    write_atomic(file, json.dumps(state).encode(), is_durable=False)
    exchange.saved(holdings)


def worker(context: Context, index: int) -> int:
    """Send numbered segments until the learner has enough, and report their number."""
    if index % 2:
        shared_memory.host_identity = lambda: f"as if on host {index}"
    arenas = SegmentAllocator(TRANSITIONS * LAYOUT.item_bytes)
    sent = 0
    with LearnerClient(context, NumpyActor(SHAPE), LAYOUT, TRANSITIONS, Console()) as peer:
        born = peer.session.hello.incarnation
        try:
            while peer.session.done is None and os.getppid() != 1:
                ready = peer.session.has_credit and peer.policy_version and not peer.is_too_old
                peer.exchange(0.001 if ready else 0.1)
                peer.use_newest_weights()
                if ready:
                    sent = max(sent, peer.session.offered) + 1
                    arena = arenas.allocate()
                    for column, value in zip(
                        LAYOUT.columns(arena.view, TRANSITIONS), (index, born, sent, sent), strict=True
                    ):
                        column[:] = value
                    version = peer.policy_version
                    row = Trajectory(TRANSITIONS, version, version, 0, 0.0, 0.0)
                    peer.session.queue_segment(row, arena)
                    peer.env_steps += TRANSITIONS
        except PeerRefusedError as error:
            print(f"refused: {error}")
            return contract.EXIT_REFUSED
        print(json.dumps({"name": f"{context.pod}@{born}", "offered": peer.session.offered}), flush=True)
        peer.leave("done")
    return contract.EXIT_DONE


if __name__ == "__main__":
    here = Context.from_environment(os.environ, sys.argv[1])
    sys.exit(learner(here) if sys.argv[1] == "learner" else worker(here, int(sys.argv[2])))
