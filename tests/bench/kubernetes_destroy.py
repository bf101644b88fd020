"""Destroys under injected faults, each receipt checked by kubectl: how many wrongly said "0 left".

Faults, drawn for each round: requests that are refused or whose answers are lost, finalizers on pods (released
while the destroy waits, or never), a launch that is still creating, a client that is killed and started again.

    KUBECONFIG=... python -m tests.bench.kubernetes_destroy [ROUNDS [SEED [SECONDS]]]

No round starts after SECONDS.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from l2rtui.backends.kubernetes.actions.destroy import OVERTIME_SECONDS, destroy
from l2rtui.backends.kubernetes.api.client import Api, connect
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.snapshot import RunView
from l2rtui.errors import NotFoundError
from tests.cluster.handmade import Run, faulty, namespace

AT_ONCE = 16
HOLD = "l2r.test/hold"
STUCK_SECONDS = 6.0
"""Wait for pods that a finalizer holds permanently; all others get the users' default."""
KINDS = "pods,rs,jobs,statefulsets,svc,cm,secret,endpoints,endpointslices,lease,pvc"


@dataclass
class Tally:
    """Results."""

    rounds: int = 0
    false_zero: list[str] = field(default_factory=list)
    needless: list[str] = field(default_factory=list)
    zero: int = 0
    listed: int = 0
    killed: int = 0
    seconds: list[float] = field(default_factory=list)


async def kubectl_finds(run: Run) -> list[str]:
    """Every object of a run seen by an independent client."""
    process = await asyncio.create_subprocess_exec(
        "kubectl", "get", KINDS, "-n", run.namespace, "-o", "json", stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    found = []
    for one in json.loads(out)["items"]:
        meta = one["metadata"]
        owners = [owner.get("uid") for owner in meta.get("ownerReferences") or []]
        if run.run_id in json.dumps(meta) or run.uid in owners or meta["name"].startswith(f"{run.name}-"):
            found.append(f"{one['kind']} {meta['name']}")
    return found


async def destroyed(api: Api, view: RunView, overtime_seconds: float) -> Receipt | None:
    """The receipt of one destroy; None if there was nothing to destroy."""
    receipt = None
    while receipt is None:
        try:
            async with aclosing(
                destroy(ClusterContext(api), view, grace_seconds=1, overtime_seconds=overtime_seconds)
            ) as items:
                async for item in items:
                    receipt = item if isinstance(item, Receipt) else receipt
        except NotFoundError:
            return None
        except ApiError as error:  # it says that the server fails, and a person asks again
            if error.is_final:
                raise
    return receipt


async def let_go(api: Api, run: Run, seconds: float) -> None:
    """Remove the finalizers after a while."""
    await asyncio.sleep(seconds)
    for pod in await api.list("Pod", run.namespace, labels=f"l2rtui.io/run-id={run.run_id}"):
        try:
            await api.patch("Pod", run.namespace, pod["metadata"]["name"], {"metadata": {"finalizers": None}})
        except ApiError as error:
            if not error.is_not_found:
                raise


async def killed_client(run: Run, rate: float, seed: int, seconds: float) -> None:
    """A destroy in a separate process, killed in the middle."""
    words = [run.namespace, run.name, run.run_id, str(rate), str(seed)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.kubernetes_destroy", "one", *words, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    await asyncio.sleep(seconds)
    if process.returncode is None:
        process.kill()
    await process.wait()


async def one_round(good: Api, place: str, number: int, seed: int, tally: Tally) -> None:
    """Create, break, destroy, and compare the receipt with kubectl."""
    dice = random.Random(seed * 100_003 + number)
    run = Run(place, f"r{number}", dice.choice(("phortx1", "phortx2", "phortx3")))
    fault = dice.choice(("plain", "held", "stuck", "creating", "killed"))
    rate = dice.choice((0.0, 0.1, 0.3, 0.5))
    template: dict[str, Any] = {"annotations": {"l2r.fake/log-rate": "0", "l2r.fake/stop": str(dice.uniform(0, 1))}}
    if fault in ("held", "stuck"):
        template["finalizers"] = [HOLD]
    await run.create_head(good)
    await run.claim(good, 10 + number % 1000)
    manifests = run.manifests(dice.randint(1, 3), dice.randint(1, 3), template)
    helpers: list[asyncio.Task[None]] = []

    async def create() -> None:
        for manifest in manifests:
            await good.create(manifest)
            if fault == "creating":
                await asyncio.sleep(dice.uniform(0, 0.15))

    creating = asyncio.create_task(create())
    if fault == "creating":
        await asyncio.sleep(dice.uniform(0, 0.3))
    else:
        await creating
    if fault == "held":
        helpers.append(asyncio.create_task(let_go(good, run, dice.uniform(0.5, 4))))
    if fault == "killed":
        await killed_client(run, rate, number, dice.uniform(0, 1.5))
        tally.killed += 1
    bad = await faulty(rate, number)
    began = time.monotonic()
    receipt = await destroyed(bad, run.view, STUCK_SECONDS if fault == "stuck" else OVERTIME_SECONDS)
    found = await kubectl_finds(run)
    tally.rounds += 1
    tally.seconds.append(time.monotonic() - began)
    says_zero = receipt is None or not receipt.left
    if says_zero:
        tally.zero += 1
    else:
        tally.listed += 1
    if receipt and receipt.left and fault != "stuck":
        tally.needless.append(f"round {number} ({fault}, {rate}), kubectl sees {len(found)}: {receipt.sentence}")
    if says_zero and found:
        tally.false_zero.append(f"round {number} ({fault}, {rate}): {', '.join(found)}")
    await asyncio.gather(creating, *helpers)
    await bad.close()
    await let_go(good, run, 0)
    if not says_zero:
        await destroyed(good, run.view, OVERTIME_SECONDS)


async def bench(rounds: int, seed: int, seconds: float = 3600.0) -> Tally:
    """Run the rounds, some of them in parallel."""
    good = await connect()
    tally = Tally()
    numbers = iter(range(rounds))
    until = time.monotonic() + seconds
    async with namespace(good, "c-bench") as place:

        async def work() -> None:
            for number in numbers:
                if time.monotonic() > until:
                    return
                await one_round(good, place, number, seed, tally)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    await good.close()
    return tally


async def one(words: list[str]) -> None:
    """Run the process that is killed."""
    place, name, run_id, rate, seed = words
    api = await faulty(float(rate), int(seed))
    print("began", flush=True)
    await destroyed(api, RunView(run_id, name, name, namespace=place), OVERTIME_SECONDS)
    await api.close()


def main(words: list[str]) -> None:
    """Print the figures; fail on a false receipt."""
    if words[:1] == ["one"]:
        asyncio.run(one(words[1:]))
        return
    rounds = int(words[0]) if words else 300
    seed = int(words[1]) if len(words) > 1 else random.SystemRandom().randrange(1_000_000)
    seconds = float(words[2]) if len(words) > 2 else 3600.0
    tally = asyncio.run(bench(rounds, seed, seconds))
    spent = sorted(tally.seconds)
    print(
        f"seed {seed}: {tally.rounds} destroys, {tally.zero} receipts with 0 left, {tally.listed} with leftovers,"
    )
    print(f"{tally.killed} clients killed; median {spent[len(spent) // 2]:.1f} s, longest {spent[-1]:.1f} s")
    print(f"false '0 left': {len(tally.false_zero)}")
    for line in (*tally.false_zero, *(f"leftovers: {one}" for one in tally.needless)):
        print(f"  {line}")
    if tally.false_zero:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
