"""A watch through random faults of a real API server: how long until what is shown is again what kubectl says.

Faults, drawn for each round: connections cut; refused; frozen on the way; the server stopped in its tracks
(SIGSTOP); killed (SIGKILL) and started again; killed while etcd is compacted, so that every watch gets 410; the
login's token expired and the connections cut. Meanwhile pods, runs and a node change. After each round nodes, pods
and runs are compared with ``kubectl get -o json`` field by field; the time counts from the moment when the server
answers again. All of it with the waits of the real program, through a login plugin whose tokens live for seconds.

It breaks the cluster that it is given: one that nobody else needs, its folder in L2R_CLUSTER_DIR, best in
a network namespace. What it stops it starts again.

    KUBECONFIG=… L2R_CLUSTER_DIR=… python -m tests.bench.kubernetes_faults [--rounds 100] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from l2rtui.backends.kubernetes.api.client import Api, connect
from l2rtui.backends.kubernetes.api.errors import ApiError
from tests.cluster.faults import Proxy, compact, proxied
from tests.cluster.following import Disturbance, Follower, following

FAULTS = ("cut", "cut", "refuse", "refuse", "freeze", "stop", "kill", "kill", "expire", "expire", "token")
MOST_SECONDS = 5.0
READY_SECONDS = 120.0
PLUGIN = """
import base64, json, subprocess, sys, time
key, subject, uid, log = sys.argv[1:]
def packed(part): return base64.urlsafe_b64encode(part).rstrip(b"=")
now = time.time()
life = 12
namespace, name = subject.split("/")
claims = {
    "iss": "https://kubernetes.default.svc", "aud": ["https://kubernetes.default.svc"],
    "sub": f"system:serviceaccount:{namespace}:{name}", "iat": int(now) - 600, "nbf": int(now) - 600,
    "exp": int(now) + life - 60,  # the server forgives a minute
    "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}},
}
head = json.dumps({"alg": "RS256"}).encode()
text = packed(head) + b"." + packed(json.dumps(claims).encode())
signed = subprocess.run(["openssl", "dgst", "-sha256", "-sign", key], input=text, capture_output=True, check=True)
token = (text + b"." + packed(signed.stdout)).decode()
status = {"token": token}
with open(log, "a+") as file:
    file.seek(0)
    if len(file.readlines()) % 2:  # every second one says when it expires; of the others one must find out
        status["expirationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + life))
    file.write(token + chr(10))
api = "client.authentication.k8s.io/v1beta1"
print(json.dumps({"apiVersion": api, "kind": "ExecCredential", "status": status}))
"""


@dataclass
class Server:
    """The API server process of a test cluster."""

    folder: Path
    argv: list[str] = field(default_factory=list)
    _child: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.argv = (Path("/proc") / str(self.pid) / "cmdline").read_text().rstrip("\0").split("\0")
        assert "kube-apiserver" in self.argv[0], self.argv

    @property
    def pid(self) -> int:
        """Its process."""
        return int((self.folder / "pid/apiserver").read_text())

    async def kill(self) -> None:
        """End it as a crash does."""
        os.kill(self.pid, signal.SIGKILL)
        if self._child is not None:
            await asyncio.to_thread(self._child.wait)
        while Path(f"/proc/{self.pid}").exists():
            await asyncio.sleep(0.02)

    def start(self) -> None:
        """Start it again as it was."""
        with (self.folder / "log/apiserver.log").open("ab") as log:
            self._child = subprocess.Popen(
                self.argv, cwd=self.folder / "pki", stdout=log, stderr=log, start_new_session=True
            )
        (self.folder / "pid/apiserver").write_text(f"{self._child.pid}\n")

    def let_go(self) -> None:
        """Let it go on when this process ends, wherever the rounds were."""
        if not Path(f"/proc/{self.pid}/cmdline").exists():
            self.start()
        os.kill(self.pid, signal.SIGCONT)
        if self._child is not None:
            self._child.returncode = 0  # else its end would warn of a child that still runs

    async def answers(self, kubeconfig: str) -> None:
        """Wait until it says that it is ready."""
        words = ("kubectl", "--kubeconfig", kubeconfig, "--request-timeout=5s", "get", "--raw", "/readyz")
        async with asyncio.timeout(READY_SECONDS):
            while True:
                asked = await asyncio.create_subprocess_exec(
                    *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                if await asked.wait() == 0:
                    return
                await asyncio.sleep(0.05)

    async def listens(self) -> None:
        """Wait until it accepts connections, ready or not."""
        port = int(self.argv[self.argv.index("--secure-port") + 1])
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                await writer.wait_closed()
                return
            await asyncio.sleep(0.02)


@dataclass
class Tally:
    """What came out."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    relists: Counter[str] = field(default_factory=Counter)


class Rounds:
    """Everything that a round needs."""

    def __init__(
        self, server: Server, admin: str, api: Api, proxy: Proxy, tokens: Path, dice: random.Random
    ) -> None:
        self.server, self.admin, self.api, self.proxy, self.tokens = server, admin, api, proxy, tokens
        self.dice = dice

    async def breaks(self, fault: str, disturbance: Disturbance) -> None:
        """One fault, with changes meanwhile; returns when the server answers again."""
        changes = [disturbance.once for _ in range(self.dice.randint(1, 5))]
        match fault:
            case "cut":
                await _all(changes)
                self.proxy.cut()
            case "refuse":
                await self.proxy.refuse()
                await _all(changes)
                await asyncio.sleep(self.dice.uniform(0, 6))
                await self.proxy.open()
            case "freeze":
                self.proxy.freeze()
                await _all(changes)
                await asyncio.sleep(self.dice.uniform(0, 4))
                self.proxy.thaw()
            case "stop":
                os.kill(self.server.pid, signal.SIGSTOP)
                changing = asyncio.create_task(_all(changes))
                await asyncio.sleep(self.dice.uniform(0, 6))
                os.kill(self.server.pid, signal.SIGCONT)
                await changing
            case "kill" | "expire":
                await self._restart(changes, is_compacted=fault == "expire")
            case "token":
                await self._token_refused()
                await _all(changes)
                self.proxy.cut()
        await self.server.answers(self.admin)

    async def _restart(self, changes: list[Any], *, is_compacted: bool) -> None:
        if is_compacted:  # nobody follows these changes, and after the restart nobody remembers them
            await self.proxy.refuse()
        await _all(changes)
        if is_compacted:
            await asyncio.to_thread(compact)
        await self.server.kill()
        await self.proxy.refuse()  # nothing listens
        await asyncio.sleep(self.dice.uniform(0, 3))
        self.server.start()
        await self.server.listens()
        await self.proxy.open()

    async def _token_refused(self) -> None:
        """Wait until the server refuses the newest token of the plugin."""
        cluster = yaml.safe_load(Path(self.admin).read_text())["clusters"][0]["cluster"]
        words = ("kubectl", "--kubeconfig=/dev/null", f"--server={cluster['server']}", "--insecure-skip-tls-verify")
        token = self.tokens.read_text().splitlines()[-1]
        async with asyncio.timeout(READY_SECONDS):
            while True:
                asked = await asyncio.create_subprocess_exec(
                    *words,
                    f"--token={token}",
                    "get",
                    "--raw",
                    "/api",
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
                _, said = await asked.communicate()
                if b"provide credentials" in said or b"Unauthorized" in said:
                    return
                await asyncio.sleep(0.5)


async def _all(changes: list[Any]) -> None:
    for change in changes:
        await change()


async def bench(rounds: int, seed: int, faults: tuple[str, ...], tally: Tally) -> None:
    """Run the rounds."""
    admin = os.environ["KUBECONFIG"]
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: tally.troubles.append(str(context)))
    warnings.simplefilter("always", ResourceWarning)
    warnings.showwarning = lambda text, *place, **_: tally.troubles.append(f"{text} ({place[1]}:{place[2]})")
    sys.unraisablehook = lambda what: tally.troubles.append(repr(what.exc_value))
    dice, place = random.Random(seed), f"a-faults-{uuid.uuid4().hex[:6]}"
    server, api = Server(Path(os.environ["L2R_CLUSTER_DIR"])), await connect(kubeconfig=admin)
    try:
        with tempfile.TemporaryDirectory() as folder:
            async with (
                _login(api, place, server.folder / "pki/sa.key", Path(folder), admin) as kubeconfig,
                proxied(kubeconfig, Path(folder)) as (proxy, through),
                following(through, namespaces=(place,)) as follower,
            ):
                one = Rounds(server, admin, api, proxy, Path(folder) / "tokens", dice)
                disturbance = Disturbance(api, place, dice)
                for number in range(rounds):
                    fault = dice.choice(faults)
                    before = _lists(follower)
                    await one.breaks(fault, disturbance)
                    spent = await follower.until_true(admin, place, 60)
                    tally.relists[fault] += _lists(follower) - before
                    tally.seconds.setdefault(fault, []).append(spent)
                    line = f"round {number} {fault:7} {spent:5.2f} s"
                    print(line, flush=True)
                    if spent > MOST_SECONDS:
                        tally.late.append(line)
            fetched = len((Path(folder) / "tokens").read_text().splitlines())
        await api.close()
    finally:
        server.let_go()
    await asyncio.sleep(0.1)
    gc.collect()
    print(f"the plugin has made {fetched} tokens")


def _lists(follower: Follower) -> int:
    return sum(one.lists for one in follower.feed._reflectors)


@asynccontextmanager
async def _login(api: Api, place: str, key: Path, folder: Path, admin: str) -> AsyncIterator[str]:
    """A namespace, an account in it that may read everything, and a kubeconfig whose plugin signs its tokens."""
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "watcher", "namespace": place}}
    subprocess.run(
        ["kubectl", "apply", "-f", "-"], input=json.dumps(account).encode(), check=True, capture_output=True
    )
    async with asyncio.timeout(READY_SECONDS):  # without it no pod can be made, and somebody else makes it
        while subprocess.run(
            ["kubectl", "get", "serviceaccount", "-n", place, "default"], check=False, capture_output=True
        ).returncode:
            await asyncio.sleep(0.2)
    words = ["get", "serviceaccount", "-n", place, "watcher", "-o", "jsonpath={.metadata.uid}"]
    uid = subprocess.run(["kubectl", *words], check=True, capture_output=True, text=True).stdout
    bind = [
        "create",
        "clusterrolebinding",
        place,
        "--clusterrole=cluster-admin",
        f"--serviceaccount={place}:watcher",
    ]
    subprocess.run(["kubectl", *bind], check=True, capture_output=True)
    plugin = folder / "plugin.py"
    plugin.write_text(PLUGIN)
    config = yaml.safe_load(Path(admin).read_text())
    arguments = [str(plugin), str(key), f"{place}/watcher", uid, str(folder / "tokens")]
    config["users"][0]["user"] = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "command": sys.executable,
            "args": ["-S", *arguments],
        }
    }
    path = folder / "plugin.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    try:
        yield str(path)
    finally:
        subprocess.run(["kubectl", "delete", "clusterrolebinding", place], check=False, capture_output=True)
        with contextlib.suppress(ApiError):
            await api.delete("Namespace", None, place)


def main(words: list[str]) -> None:
    """Print the figures; fail when something was late or raised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--faults", default=",".join(FAULTS))
    asked = parser.parse_args(words)
    began = time.monotonic()
    tally = Tally()
    with contextlib.suppress(KeyboardInterrupt):  # what was found until then counts
        asyncio.run(bench(asked.rounds, asked.seed, tuple(asked.faults.split(",")), tally))
    done = sum(len(spent) for spent in tally.seconds.values())
    print(f"seed {asked.seed}: {done} of {asked.rounds} rounds in {time.monotonic() - began:.0f} s")
    for fault, spent in sorted(tally.seconds.items()):
        print(
            f"{fault:7} {len(spent):3} rounds: median {statistics.median(spent):.2f} s, longest "
            f"{max(spent):.2f} s, {tally.relists[fault]} lists again"
        )
    print(f"later than {MOST_SECONDS:.0f} s: {len(tally.late)}; exceptions and warnings: {len(tally.troubles)}")
    for line in (*tally.late, *tally.troubles):
        print(f"  {line}")
    if tally.late or tally.troubles:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
