"""A large checkpoint on its way into a bucket, killed at random moments: is there ever a readable half?

A server in this machine's memory and files takes Amazon's place, so what is measured is correctness and not speed:

    python -m tests.bench.artifacts [--mebibytes 2048] [--kills 50] [--seed 1]

Each round starts a writer for the newer of two checkpoints, kills it with SIGKILL after a random part of the time
that an unbroken upload takes, and then asks as a learner would: which is the newest whole one? It must be the
older one until an upload was complete, and whatever comes back must have the right check sum.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import boto3
import numpy as np

from runtime.checkpoints import Checkpoints
from runtime.mirror import Mirror, bring_newest
from runtime.places import open_place

SERVER = """
import sys, time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""
WRITER = """
import sys
from pathlib import Path
from runtime.mirror import Mirror
from runtime.places import open_place
mirror = Mirror(open_place(sys.argv[1]), Path(sys.argv[2]), 10, lambda text: None)
print("begins", flush=True)
mirror.offer(sys.argv[3])
mirror.close()
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with (
        subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as server,
        tempfile.TemporaryDirectory(prefix="l2r-artifacts-") as scratch,
    ):
        assert server.stdout is not None
        assert server.stdin is not None
        os.environ |= {
            "AWS_ENDPOINT_URL_S3": server.stdout.readline().strip(),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        boto3.client("s3").create_bucket(Bucket="lab")
        print(json.dumps(measured(Path(scratch), options.mebibytes, options.kills, random.Random(options.seed))))
        server.stdin.close()


def measured(scratch: Path, mebibytes: int, kills: int, choose: random.Random) -> dict[str, float]:
    source, url = scratch / "source", "s3://lab/run"
    own = Checkpoints(source, keep=10)
    old = own.save(1, 1, {"x": np.zeros(1024, np.float32)}, {})
    new = own.save(2, 2, {"x": np.random.default_rng(1).random(mebibytes * 2**18, np.float32)}, {})
    place = open_place(url)
    send(url, source, old)
    began = time.monotonic()
    send(url, source, new)
    unbroken = time.monotonic() - began
    halves = whole = parts = 0
    for number in range(kills):
        for name in (f"{new}.json", f"{new}.safetensors"):
            place.remove(name)
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, url, str(source), new], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(choose.uniform(0, 1.1 * unbroken))
            writer.send_signal(signal.SIGKILL)
        there = set(place.names())
        parts += f"{new}.safetensors" not in there
        if f"{new}.json" in there and f"{new}.safetensors" not in there:
            halves += 1
        expected = new if f"{new}.json" in there else old
        target = scratch / "target"
        checkpoints = Checkpoints(target, keep=10)
        found = bring_newest(place, target, print)
        halves += found != expected
        whole += found == new
        if found != new:
            halves += checkpoints.load()[0] is None
        for path in target.iterdir():
            path.unlink()
        print(f"kill {number + 1}: {'new' if found == new else 'old'}", file=sys.stderr)
    send(url, source, new)
    left = boto3.client("s3").list_multipart_uploads(Bucket="lab").get("Uploads") or []
    return {
        "mebibytes": mebibytes,
        "kills": kills,
        "unbroken_seconds": round(unbroken, 2),
        "killed_before_the_arrays_were_there": parts,
        "complete_before_the_kill": whole,
        "readable_halves": halves,
        "unfinished_uploads_after_the_next_writer": len(left),
    }


def send(url: str, source: Path, name: str) -> None:
    mirror = Mirror(open_place(url), source, 10, lambda _: None)
    mirror.offer(name)
    mirror.close()


if __name__ == "__main__":
    main()
