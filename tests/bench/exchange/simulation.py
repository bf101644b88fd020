"""Learner's exchange with up to 10,000 workers, simulated with the real protocol machines and measured costs.

The costs of a turn of the network thread, a message and a connection are measured with at most 128 real workers
over TCP on this machine. With them a virtual clock runs the machines of the learner and of any number of workers.
`--check` compares with as many real connections; `--out` writes the curves. Workers send one segment in each period
on average. After a while all weights are published anew, and then the learner dies and comes back.

A turn costs less the more turns a second has: a thread that sleeps finds its caches cold. So its cost is measured
at several rates. A connection costs even without a message, because ZeroMQ sends and gets a heartbeat each second.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import multiprocessing
import random
import select
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from runtime.base.addresses import parse
from runtime.base.descriptors import raise_limit
from runtime.exchange.learner_server import TICK_SECONDS
from runtime.exchange.machines.events import Arrived, Published, Send, Ticked
from runtime.exchange.machines.member_state import WINDOW_BYTES
from runtime.exchange.machines.membership import Membership
from runtime.exchange.machines.session import Outgoing, PeerSession
from runtime.exchange.protocol.framing import decode, encode
from runtime.exchange.protocol.messages import Message, Trajectory
from runtime.exchange.segments import SegmentAllocator, gather
from runtime.exchange.transport.sockets import Port
from tests.bench.exchange.ends import Case, Learner, hello_of, terms_of
from tests.bench.exchange.segments import free_port

SPAWN = multiprocessing.get_context("spawn")
MOST_OF_A_TURN = 64
"""Messages that the network thread reads before it answers (`_Channel._inbound`)."""
RATES = (256, 1024)
"""Segments per second of the runs from which the costs follow."""
FEW, MANY = 16, 128
"""Workers of those runs: what more connections cost at the same rate is the cost of a connection."""
BURST, BURST_SECONDS = 64, 0.25
"""Workers that all send at once, and seconds between two of their bursts: many messages in few turns."""
PROBES = 16
"""Real workers in a process of their own, whose times to an acknowledgement count: one process for a thousand
workers is itself late.
"""
WARM_SECONDS = 3.0


@dataclass(frozen=True)
class Figures:
    """Of one run, per second of its middle part."""

    workers: int
    period: float
    cpu: float
    """Seconds of the learner's process."""
    segments: float
    messages: float
    """Received by the learner."""
    turns: float
    latency: float
    """Median seconds from a segment to its acknowledgement."""
    late: float
    """The 95th percentile."""
    network: float = 0.0
    """Of ``cpu``, that of the network thread; the rest is that of ZeroMQ's thread."""
    news: float = 0.0
    """Seconds from a publish until all workers know of it."""
    recovery: float = 0.0
    """Seconds from the return of a learner until it has all workers again."""
    crowd: float = 0.0
    """As ``latency``, of the real workers that share a process."""


@dataclass(frozen=True)
class Costs:
    """CPU seconds of a message in the network thread, of a connection each second, and more at some rates."""

    message: float
    connection: float
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Point:
    """What depends on the rate of messages, and on the load of the machine."""

    rate: float
    turn: float
    """CPU seconds of the network thread."""
    transfer: float
    """CPU seconds of ZeroMQ's thread for a message with its answer."""
    wake: float = 0.0
    """Mean seconds from a message until the network thread runs."""
    delay: float = 0.0
    """Seconds of a message on its way."""


class Worker:
    """A session that sends a segment in each period, as long as it has credit; on any clock."""

    def __init__(self, case: Case, index: int, period: float, choose: random.Random | None) -> None:
        """Without ``choose``, it sends at the same times as the others without."""
        self.session = PeerSession(hello_of(case, f"w-{index}", 1))
        self.period, self.choose = period, choose
        self.next = choose.random() * period if choose is not None else 0.0
        self.sent_at: dict[int, float] = {}
        self.latencies: list[float] = []
        arena = SegmentAllocator(case.layout.item_bytes * case.transitions).allocate()
        arena.view[:] = bytes(arena.nbytes)
        self.arena, self.row = arena, Trajectory(case.transitions, 0, 0, 0, 0.0, 0.0)

    def due(self, now: float) -> list[Outgoing]:
        """Return what it sends now. Call it at `wakes`, and after each message."""
        session = self.session
        if now >= self.next:
            share = self.choose.uniform(0.8, 1.2) if self.choose is not None else 1.0
            self.next = max(self.next + self.period * share, now)
            if session.has_credit:
                session.queue_segment(self.row, self.arena)
                self.sent_at[session.offered] = now
        return session.outgoing(now, session.offered, 0.0, session.policy_version)

    def wakes(self, now: float) -> float:
        return min(self.next, now + self.session.patience)

    def receive(self, now: float, message: Message) -> None:
        self.session.receive(now, message)
        acknowledged = self.session.offered - self.session.unsettled
        for seq in [seq for seq in self.sent_at if seq <= acknowledged]:
            self.latencies.append(now - self.sent_at.pop(seq))


