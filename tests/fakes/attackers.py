"""Attackers of a TCP port: connections that are silent, drip, send garbage, use another token, or replay.

None of them may end a service, move it, or get an answer that is not public.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import zmq

from tests.fakes.abuse import almost, dealer_of, noise

EACH = "L2R_ATTACKERS_EACH"
REPORT = "L2R_ATTACKERS_REPORT"
AT_ONCE = 60
"""Open connections of each kind, limited so that the machine's limit of descriptors does not end the test."""
NOBODY = 65_534
_OTHER_USER = """
import encodings.idna, json, os, socket, sys  # all before it may read no library any more
order = json.loads(sys.argv[1])
os.setgroups([])
os.setgid(order["user"])
os.setuid(order["user"])
result = {"connections": 0, "answered": [], "read": [], "joined": []}
held = []
for count in range(order["number"] + order["at_once"]):
    if count < order["number"]:
        try:
            stream = socket.create_connection(("127.0.0.1", order["port"]), 5)
            result["connections"] += 1
            stream.settimeout(0.05)
            held.append(stream)
            stream.sendall(bytes.fromhex(order["data"]))
        except OSError:
            pass
    if held and (count >= order["number"] or len(held) > order["at_once"]):
        with held.pop(0) as stream:
            stream.settimeout(0.05 if count >= order["number"] else 0)
            try:
                while block := stream.recv(65536):
                    result["answered"].append(block.hex())
            except OSError:
                pass
for path in order["files"]:
    try:
        with open(path, "rb") as file:
            result["read"].append([path, file.read(100).hex()])
    except OSError:
        pass
for path in order["sockets"]:
    with socket.socket(socket.AF_UNIX) as stream:
        try:
            stream.connect(path)
            result["joined"].append(path)
        except OSError:
            pass
print(json.dumps(result))
"""


def each(usual: int) -> int:
    """Return how many connections of each kind to make: the usual number, or the bench's."""
    return int(os.environ.get(EACH, usual))


def report(target: str, *counts: Counter[str]) -> None:
    """Add the numbers of connections by their kind to the bench's file, if the bench runs us."""
    if path := os.environ.get(REPORT):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"target": target, "done": sum(counts, Counter())}) + "\n")


class Attackers:
    """Attackers of one port on this machine.

    Args:
        recorded: Data sent by a valid client in another session; replayed here.

    Attributes:
        done: Number of connections by kind of attack.
        answers: All bytes sent to any of them.
    """

    def __init__(self, port: int, recorded: bytes, trap: str = "/nonexistent/trap", seed: int = 1) -> None:
        self.done: Counter[str] = Counter()
        self.answers = b""
        self._port, self._recorded, self._trap = port, recorded, trap
        self._random = random.Random(seed)
        self._noise = noise(self._random, trap)
        self._open: list[socket.socket] = []
        self._peers: list[zmq.Socket[bytes]] = []

    def attack(self, number: int) -> None:
        """Open this many connections of each kind, in turn, and close them all."""
        with zmq.Context() as context:
            acts: tuple[Callable[[], None], ...] = (
                self._be_silent,
                self._drip,
                self._send_garbage,
                self._replay,
                lambda: self._join(context, None),
                lambda: self._join(context, "another token"),
            )
            try:
                for count in range(number * len(acts)):
                    acts[count % len(acts)]()
                    self._close_down_to(AT_ONCE, patience_seconds=0.0)  # they had the time of all later ones
            finally:
                self._close_down_to(0, patience_seconds=0.01)

    def attack_as_another_user(self, number: int, files: list[str], sockets: list[str]) -> dict:
        """Do it as a user without rights, who also tries to read files and join sockets; return the outcome."""
        order: dict[str, object] = {"user": NOBODY, "number": number, "at_once": AT_ONCE, "port": self._port}
        order |= {"data": self._recorded.hex(), "files": files, "sockets": sockets}
        words = [sys.executable, "-c", _OTHER_USER, json.dumps(order)]
        output = subprocess.run(words, capture_output=True, check=True, timeout=120 + number)
        result = json.loads(output.stdout)
        self.done["other user"] += result["connections"]
        self.answers += b"".join(bytes.fromhex(answer) for answer in result["answered"])
        return result

    def _be_silent(self) -> None:
        if self._connect() is not None:
            self.done["silent"] += 1

    def _drip(self) -> None:
        if (stream := self._connect()) is not None:
            self.done["drip"] += 1
            self._send(stream, self._random.choice([b"G", b"\xff", bytes(9), self._recorded[:5]]))
        for older in self._open:
            self._send(older, b"x")

    def _send_garbage(self) -> None:
        if (stream := self._connect()) is not None:
            self.done["garbage"] += 1
            self._send(stream, next(self._noise))

    def _replay(self) -> None:
        if (stream := self._connect()) is not None:
            self.done["replay"] += 1
            self._send(stream, self._recorded)

    def _join(self, context: zmq.Context[zmq.Socket[bytes]], token: str | None) -> None:
        """Connect as a peer of ZeroMQ, and send a peer's messages."""
        self.done[token or "no token"] += 1
        dealer = dealer_of(context, self._port, token)
        self._peers.append(dealer)
        with contextlib.suppress(zmq.Again):
            dealer.send_multipart([b"12345678", b"read", b"l2r/elastic/test-1"], zmq.NOBLOCK)
            dealer.send_multipart(almost(self._random, self._trap), zmq.NOBLOCK)

    def _connect(self) -> socket.socket | None:
        try:
            stream = socket.create_connection(("127.0.0.1", self._port), timeout=5)
        except OSError:
            return None
        stream.settimeout(0.01)
        self._open.append(stream)
        return stream

    def _send(self, stream: socket.socket, data: bytes) -> None:
        with contextlib.suppress(OSError):
            stream.sendall(data)

    def _close_down_to(self, number: int, patience_seconds: float) -> None:
        """Close the oldest connections of each kind, and keep the data they received."""
        while len(self._open) > number:
            with self._open.pop(0) as stream, contextlib.suppress(OSError):
                stream.settimeout(patience_seconds)
                while block := stream.recv(65_536):
                    self.answers += block
        while len(self._peers) > number:
            with self._peers.pop(0) as dealer:
                while dealer.poll(round(1000 * patience_seconds)):
                    self.answers += b"".join(dealer.recv_multipart())


@contextlib.contextmanager
def recording(port: int) -> Iterator[tuple[int, bytearray]]:
    """Relay one connection to a port; yield the port of the relay, and the data that the client sends."""
    sent = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        thread = threading.Thread(target=_relay, args=(listener, port, sent), daemon=True)
        thread.start()
        yield listener.getsockname()[1], sent
    thread.join(60)


def _relay(listener: socket.socket, port: int, sent: bytearray) -> None:
    with contextlib.suppress(OSError):
        client, _ = listener.accept()
        with client, socket.create_connection(("127.0.0.1", port), timeout=60) as server:
            back = threading.Thread(target=_copy, args=(server, client, bytearray()), daemon=True)
            back.start()
            _copy(client, server, sent)
            back.join(60)


def _copy(source: socket.socket, target: socket.socket, seen: bytearray) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(65_536):
            seen += block
            target.sendall(block)
    for stream in (source, target):
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)


def is_root() -> bool:
    """Return True if this process may become another user."""
    return os.geteuid() == 0
