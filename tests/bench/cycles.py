"""What launching and destroying costs, and whether anything stays: ``python -m tests.bench.cycles --cycles 200``.

Each cycle launches six pods on this machine, waits until all run, and destroys them. Processes, descriptors and
files are counted before and after by psutil and by the file system, not by the backend's own books.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

import psutil

from l2rtui.backends.local.backend import LocalBackend
from l2rtui.config import Settings
from l2rtui.domain.placement import place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec

SPEC = RunSpec(
    Kind.LEARNER_WORKERS,
    "cycle",
    "cycle",
    (
        SetSpec("learner", Role.LEARNER, ("sleep", "600")),
        SetSpec("w", Role.WORKER, ("sleep", "600"), replicas=4),
        SetSpec("eval", Role.EVALUATOR, ("sleep", "600")),
    ),
)


async def cycle(backend: LocalBackend) -> tuple[float, float, float]:
    """Seconds to launch, seconds to destroy, resident MiB of the supervisor."""
    snapshot = await backend.snapshot()
    plan = plan_launch(
        [SPEC], place([SPEC], snapshot.ledger), snapshot.nodes, owner="bench", uids=[uuid.uuid4().hex]
    )
    began = time.perf_counter()
    async for done in backend.launch(plan):
        assert not done.error, done
    snapshot = await backend.snapshot()
    assert sum(pod.ready for pod in snapshot.pods.values()) == 6
    launched = time.perf_counter()
    parents = {psutil.Process(pod.pid).parent() for pod in snapshot.pods.values()}
    (supervisor,) = parents
    resident = supervisor.memory_info().rss / 2**20
    stopping = time.perf_counter()
    run = snapshot.run_named("cycle")
    assert run is not None
    receipt = [item async for item in backend.destroy(run)][-1]
    assert isinstance(receipt, Receipt)
    assert not receipt.left, receipt.sentence
    return launched - began, time.perf_counter() - stopping, resident


def marked(state: Path) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(state) in value for value in process.environ().values()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


async def measure(cycles: int) -> None:
    with tempfile.TemporaryDirectory(prefix="l2rtui-bench-") as folder:
        state = Path(folder) / "local"
        backend = LocalBackend(Settings(), state=state)
        await cycle(backend)
        gc.collect()
        me = psutil.Process()
        files, children, temporary = me.num_fds(), len(me.children()), set(Path(tempfile.gettempdir()).iterdir())
        results = [await cycle(backend) for _ in range(cycles)]
        gc.collect()
        launch, destroy, resident = zip(*results, strict=True)
        for name, values in (("launch to all Running", launch), ("destroy to receipt", destroy)):
            ordered = sorted(values)
            print(
                f"{name}: median {1000 * statistics.median(ordered):.0f} ms, "
                f"p95 {1000 * ordered[int(0.95 * len(ordered))]:.0f} ms"
            )
        print(f"supervisor: {statistics.median(resident):.1f} MiB resident")
        sockets = set(Path(tempfile.gettempdir()).glob("l2r-*")) - temporary
        paths = sorted(path.name for path in state.rglob("*"))
        print(
            f"left after {cycles} cycles of 6 pods: {len(marked(state))} processes, "
            f"{len(me.children()) - children} children, {me.num_fds() - files} descriptors, "
            f"{len(sockets)} socket folders, state folder {paths}, leaks {await backend.leaks()}"
        )
        await backend.close()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=20)
    asyncio.run(measure(parser.parse_args(arguments).cycles))


if __name__ == "__main__":
    main(sys.argv[1:])