def case_of(count: int, port: int = 1) -> Case:
    """Credit for a window each: how a learner shares scarce memory is not measured here."""
    return Case(f"tcp://127.0.0.1:{port}", ring=False, inflight_bytes=max(1, count) * WINDOW_BYTES)


def forget(workers: Iterable[Worker]) -> None:
    """Forget the times before the measured part, in which the workers joined."""
    for worker in workers:
        worker.latencies.clear()


def workers_of(case: Case, numbers: range, period: float, *, at_once: bool = False) -> list[Worker]:
    choose = None if at_once else random.Random(1 + numbers.start)
    return [Worker(case, index, period, choose) for index in numbers]


# --- real ------------------------------------------------------------------------------------------------------
def connections(case: Case, numbers: range, period: float, at_once: bool, pipe: Connection) -> None:
    """Process with these workers, each with a TCP connection.

    The first message on the pipe begins the measured part; at the second it sends the latencies.
    """
    raise_limit()
    address = getattr(parse(case.endpoint), Port.DATA.value)
    # ZeroMQ's own poller looks at each socket each time: 1,000 would send in bursts, as no 1,000 processes do.
    context, poller = zmq.Context(), select.epoll()
    context.set(zmq.MAX_SOCKETS, 2 * len(numbers) + 8)
    sockets: dict[Any, Worker] = {}
    by_descriptor: dict[int, Any] = {}
    began, heap = time.monotonic(), []
    for number, worker in enumerate(workers_of(case, numbers, period, at_once=at_once)):
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, worker.session.hello.pod.encode())
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.connect(address)
        poller.register(descriptor := socket.getsockopt(zmq.FD), select.EPOLLIN)
        sockets[socket], by_descriptor[descriptor] = worker, socket
        heap.append((0.0, number, socket))

    def send(worker: Worker, socket: Any) -> None:
        for out in worker.due(time.monotonic() - began):
            try:
                socket.send_multipart(encode(out.message, gather(out.arenas) if out.arenas else None), zmq.NOBLOCK)
            except zmq.Again:
                worker.session.unsent(out.message)
        receive(worker, socket)  # a send takes the descriptor's event for what has arrived

    def receive(worker: Worker, socket: Any) -> None:
        while socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            worker.receive(time.monotonic() - began, decode(socket.recv_multipart())[0])

    is_measured = False
    while True:
        if pipe.poll():
            pipe.recv()
            if is_measured:
                break
            is_measured = True
            forget(sockets.values())
        now = time.monotonic() - began
        while heap[0][0] <= now:
            _, number, socket = heapq.heappop(heap)
            send(sockets[socket], socket)
            heapq.heappush(heap, (sockets[socket].wakes(now), number, socket))
        for descriptor, _ in poller.poll(max(0.0, heap[0][0] - now)):
            socket = by_descriptor[descriptor]
            receive(sockets[socket], socket)
    pipe.send([seconds for worker in sockets.values() for seconds in worker.latencies])
    poller.close()
    context.destroy(0)


def real(count: int, period: float, seconds: float, *, at_once: bool = False) -> Figures:
    """Measure the product's exchange with so many connections."""
    raise_limit()
    case = case_of(count, free_port())
    learner = Learner(case)
    turns, poll = itertools.count(), learner.exchange._channel.poll

    def counted(timeout: float) -> list[Any]:
        next(turns)
        return poll(timeout)

    learner.exchange._channel.poll = counted  # type: ignore[method-assign]
    children = []
    first = count if at_once else min(count, PROBES)  # those that send at once share a clock
    for numbers in filter(None, (range(first), range(first, count))):
        pipe, end = SPAWN.Pipe()
        child = SPAWN.Process(target=connections, args=(case, numbers, period, at_once, end), daemon=True)
        child.start()
        children.append((child, pipe))
    while learner.machine.workers < count:
        time.sleep(0.05)
    time.sleep(WARM_SECONDS)

    def now() -> np.ndarray[Any, Any]:
        messages = learner.exchange._traffic.totals()["messages_in"]
        counts = (
            time.process_time(),
            learner.store.taken,
            messages,
            next(turns),
            learner.exchange._network_seconds,
        )
        return np.array([time.monotonic(), *counts])

    for _, pipe in children:
        pipe.send(None)
    before = now()
    time.sleep(seconds)
    passed, *rest = map(float, now() - before)
    late = []
    for child, pipe in children:
        pipe.send(None)
        late.append(pipe.recv())
        child.join()
    learner.exchange.close()
    *rates, network = (part / passed for part in rest)
    crowd = float(np.median(late[-1])) if late else 0.0
    return Figures(count, period, *rates, *percentiles(late[0] if late else [0.0]), network=network, crowd=crowd)


