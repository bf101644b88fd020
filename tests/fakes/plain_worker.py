"""A worker written only from docs/exchange.md: ZeroMQ and the standard library, no code of this project.

It balances the pole of Barto, Sutton and Anderson (1983), like Gymnasium's CartPole-v1, with a policy of two hidden
layers of tanh and one logit for each direction, and sends its experience for PPO.

    python plain_worker.py ENDPOINT RUN RUN_ID POD ACTOR_FLOATS STEPS [TOKEN]
"""

import json
import math
import os
import random
import struct
import sys
import time
from array import array

import zmq

LAYOUT = "obs:f4[4] action:i4[1] log_prob:f4 reward:f4 ended:u1 +obs:f4[4]"


class Pole:
    def reset(self):
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        self.steps = 0
        return list(self.state)

    def step(self, action):
        x, v, angle, spin = self.state
        force = 10.0 if action else -10.0
        push = (force + 0.05 * spin * spin * math.sin(angle)) / 1.1
        turn = (9.8 * math.sin(angle) - math.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        pull = push - 0.05 * turn * math.cos(angle) / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn]
        self.steps += 1
        fell = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 12 * math.pi / 180
        return list(self.state), 1 if fell else 2 if self.steps == 500 else 0


def dense(values, weights, at, outputs, act):
    bias = at + len(values) * outputs
    sums = [
        act(weights[bias + j] + sum(value * weights[at + i * outputs + j] for i, value in enumerate(values)))
        for j in range(outputs)
    ]
    return sums, bias + outputs


def choose(weights, obs):
    hidden, at = dense(obs, weights, 0, 64, math.tanh)
    hidden, at = dense(hidden, weights, at, 64, math.tanh)
    logits, _ = dense(hidden, weights, at, 2, float)
    top = max(logits)
    chances = [math.exp(logit - top) for logit in logits]
    action = int(random.random() * sum(chances) >= chances[0])
    return action, math.log(chances[action] / sum(chances))


