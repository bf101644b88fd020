"""Abuse of a port by unauthenticated peers: noise, false lengths, pickles, wrong keys, crowds, fuzzing."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pickle
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from runtime.exchange.transport import curve_keys

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + bytes(32)
"""Greeting of a ZMTP 3.0 peer without security: data after it is read as commands and messages."""
READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


keys_of = functools.cache(curve_keys.from_token)  # scrypt makes each derivation expensive


class Trap:
    """A pickle that leaves a trace when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (self.path,)


def noise(rng: random.Random, trap: str) -> Iterator[bytes]:
    """Yield data to send to a TCP port, without end."""
    while True:
        yield rng.randbytes(rng.randrange(1, 4000))
        yield b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n"
        yield pickle.dumps(Trap(trap))
        yield struct.pack(">Q", 2**62) * 8
        yield GREETING + READY + b"\x02" + struct.pack(">Q", 4 * 2**30) + bytes(1000)
        yield GREETING + READY + b"\x03" + struct.pack(">Q", 2**63 - 1)
        yield GREETING + READY + b"\x00\x05hello" + rng.randbytes(500)
        yield GREETING + rng.randbytes(200)


def shout(port: int, data: bytes) -> None:
    """Connect, send the data, and disconnect."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as stream:
        stream.sendall(data)


def headers(token: str, sent: int) -> list[dict[str, Any]]:
    """Headers as sent by a peer, a correct one of each kind."""
    return [
        {"kind": "hello", "protocol": 4, "run": "r", "run_id": "r", "token": token, "role": "worker", "pod": "x"}
        | {"incarnation": 1, "oldest": 1, "environment": "racing", "layout": "obs:f4", "actor_floats": 1}
        | {"segment_transitions": 1},
        {"kind": "traj", "epoch": 1, "seq": 1, "ring": False, "rows": [[1, 0, 0, 0, 0.0, 0.0, 0]]},
        {"kind": "ring", "epoch": 1, "place": "x", "pid": 1, "descriptor": 0}
        | {"slots": 4, "slot_bytes": 8, "nonce": ""},
        {"kind": "ping", "epoch": 1, "sent": sent, "env_steps": 0, "policy_version": 0}
        | {"env_steps_per_second": 0.0},
        {"kind": "get", "token": token, "epoch": 0, "have": 0, "codec": "f4"},
        {"kind": "bye", "epoch": 1, "sent": 0, "reason": "x"},
    ]


def almost(rng: random.Random, trap: str) -> list[bytes]:
    """Frames that look like the protocol's."""
    seeds = [*headers("guess", sent=2**53 - 1), {"kind": "who", "epoch": 1}]
    seed = dict(rng.choice(seeds))
    for _ in range(rng.randrange(3)):
        value = rng.choice([None, -1, 2**70, 1e308, "\x1b[2J", [], {}, True, "x" * 600, [[]], float("nan")])
        seed[rng.choice(list(seed))] = value
    header = bytearray(json.dumps(seed).encode())
    if rng.random() < 0.3:
        header[rng.randrange(len(header))] ^= 1 << rng.randrange(8)
    frames = [bytes(header)]
    if rng.random() < 0.4:
        frames.append(rng.choice([b"", rng.randbytes(64), pickle.dumps(Trap(trap)), bytes(200_000)]))
    return frames if rng.random() < 0.9 else frames * 3


def dealer_of(context: zmq.Context[zmq.Socket[bytes]], port: int, token: str | None) -> zmq.Socket[bytes]:
    """A peer of the socket at this port, with the keys of a token or without."""
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.SNDHWM, 100)
    if token is not None:
        _, mine = keys_of(token)
        dealer.setsockopt(zmq.CURVE_SERVERKEY, mine.server)
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, mine.public)
        dealer.setsockopt(zmq.CURVE_SECRETKEY, mine.secret)
    dealer.connect(f"tcp://127.0.0.1:{port}")
    return dealer


class Fuzzer:
    """A peer that speaks ZeroMQ and sends almost correct messages, or has the wrong keys."""

    def __init__(self, port: int, secret: str | None = None) -> None:
        self.context = zmq.Context()
        self.sockets = [dealer_of(self.context, address_port, secret) for address_port in (port, port + 1)]

    def send(self, rng: random.Random, trap: str) -> None:
        with contextlib.suppress(zmq.Again):
            rng.choice(self.sockets).send_multipart(almost(rng, trap), zmq.NOBLOCK)

    def close(self) -> None:
        for dealer in self.sockets:
            dealer.close()
        self.context.term()


def crowd(port: int, count: int) -> list[socket.socket]:
    """Connections that send nothing."""
    streams = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            streams.append(socket.create_connection(("127.0.0.1", port), timeout=2))
    return streams


def abuse(port: int, seconds: float, trap: str, seed: int = 1, connections: int = 1000) -> dict[str, int]:
    """Do all of it in parallel for this long; return the counts."""
    rng = random.Random(seed)
    chunks = noise(rng, trap)
    done = {"shouts": 0, "messages": 0, "connections": 0}
    fuzzers = [Fuzzer(port), Fuzzer(port, "wrong")]
    idle = crowd(port, connections)
    done["connections"] = len(idle)
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            shout(port + rng.randrange(2), next(chunks))
            done["shouts"] += 1
            for _ in range(20):
                rng.choice(fuzzers).send(rng, trap)
                done["messages"] += 1
    finally:
        for opened in (*idle, *fuzzers):
            opened.close()
    return done