def percentiles(latencies: list[float]) -> tuple[float, float]:
    return float(np.percentile(latencies, 50)), float(np.percentile(latencies, 95))


def median_of(runs: list[Figures]) -> Figures:
    """Return the medians of the figures of equal runs."""
    return Figures(*np.median([astuple(run) for run in runs], axis=0).tolist())


def costs_of(idle: Figures, burst: Figures, pairs: list[tuple[Figures, Figures]], seconds: float) -> Costs:
    """Return the costs that runs show: one without workers, one with bursts, and two at each rate of messages."""

    def transfers(run: Figures) -> float:
        return run.cpu - run.network

    turn = idle.network / idle.turns
    message = max(0.0, burst.network - turn * burst.turns) / burst.messages
    extra = [(transfers(many) - transfers(few)) / (many.workers - few.workers) for few, many in pairs]
    costs = Costs(message, max(0.0, float(np.mean(extra))), (Point(0.0, turn, 0.0),))
    for pair in pairs:
        own = [(run.network - message * run.messages) / run.turns for run in pair]
        rest = [(transfers(run) - costs.connection * run.workers) / run.messages for run in pair]
        point = Point(pair[1].messages, *(max(0.0, float(np.mean(parts))) for parts in (own, rest)))
        if not costs.points[0].transfer:
            costs = replace(costs, points=(replace(costs.points[0], transfer=point.transfer),))
        costs = replace(costs, points=(*costs.points, waiting(replace(costs, points=(point,)), pair[1], seconds)))
    return costs


def waiting(costs: Costs, run: Figures, seconds: float) -> Point:
    """Return the only point of these costs with the times of a real run: a simulated one has as many turns."""
    (point,) = costs.points

    def simulated(wake: float) -> Figures:
        own = replace(costs, points=(replace(point, wake=wake),))
        return Simulation(own, int(run.workers), run.period).load(seconds)

    # The longer the thread takes to wake, the more messages it finds.
    low, high = 0.0, 0.05
    for _ in range(9):
        wake = (low + high) / 2
        low, high = (low, wake) if simulated(wake).turns < run.turns else (wake, high)
    return replace(point, wake=wake, delay=max(0.0, (run.latency - simulated(wake).latency) / 2))


