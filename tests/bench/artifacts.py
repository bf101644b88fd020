"""Upload of a large checkpoint to a bucket, killed at random moments: is half a checkpoint ever readable?

A server in this machine's memory and files replaces Amazon, so this measures correctness, not speed:

    python -m tests.bench.artifacts [--mebibytes 2048] [--kills 50] [--seed 1] [--folder F] [--seconds N]

Each round starts a writer for the newer of two checkpoints and kills it with SIGKILL when a random part of its
bytes has been sent; one in ten rounds is killed just after the last byte, when parts become an object and the
manifest follows. Then the newest complete checkpoint is looked up like by a learner. It must be the older one until
an upload was complete, and the data read must have the right check sum. A round of 2 GiB takes 10 s of one core on
average. `--folder` keeps the checkpoint for the next call. `--seconds` starts no round after this time, so that
many rounds can be done in pieces.
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

from runtime.base.object_store import open_store
from runtime.rl.checkpoints.checkpoint_files import Checkpoints, Mirror, bring_newest

SERVER = """
import sys, time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""
WRITER = """
import sys, threading
from pathlib import Path
from runtime.rl.checkpoints.checkpoint_files import Mirror
from runtime.base.object_store import open_store
place, lock, moved = open_store(sys.argv[1]), threading.Lock(), 0
put = place.put
def told(name, source, progress):
    def both(count):
        global moved
        progress(count)
        with lock:
            moved += count
            print(moved, flush=True)
    put(name, source, both)
place.put = told
mirror = Mirror(place, Path(sys.argv[2]), 10, lambda text: None)
mirror.offer(sys.argv[3])
mirror.close()
"""
LATE = 0.1
"""Share of rounds that end in the moments after the last byte."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
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
        source = made(options.folder or Path(scratch, "source"), options.mebibytes)
        choose, until = random.Random(options.seed), time.monotonic() + options.seconds
        print(json.dumps(measured(Path(scratch, "target"), source, options.kills, choose, until)))
        server.stdin.close()


def made(folder: Path, mebibytes: int) -> Path:
    """A folder with an old checkpoint, the large one, and a later small one."""
    own = Checkpoints(folder, keep=10)
    if len(own.names()) != 3:
        own.save(1, 1, {"x": np.zeros(1024, np.float32)}, {})
        own.save(2, 2, {"x": np.random.default_rng(1).random(mebibytes * 2**18, np.float32)}, {})
        own.save(3, 3, {"x": np.zeros(1024, np.float32)}, {})
    return folder


def measured(target: Path, source: Path, kills: int, choose: random.Random, until: float) -> dict[str, float]:
    url = "s3://lab/run"
    old, new, last = Checkpoints(source, keep=10).names()
    size = (source / f"{new}.safetensors").stat().st_size
    place = open_store(url)
    send(url, source, old)
    halves = whole = parts = moved = done = 0
    began = time.monotonic()
    while done < kills and time.monotonic() < until:
        for name in (f"{new}.json", f"{new}.safetensors"):
            place.remove(name)
        sent = killed(url, source, new, size, choose)
        moved += sent
        there = set(place.names())
        parts += f"{new}.safetensors" not in there
        if f"{new}.json" in there and f"{new}.safetensors" not in there:
            halves += 1
        expected = new if f"{new}.json" in there else old
        checkpoints = Checkpoints(target, keep=10)
        found = bring_newest(place, target, print)
        halves += found != expected
        whole += found == new
        halves += checkpoints.load()[0] is None
        for path in target.iterdir():
            path.unlink()
        done += 1
        said = f"kill {done} at {sent / size:.0%}: {'new' if found == new else 'old'}, {halves} readable halves"
        print(said, file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    left = len(boto3.client("s3").list_multipart_uploads(Bucket="lab").get("Uploads") or [])
    send(url, source, last)
    swept = left - len(boto3.client("s3").list_multipart_uploads(Bucket="lab").get("Uploads") or [])
    return {
        "mebibytes": size // 2**20,
        "kills": done,
        "killed_before_the_arrays_were_there": parts,
        "complete_before_the_kill": whole,
        "readable_halves": halves,
        "unfinished_uploads_at_the_end": left,
        "of_them_cleared_by_the_next_writer": swept,
        "mebibytes_sent": moved // 2**20,
        "seconds": round(seconds, 1),
    }


def killed(url: str, source: Path, name: str, size: int, choose: random.Random) -> int:
    """Start a writer and kill it at a random moment; return how many bytes it had sent by then."""
    goal = size if choose.random() < LATE else choose.uniform(0, size)
    moved = 0
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, url, str(source), name], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        while moved < goal and (line := writer.stdout.readline()):
            moved = int(line)
        time.sleep(choose.uniform(0, 1.0 if goal == size else 0.1))  # this moment is the subject, not a wait
        writer.send_signal(signal.SIGKILL)
    return moved


def send(url: str, source: Path, name: str) -> None:
    mirror = Mirror(open_store(url), source, 10, lambda _: None)
    mirror.offer(name)
    mirror.close()


if __name__ == "__main__":
    main()
