"""Simulators: what the reference simulator costs, and cycles of faults: ``python -m tests.bench.sim --cycles 200``.

The cycles run eight simulators at once, each with a random fault, and count what is left by the kernel's own list
of processes and their environments. The cost is CPU time over wall time, so other load matters little.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil

from runtime.rl.envs.l2r import L2RVectorEnv
from runtime.rl.envs.l2r_options import L2ROptions
from runtime.sim.control.supervisor import SimulatorSupervisor
from runtime.sim.launchers.failures import Cause
from runtime.sim.launchers.process import SimulatorProcess
from runtime.sim.launchers.shim import MARK
from runtime.sim.spec import SimulatorSpec
from runtime.sim.wire import rpc_methods
from runtime.sim.wire.controller import Controller
from runtime.sim.wire.errors import LostError
from runtime.sim.wire.udp_io import Observations, Receiver
from tests.runtime.sim.conftest import carrying

FAULTS = {
    None: None,
    "ignore-sigterm": None,
    "grandchild": None,
    "crash@0.2": Cause.CRASHED,
    "killed@0.2": Cause.KILLED,
    "exit@0.2": Cause.EXITED,
    "hang@0.2": Cause.HUNG,
    "deaf@0.2": Cause.HUNG,
}
PORTS: set[int] = set()
"""Control ports in use, by our own books: two at the same time would be a clash."""
PORTS_LOCK = threading.Lock()


def cost(seconds: float) -> None:
    """CPU of a simulator in real time, without and with a camera."""
    for cameras in ((), ("CameraFrontRGB",)):
        with tempfile.TemporaryDirectory() as folder:
            supervisor = SimulatorSupervisor(
                SimulatorSpec(fast=False), lambda spec, at=Path(folder): SimulatorProcess(spec, at)
            )
            supervisor.start()
            at, receiver = supervisor.addresses, Receiver()
            with Controller(port=at.control) as controller:
                controller.call(rpc_methods.open_level("harbour"))
                for name in cameras:
                    controller.call(rpc_methods.enable_sensor(name))
            addresses = {name: f"tcp://127.0.0.1:{at.camera_port(name)}" for name in cameras}
            seen = Observations(receiver, pose_port=at.pose, cameras=addresses)
            time.sleep(2.0)  # the map is painted once; what is measured is what goes on
            handle = supervisor._handle
            assert isinstance(handle, SimulatorProcess)
            process = psutil.Process(handle.pid)
            before, poses, began = process.cpu_times(), seen.pose.sequence, time.perf_counter()
            frames = sum(seen.frame(name).sequence for name in cameras)
            time.sleep(seconds)
            after, wall = process.cpu_times(), time.perf_counter() - began
            frames = sum(seen.frame(name).sequence for name in cameras) - frames
            used = (after.user + after.system - before.user - before.system) / wall
            print(
                f"real time, {len(cameras)} cameras of 512x384: {100 * used:.0f} % of a core, "
                f"{(seen.pose.sequence - poses) / wall:.0f} poses/s, {frames / wall:.0f} frames/s, "
                f"{process.memory_info().rss / 2**20:.0f} MiB"
            )
            seen.close()
            receiver.close()
            supervisor.stop()


def lockstep(steps: int) -> None:
    """Steps a second of one car over the wire in lock-step, the environment's own work included."""
    env = L2RVectorEnv(1, L2ROptions())
    env.reset(0)
    action = np.array([[0.0, 0.3]], np.float32)
    began = time.perf_counter()
    for _ in range(steps):
        env.step(action)
    print(f"lock-step: {steps / (time.perf_counter() - began):.0f} steps/s over the wire")
    env.close()


def cycle(folder: Path, number: int) -> tuple[str, str, int, float]:
    """One start and stop; the fault, what was wrong with how it was handled, survivors, seconds to stop."""
    kind = random.Random(number).choice(list(FAULTS))
    arguments = ("--track", "harbour", "--fault", kind) if kind else ()
    spec = SimulatorSpec(
        arguments=arguments,
        heartbeat_seconds=1.0,
        hung_seconds=4.0,
        grace_seconds=1.0,
        restarts=0,
        start_seconds=120.0,
    )
    handles: list[SimulatorProcess] = []

    def start(wanted: SimulatorSpec) -> SimulatorProcess:
        handles.append(SimulatorProcess(wanted, folder))
        return handles[-1]

    supervisor = SimulatorSupervisor(spec, start)
    supervisor.start()
    port, problem = supervisor.addresses.control, ""
    with PORTS_LOCK:
        if port in PORTS:
            problem = f"port {port} is used twice"
        PORTS.add(port)
    while FAULTS[kind] is not None:
        try:
            supervisor.check()
            time.sleep(0.05)
        except LostError:
            break
    began = time.perf_counter()
    left = supervisor.stop()
    took = time.perf_counter() - began
    with PORTS_LOCK:
        PORTS.discard(port)
    found = supervisor.last_failure.cause if supervisor.last_failure else None
    if found is not FAULTS[kind]:
        problem = f"{kind} was named {found}"
    survivors = left + sum(len(carrying(f"{MARK}={handle.mark}")) for handle in handles)
    return str(kind), problem, survivors, took


def cycles(count: int, at_once: int) -> None:
    """Many cycles, several at once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cycle(folder, 0)
        me = psutil.Process()
        files, children = me.num_fds(), len(me.children())
        began = time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            results = list(pool.map(lambda number: cycle(folder, number), range(count)))
        seconds = time.perf_counter() - began
        print(f"{count} cycles, {at_once} at once, {seconds:.0f} s: {dict(Counter(kind for kind, *_ in results))}")
        print(
            f"survivors {sum(survivors for _, _, survivors, _ in results)}, "
            f"wrong names and port clashes {[problem for _, problem, *_ in results if problem]}, "
            f"descriptors {me.num_fds() - files:+d}, children {len(me.children()) - children:+d}, "
            f"slowest stop {max(took for *_, took in results):.1f} s"
        )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=40)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args(arguments)
    cost(options.seconds)
    lockstep(2000)
    cycles(options.cycles, options.at_once)


if __name__ == "__main__":
    main(sys.argv[1:])