# --- simulated -------------------------------------------------------------------------------------------------
class Simulation:
    """Learner and workers on a virtual clock; the learner's network thread is a server with the measured costs."""

    def __init__(self, costs: Costs, count: int, period: float, loss: float = 0.0) -> None:
        self.case, self.costs, self.period, self.loss = case_of(count), costs, period, loss
        self.workers = workers_of(self.case, range(count), period)
        columns = np.array([astuple(point) for point in costs.points]).T
        self.turn, self.transfer, self.wake, self.delay = (
            float(np.interp(count / period, columns[0], column)) for column in columns[1:]
        )
        self.by_route = {worker.session.hello.pod.encode(): worker for worker in self.workers}
        self.machine: Membership | None = Membership(terms_of(self.case))
        self.now, self.cpu, self.turns, self.messages, self.epoch = 0.0, 0.0, 0, 0, 1
        self.inbox: deque[tuple[bytes, Message, int]] = deque()
        self.is_busy, self.is_woken = False, False
        self.choose = random.Random(2)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serials = itertools.count()
        self._turn_due = 0.0
        for worker in self.workers:
            self.at(worker.next, partial(self._wake, worker))
        self.at(0.0, self._tick)

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._serials), what))

    def until(self, end: float, condition: Callable[[], bool] = bool) -> float:
        """Let events happen up to a time or until a condition holds, to 5 ms; return the time."""
        due = self.now
        while self._events[0][0] <= end:
            if self.now >= due:
                if condition():
                    break
                due = self.now + 0.005
            self.now, _, what = heapq.heappop(self._events)
            what()
        return self.now

    def _wake(self, worker: Worker) -> None:
        self._send(worker)
        self.at(worker.wakes(self.now), partial(self._wake, worker))

    def _send(self, worker: Worker) -> None:
        route = worker.session.hello.pod.encode()
        for out in worker.due(self.now):
            if self.machine is None:  # no connection
                worker.session.unsent(out.message)
            elif self.choose.random() >= self.loss:
                size = sum(arena.nbytes for arena in out.arenas)
                self.at(self.now + self.delay, partial(self._arrive, route, out.message, size))

    def _arrive(self, route: bytes, message: Message, size: int) -> None:
        self.inbox.append((route, message, size))
        if not self.is_busy and not self.is_woken:
            self.is_woken = True
            self.at(self.now + self.choose.expovariate(1.0) * self.wake, self._begin)

    def _tick(self) -> None:
        """A turn without messages, if none began since it was planned."""
        if not self.is_busy and not self.is_woken and self.now >= self._turn_due:
            self._begin()

    def _begin(self) -> None:
        """Begin a turn of the network thread, which takes as long as its work."""
        taken = [self.inbox.popleft() for _ in range(min(MOST_OF_A_TURN, len(self.inbox)))]
        used = self.turn + self.costs.message * len(taken)
        self.is_woken = False
        self.is_busy, self.turns, self.messages = True, self.turns + 1, self.messages + len(taken)
        self.cpu += used
        self.at(self.now + used, partial(self._end, taken))

    def _end(self, taken: list[tuple[bytes, Message, int]]) -> None:
        self.is_busy = False
        if self.machine is None:
            self.inbox.clear()
            return
        done = [
            instruction
            for route, message, size in taken
            for instruction in self.machine.handle(Arrived(self.now, route, message, size))
        ]
        for send in [*done, *self.machine.handle(Ticked(self.now, 10**15))]:
            if isinstance(send, Send):
                self.at(self.now + self.delay, partial(self._receive, send))
        if self.inbox:
            self._begin()
        else:
            self._turn_due = self.now + TICK_SECONDS
            self.at(self._turn_due, self._tick)

    def _receive(self, send: Send) -> None:
        worker = self.by_route[send.route]
        worker.receive(self.now, send.message)
        self._send(worker)

    def load(self, seconds: float) -> Figures:
        """Return the figures of a run without those of a publish and a recovery."""
        machine, count = self.machine, len(self.workers)
        assert machine is not None
        self.until(60.0, lambda: machine.workers == count)
        self.until(self.now + WARM_SECONDS)
        forget(self.workers)
        before = self.now, self.cpu, machine.accounts.totals.accepted, self.messages, self.turns
        self.until(self.now + seconds)
        after = self.now, self.cpu, machine.accounts.totals.accepted, self.messages, self.turns
        passed, *rest = (end - begin for begin, end in zip(before, after, strict=True))
        network = rest[0]
        rest[0] += self.costs.connection * count * passed + self.transfer * rest[2]
        late = [seconds for worker in self.workers for seconds in worker.latencies]
        rates = (part / passed for part in rest)
        return Figures(count, self.period, *rates, *percentiles(late), network=network / passed)

    def run(self, seconds: float) -> Figures:
        """Return the figures of a run; `news` and `recovery` follow after the measured part."""
        figures, machine, count = self.load(seconds), self.machine, len(self.workers)
        assert machine is not None
        latest = [worker.session for worker in self.workers]
        machine.handle(Published(1))
        began = self.now
        news = self.until(began + 90.0, lambda: all(session.policy_version for session in latest)) - began
        self.machine = None
        self.inbox.clear()
        self.until(self.now + 2.0)
        self.machine = back = Membership(terms_of(self.case, epoch=2), policy_version=1)
        began = self.now
        self.at(began, self._tick)
        for worker in self.workers:  # their connections are made again, within a second
            self.at(began + self.choose.random(), worker.session.reconnected)
        recovery = self.until(began + 90.0, lambda: back.workers == count) - began
        return replace(figures, news=news, recovery=recovery)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 300, 1_000, 3_000, 10_000])
    parser.add_argument("--period", type=float, default=1.0, help="seconds between two segments of a worker")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of real runs; medians count")
    parser.add_argument(
        "--check", type=int, nargs="*", default=[], metavar="WORKERS", help="also run so many really"
    )
    parser.add_argument("--loss", type=float, default=0.0, help="share of the messages that are lost on the way")
    parser.add_argument("--out", type=Path, help="write figures and curves to these files, without an ending")
    parser.add_argument("--draw", action="store_true", help="only draw the figures of --out again")
    options = parser.parse_args(arguments)
    if options.draw:
        draw(options.out)
        return
    # In turn, so that the load of the machine changes all alike.
    cases = [(0, 1.0, False), (BURST, BURST_SECONDS, True)]
    cases += [(count, count / rate, False) for rate in RATES for count in (FEW, MANY)]
    cases += [(count, options.period, False) for count in options.check]
    rounds = [
        [real(count, period, options.seconds, at_once=at_once) for count, period, at_once in cases]
        for _ in range(options.rounds)
    ]
    idle, burst, *runs = map(median_of, map(list, zip(*rounds, strict=True)))
    pairs = [(runs[2 * index], runs[2 * index + 1]) for index in range(len(RATES))]
    checks = dict(zip(options.check, runs[2 * len(RATES) :], strict=True))
    costs = costs_of(idle, burst, pairs, options.seconds)
    print(
        f"measured in {options.rounds} rounds: {1e6 * costs.message:.0f} us a message, "
        f"{1e6 * costs.connection:.0f} us a second for a connection"
    )
    for point in costs.points:
        print(
            f"at {point.rate:.0f} messages/s {1e6 * point.turn:.0f} us a turn, {1e6 * point.transfer:.0f} us for a "
            f"transfer, {1e3 * point.wake:.1f} ms until the thread runs, {1e3 * point.delay:.1f} ms one way"
        )
    print(
        f"{'workers':>22} {'CPU':>6} {'network':>7} {'segments':>9} {'turns':>6} {'latency':>8} "
        f"{'95 %':>7} {'news':>6} {'back':>6}"
    )
    simulated = []
    for count in sorted({*options.workers, *checks}):
        simulated.append(Simulation(costs, count, options.period, options.loss).run(options.seconds))
        show("simulated", simulated[-1])
        if (found := checks.get(count)) is not None:
            show("real", found)
            ratios = (
                getattr(simulated[-1], name) / getattr(found, name) for name in ("cpu", "segments", "latency")
            )
            print("    simulated / real: CPU {:.2f}, segments {:.2f}, latency {:.2f}".format(*ratios), end="; ")
            print(f"{1e3 * found.crowd:.1f} ms for the workers that share a process", flush=True)
    if options.out:
        runs = [("simulated", run) for run in simulated] + [("real", run) for run in checks.values()]
        lines = (json.dumps({"kind": kind, **asdict(run)}) + "\n" for kind, run in runs)
        options.out.with_suffix(".jsonl").write_text("".join(lines))
        draw(options.out)


