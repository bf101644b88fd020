"""One other system, from a sender into slots of a receiver: ``python peer_systems.py SYSTEM BYTES SECONDS``.

It stands alone, since each system lives in an environment of its own. The receiver ends with the bytes in slots of
numbers, as ours does; up to 8 messages are on their way. Prints the messages that arrived in a second.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections import deque

import numpy as np

SPAWN = multiprocessing.get_context("spawn")
WINDOW = 8
SLOT_BYTES = 4 * 2**20


class Slots:
    """Where messages end: a few slots, one after the other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = max(2, SLOT_BYTES // size)
        self.view = memoryview(np.ones(self.count * size, dtype=np.uint8))
        self.taken = 0

    def put(self, message) -> None:
        at = self.taken % self.count * self.size
        self.view[at : at + self.size] = message
        self.taken += 1

    def rate(self, seconds: float) -> float:
        """Messages a second once it runs."""
        limit = time.monotonic() + 60
        while self.taken < 20 and time.monotonic() < limit:
            time.sleep(0.01)
        time.sleep(0.2)
        first, began = self.taken, time.perf_counter()
        time.sleep(seconds)
        return (self.taken - first) / (time.perf_counter() - began)


# --- gRPC ---
def grpc_sender(port: int, size: int) -> None:
    import grpc

    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    message = bytes(size)
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        grpc.channel_ready_future(channel).result(30)
        channel.stream_unary("/bench/Put")(itertools.repeat(message))


def grpc_stream(size: int, seconds: float) -> float:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    slots = Slots(size)

    def put(messages, context) -> bytes:
        for message in messages:
            slots.put(message)
        return b""

    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(2), options=options)
    handler = grpc.stream_unary_rpc_method_handler(put)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench", {"Put": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    child = SPAWN.Process(target=grpc_sender, args=(port, size), daemon=True)
    child.start()
    found = slots.rate(seconds)
    child.terminate()
    server.stop(0)
    return found


# --- Arrow Flight ---
def flight_sender(port: int, size: int) -> None:
    import pyarrow as pa
    from pyarrow import flight

    batch = pa.record_batch([pa.array(np.zeros(size, dtype=np.uint8))], names=["bytes"])
    client = flight.connect(f"grpc://127.0.0.1:{port}")
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("bench"), batch.schema)
    while True:
        writer.write_batch(batch)


def arrow_flight(size: int, seconds: float) -> float:
    from pyarrow import flight

    slots = Slots(size)

    class Server(flight.FlightServerBase):
        def do_put(self, context, descriptor, reader, writer) -> None:
            for chunk in reader:
                slots.put(memoryview(chunk.data.column(0).buffers()[1]).cast("B")[:size])

    server = Server("grpc://127.0.0.1:0")
    threading.Thread(target=server.serve, daemon=True).start()
    child = SPAWN.Process(target=flight_sender, args=(server.port, size), daemon=True)
    child.start()
    found = slots.rate(seconds)
    child.terminate()
    return found


# --- torch RPC ---
class TorchReceiver:
    """Slots where a function that is called from elsewhere finds them."""

    slots: Slots


def torch_put(tensor) -> None:
    TorchReceiver.slots.put(tensor.numpy())


def torch_rank(rank: int, port: int, size: int, seconds: float, results) -> None:
    import torch
    from torch.distributed import rpc

    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    if rank == 0:
        TorchReceiver.slots = Slots(size)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=2)
    if rank == 0:
        results.put(TorchReceiver.slots.rate(seconds))
    else:
        tensor, pending = torch.zeros(size, dtype=torch.uint8), deque()
        until = time.monotonic() + seconds + 20
        while time.monotonic() < until:
            if len(pending) == WINDOW:
                pending.popleft().wait()
            pending.append(rpc.rpc_async("rank0", torch_put, args=(tensor,)))
    os._exit(0)


def torch_rpc(size: int, seconds: float) -> float:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results = SPAWN.SimpleQueue()
    children = [
        SPAWN.Process(target=torch_rank, args=(rank, port, size, seconds, results), daemon=True) for rank in (0, 1)
    ]
    for child in children:
        child.start()
    found = results.get()
    for child in children:
        child.terminate()
    return found


# --- Ray ---
def ray_actor(size: int, seconds: float) -> float:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")

    @ray.remote
    class Receiver:
        def __init__(self) -> None:
            self.slots = Slots(size)

        def put(self, array) -> None:
            self.slots.put(array)

    receiver, message, pending = Receiver.remote(), np.zeros(size, dtype=np.uint8), []

    def send(until: float) -> int:
        count = 0
        while time.perf_counter() < until:
            if len(pending) >= WINDOW:
                done, rest = ray.wait(pending, num_returns=1)
                pending[:] = rest
                count += len(done)
            pending.append(receiver.put.remote(message))
        return count

    send(time.perf_counter() + 1.0)
    began = time.perf_counter()
    count = send(began + seconds)
    found = count / (time.perf_counter() - began)
    ray.shutdown()
    return found


# --- the ancestor ---
STEPS = 128


def ancestor_sender(port: int) -> None:
    """A connection for each message: length, pickle; the answer is the whole policy, length and pickle."""
    import pickle

    import torch

    torch.set_num_threads(1)
    step = {
        "obs": torch.zeros(33),
        "next_obs": torch.zeros(33),
        "act": torch.zeros(2),
        "rew": torch.zeros(1),
        "done": torch.zeros(1),
    }
    while True:
        buffer = deque({name: value.clone() for name, value in step.items()} for _ in range(STEPS))
        with socket.create_connection(("127.0.0.1", port)) as stream:
            raw = pickle.dumps(buffer)
            stream.sendall(len(raw).to_bytes(4, "big") + raw)
            _read(stream)


def _read(stream):
    import pickle

    def exactly(count: int) -> bytes:
        parts = []
        while count:
            part = stream.recv(min(count, 65_536))
            if not part:
                raise ConnectionError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    return pickle.loads(exactly(int.from_bytes(exactly(4), "big")))  # noqa: S301  (both ends are ours)


def ancestor(size: int, seconds: float) -> float:
    """Trajectories of 128 steps as a deque of dicts of tensors, each answered by actor and critics of 146 KB."""
    import pickle

    import torch

    torch.set_num_threads(1)
    slots = Slots(size)
    policy = {f"layer{number}": torch.zeros(12_000) for number in range(3)}
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = SPAWN.Process(target=ancestor_sender, args=(server.getsockname()[1],), daemon=True)
        child.start()

        def serve() -> None:
            while True:
                stream, _ = server.accept()
                with stream:
                    steps = _read(stream)
                    columns = [torch.stack([step[name] for step in steps]).numpy() for name in steps[0]]
                    row = np.concatenate([column.reshape(-1).view(np.uint8) for column in columns])
                    slots.put(np.resize(row, size))
                    raw = pickle.dumps({"policy_id": slots.taken, "policy": policy})
                    stream.sendall(len(raw).to_bytes(4, "big") + raw)

        threading.Thread(target=serve, daemon=True).start()
        found = slots.rate(seconds)
        child.terminate()
    return found


SYSTEMS = {
    "grpc": grpc_stream,
    "flight": arrow_flight,
    "torch": torch_rpc,
    "ray": ray_actor,
    "ancestor": ancestor,
}

if __name__ == "__main__":
    system, size, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    print(json.dumps(SYSTEMS[system](size, seconds)), flush=True)
    os._exit(0)