class Worker:
    def __init__(self, endpoint, run, run_id, pod, actor_floats, steps, token=""):
        self.incarnation = time.time_ns() // 1000
        self.steps = int(steps)
        self.hello = {
            "kind": "hello",
            "protocol": 4,
            "run": run,
            "run_id": run_id,
            "token": token,
            "role": "worker",
            "pod": pod,
            "incarnation": self.incarnation,
            "environment": "CartPole-v1",
            "layout": LAYOUT,
            "actor_floats": int(actor_floats),
            "segment_transitions": self.steps,
        }
        context = zmq.Context()
        host, port = endpoint.rsplit(":", 1)
        self.data, self.model = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
        for socket, address in ((self.data, endpoint), (self.model, f"{host}:{int(port) + 1}")):
            socket.setsockopt(zmq.IDENTITY, f"{pod}.{self.incarnation}".encode())
            socket.setsockopt(zmq.LINGER, 200)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.IMMEDIATE, 1)
            socket.connect(address)
        self.token = token
        self.epoch = self.limit = self.acked = self.offered = self.sent = 0
        self.newest = self.lag = self.version = self.pulled_epoch = self.env_steps = 0
        self.joined = False
        self.kept = {}
        self.weights = None
        self.heard = self.said = self.pinged = self.asked = -math.inf
        self.over = None

    def send(self, socket, header, arena=None):
        frames = [json.dumps(header).encode()] + ([] if arena is None else [arena])
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def exchange(self, wait):
        now = time.monotonic()
        if self.joined and now - self.heard > 5:
            self.joined = False
        if not self.joined and now - self.said > 1:
            self.said = now
            self.send(self.data, {**self.hello, "oldest": min(self.kept, default=self.offered + 1)})
        if self.joined:
            for seq in range(self.sent + 1, min(self.offered, self.limit) + 1):
                row, arena = self.kept[seq]
                header = {"kind": "traj", "epoch": self.epoch, "seq": seq, "ring": False, "rows": [row]}
                if not self.send(self.data, header, arena):
                    break
                self.sent = seq
            if now - self.pinged > 1:
                self.pinged = now
                ping = {"kind": "ping", "epoch": self.epoch, "sent": self.sent, "env_steps": self.env_steps}
                self.send(self.data, {**ping, "policy_version": self.version, "env_steps_per_second": 0.0})
            if (self.epoch, self.newest) > (self.pulled_epoch, self.version) and now - self.asked > 2:
                self.asked = now
                get = {"kind": "get", "token": self.token, "epoch": self.pulled_epoch, "have": self.version}
                self.send(self.model, {**get, "codec": "f4", "place": ""})
        if self.data.poll(wait * 1000):
            self.take(json.loads(self.data.recv_multipart()[0]))
        while self.model.poll(0):
            self.take_weights(*self.model.recv_multipart())

    def take(self, message):
        kind = message["kind"]
        if kind in {"refused", "done"}:
            self.over = kind, message["reason"]
        elif kind == "who":
            self.joined, self.said = False, -math.inf
        elif kind == "welcome":
            self.joined, self.heard, self.epoch = True, time.monotonic(), message["epoch"]
            self.limit, self.newest, self.lag = (
                message["limit"],
                message["policy_version"],
                message["max_policy_lag"],
            )
            self.acked = self.sent = message["last_seq"]
            self.offered = max(self.offered, self.sent)
        elif kind == "ack" and message["epoch"] == self.epoch and self.joined:
            self.heard = time.monotonic()
            self.limit = max(self.limit, message["limit"])
            self.newest, self.acked = message["policy_version"], message["last_seq"]
            for seq in [number for number in self.kept if number <= message["durable_seq"]]:
                del self.kept[seq]

    def take_weights(self, header, arena=b""):
        message = json.loads(header)
        self.asked = -math.inf
        if message["kind"] == "weights":
            checked_words = array("Q", arena + bytes(-len(arena) % 8))
            if sum(checked_words) % 2**64 == int(message["checksum"], 16):
                self.weights = array("f", arena)
                self.pulled_epoch, self.version = message["epoch"], message["policy_version"]

    def collect(self, pole, obs):
        columns = [array("f"), array("i"), array("f"), array("f"), array("B")]
        final = array("f")
        ended, total = 0, 0
        for _ in range(self.steps):
            action, log_prob = choose(self.weights, obs)
            after, end = pole.step(action)
            for column, values in zip(columns, (obs, [action], [log_prob], [1.0], [end]), strict=True):
                column.extend(values)
            if end == 2:
                final.extend(after)
            self.env_steps += 1
            if end:
                ended, total = ended + 1, total + pole.steps
            obs = pole.reset() if end else after
        self.offered += 1
        tail = array("f", after) + final
        row = [self.steps, self.version, self.version, ended, float(total), 0.0, len(tail) // 4]
        self.kept[self.offered] = row, b"".join(values.tobytes() for values in (*columns, tail))
        return obs

    def run(self):
        pole = Pole()
        obs = pole.reset()
        while self.over is None and os.getppid() != 1:
            fresh = self.weights is not None and self.newest - self.version <= self.lag
            ready = self.joined and self.offered < self.limit and fresh
            self.exchange(0 if ready else 0.1)
            if ready:
                obs = self.collect(pole, obs)
        print(json.dumps({"over": self.over, "env_steps": self.env_steps, "version": self.version}))
        if self.over[0] == "done" and self.joined:
            self.send(self.data, {"kind": "bye", "epoch": self.epoch, "sent": self.sent, "reason": "done"})
        return 0 if self.over[0] == "done" else 3


if __name__ == "__main__":
    assert struct.calcsize("i") == 4, "the layout has i4"
    assert sys.byteorder == "little", "the wire is little-endian"
    sys.exit(Worker(*sys.argv[1:]).run())