def show(kind: str, run: Figures) -> None:
    print(
        f"{int(run.workers):8,} {kind:>13} {run.cpu:6.3f} {run.network:7.3f} {run.segments:9.1f} {run.turns:6.0f} "
        f"{1e3 * run.latency:5.1f} ms {1e3 * run.late:4.0f} ms {run.news:4.1f} s {run.recovery:4.1f} s",
        flush=True,
    )


def draw(out: Path) -> None:
    """Draw load, latency, news and recovery over the number of workers, as lines; real runs as crosses."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "l2rtui"
    from matplotlib import pyplot as plt

    runs = [json.loads(line) for line in out.with_suffix(".jsonl").read_text("utf-8").splitlines()]
    simulated, real = ([run for run in runs if run["kind"] == kind] for kind in ("simulated", "real"))
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    titles = {"Load of the learner's exchange": "CPU seconds per second", "Times": "seconds"}
    lines = (
        {"cpu": "all", "network": "network thread"},
        {"latency": "acknowledgement", "news": "all know a policy", "recovery": "all are back"},
    )
    for axes, (title, unit), labels in zip(panels, titles.items(), lines, strict=True):
        for number, (name, label) in enumerate(labels.items()):
            own = {"color": f"C{number}", "label": label}
            axes.plot([run["workers"] for run in simulated], [run[name] for run in simulated], marker=".", **own)
            if name in ("cpu", "network", "latency"):  # a real run measures no others
                style = {"color": f"C{number}", "marker": "x", "linestyle": "", "markersize": 9}
                axes.plot(
                    [run["workers"] for run in real],
                    [run[name] for run in real],
                    label=f"{label}, real" if real else None,
                    **style,
                )
        axes.set(title=title, ylabel=unit, xlabel="workers", xscale="log", yscale="log")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    figure.savefig(out.with_suffix(".svg"), metadata={"Date": None})
    plt.close(figure)
