"""Breaks a running exchange at random, many times, and compares sent and stored segments one by one."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from runtime.base import contract
from runtime.exchange.transport import curve_keys

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """A free port whose three successors are free too, below the ports that the system gives to connections."""
    while True:
        port = random.randrange(12_000, 32_000)
        try:
            for offset in range(4):
                with socket.socket() as listener:
                    listener.bind(("127.0.0.1", port + offset))
        except OSError:
            continue
        return port


class Proxy:
    """Proxy between workers and learner on one port; corrupts data on request."""

    def __init__(self, port: int, target: Callable[[], int]) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", port), backlog=64)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.flips = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target()), timeout=5)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            source.settimeout(None)
            while data := source.recv(1 << 16):
                if self.flips and len(data) > 256:
                    self.flips -= 1
                    at = random.randrange(len(data))
                    data = data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
                sink.sendall(data)
        except OSError:
            pass
        self._end(source, sink)

    def _end(self, *streams: socket.socket) -> None:
        for stream in streams:
            with self._lock:
                self._open.discard(stream)
            try:
                stream.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            stream.close()

    def cut(self) -> None:
        with self._lock:
            streams = list(self._open)
        for stream in streams:
            try:
                stream.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self._server.close()
        self.cut()


class Siege:
    """One learner, some workers, and the faults inflicted on them."""

    def __init__(self, folder: Path, workers: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.done: Counter[str] = Counter()
        self.aborts = 0
        (folder / "keys").mkdir()
        for name, content in curve_keys.make_files().items():
            (folder / "keys" / name).write_bytes(content)
        (folder / "token").write_text("a shared secret")
        self.front, self.back = free_port(), free_port()
        self.proxies = [Proxy(self.front + offset, lambda offset=offset: self.back + offset) for offset in range(2)]
        self.count = 0
        self.learner = self._start("learner", 0)
        self.workers = {index: self._start("worker", index) for index in range(workers)}
        self.twins: dict[int, list[subprocess.Popen[bytes]]] = {index: [] for index in self.workers}
        """Processes of a pod for which a second one was started."""

    def _start(self, role: str, index: int) -> subprocess.Popen[bytes]:
        self.count += 1
        port = self.back if role == "learner" else self.front
        environ = {
            **os.environ,
            contract.ENV_RUN: "siege",
            contract.ENV_RUN_ID: "siege-1",
            contract.ENV_POD: f"{role[0]}-{index}",
            contract.ENV_ENDPOINT: f"tcp://127.0.0.1:{port}",
            contract.ENV_KEYS: str(self.folder / "keys"),
            contract.ENV_TOKEN_FILE: str(self.folder / "token"),
            contract.ENV_DIR: str(self.folder),
        }
        with (self.folder / f"{role}-{index}.{self.count}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.fakes.exchange_ends", role, str(index)],
                cwd=ROOT,
                env=environ,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    # --- faults ---
    def kill_worker(self) -> None:
        index = self.random.choice(list(self.workers))
        self.workers[index].kill()
        self.workers[index].wait()
        self.workers[index] = self._start("worker", index)

    def stop_worker(self) -> None:
        victim = self.workers[self.random.choice(list(self.workers))]
        victim.send_signal(signal.SIGSTOP)
        time.sleep(self.random.choice([0.05, 0.2]))
        victim.send_signal(signal.SIGCONT)

    def stop_learner(self) -> None:
        self.learner.send_signal(signal.SIGSTOP)
        time.sleep(self.random.choice([0.05, 0.2]))
        self.learner.send_signal(signal.SIGCONT)

    def duplicate_worker(self) -> None:
        index = self.random.choice(list(self.workers))
        self.twins[index].append(self.workers[index])
        self.workers[index] = self._start("worker", index)

    def kill_learner(self) -> None:
        self.learner.kill()
        self.learner.wait()
        self.back = free_port()  # it restarts at another address
        self.learner = self._start("learner", 0)
        for proxy in self.proxies:
            proxy.cut()

    def cut(self) -> None:
        self.random.choice(self.proxies).cut()

    def corrupt(self) -> None:
        self.random.choice(self.proxies).flips += 1

    WEIGHTS: ClassVar = {
        "cut": 40,
        "corrupt": 40,
        "stop_worker": 8,
        "stop_learner": 4,
        "kill_worker": 4,
        "duplicate_worker": 2,
    }

    def revive(self) -> None:
        """Restart workers that libzmq has ended, like a launcher.

        libzmq 4.3.5 asserts (stream_engine_base.cpp, !_io_error) at a connecting end when certain bytes of a CURVE
        handshake are damaged; the worker dies of SIGABRT and its segments count as lost or missing.
        """
        for index, process in self.workers.items():
            if process.poll() == -signal.SIGABRT:
                self.aborts += 1
                self.workers[index] = self._start("worker", index)

    def strike(self, *, kill_learner: float = 0.02) -> None:
        """Inflict one random fault."""
        name = self.random.choices(list(self.WEIGHTS), list(self.WEIGHTS.values()))[0]
        name = "kill_learner" if self.random.random() < kill_learner else name
        getattr(self, name)()
        self.done[name] += 1
        time.sleep(self.random.uniform(0.0, 0.05))

    # --- invariants ---
    def saved(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / "saved.json").read_bytes()))
        except FileNotFoundError:
            return {"runs": [], "accounts": {"accounts": []}}

    @staticmethod
    def stored(saved: dict[str, Any]) -> Counter[tuple[int, int]]:
        """Return the number of stored segments of each process."""
        counts: Counter[tuple[int, int]] = Counter()
        for pod, born, first, last in saved["runs"]:
            counts[pod, born] += last - first + 1
        return counts

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float = 90.0) -> float:
        began = time.monotonic()
        while not condition():
            self.revive()
            assert time.monotonic() - began < seconds, f"{what}: not within {seconds} s"
            assert self.learner.poll() is None, "the learner died by itself"
            time.sleep(0.05)
        return time.monotonic() - began

    def moves(self) -> float:
        """Wait until every worker's segments arrive again; return the time that took."""
        before = self.stored(self.saved())

        def moved() -> bool:
            now = self.stored(self.saved())
            risen = {pod for (pod, born), count in now.items() if count > before[pod, born]}
            return risen >= set(self.workers)

        return self.wait_for(moved, f"segments of all workers after {dict(self.done)}")

    def settle(self, index: int, twins: list[subprocess.Popen[bytes]]) -> None:
        """Wait until one process of a pod is left, and check that the others were refused.

        Usually the newest stays; not always, since the one that was started first may be the last to be up.
        """
        self.wait_for(lambda: sum(process.poll() is None for process in twins) == 1, f"one process of pod {index}")
        (self.workers[index],) = (process for process in twins if process.returncode is None)
        assert {process.returncode for process in twins} <= {None, contract.EXIT_REFUSED, -signal.SIGABRT}

    def finish(self) -> dict[str, Any]:
        """End the run in order and compare everything."""
        for index, twins in self.twins.items():
            self.settle(index, [*twins, self.workers[index]])
        (self.folder / "stop").touch()
        assert self.learner.wait(60) == contract.EXIT_DONE
        offered: dict[str, int] = {}
        for index, process in self.workers.items():
            assert process.wait(60) == contract.EXIT_DONE, index
        for log in self.folder.glob("worker-*.log"):
            text = log.read_text()
            assert "Traceback" not in text, text
            offered |= {
                line["name"]: line["offered"]
                for line in map(json.loads, (entry for entry in text.splitlines() if entry.startswith("{")))
            }
        saved = self.saved()
        ends: dict[tuple[int, int], int] = {}
        for pod, born, first, last in saved["runs"]:
            assert first > ends.get((pod, born), 0), "a segment was stored twice or out of order"
            ends[pod, born] = last
        stored = Counter({f"w-{pod}@{born}": count for (pod, born), count in self.stored(saved).items()})
        totals: Counter[str] = Counter()
        for account in [*saved["accounts"]["accounts"]]:
            name = account["name"]
            assert account["accepted"] == stored[name], account
            missing = max(0, account["sent"] - account["last_seq"])
            dropped = account["stale"] + account["misfit"] + account["lost"]
            assert account["sent"] == account["accepted"] + dropped + missing, account
            assert not account["misfit"], account
            if name in offered:
                assert account["sent"] == offered[name], (account, offered[name])
            totals.update({key: value for key, value in account.items() if isinstance(value, int)})
            totals["missing"] += missing
        assert len(offered) >= len(self.workers)
        return {"faults": dict(self.done), "aborts": self.aborts, **totals}

    def close(self) -> None:
        for process in (
            self.learner,
            *self.workers.values(),
            *(twin for twins in self.twins.values() for twin in twins),
        ):
            if process.poll() is None:
                process.kill()
            process.wait()
        for proxy in self.proxies:
            proxy.close()
