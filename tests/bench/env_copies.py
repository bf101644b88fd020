"""Copies of a foreign environment that a run's processes open and close, for each way in which a run ends.

Learner, worker and evaluator of short runs, whose environment notes each `open` and `close`. The ways: the run
is done; all processes get SIGTERM, as by destroy; the worker gets SIGTERM and is started again, as by kill; a step
raises an exception. Prints both counts and the exit codes; the exit code is 1 unless the counts are equal.

    python -m tests.bench.env_copies --runs 52
"""

from __future__ import annotations

import argparse
import collections
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.run_processes import RunProcesses

COPIES = 4
NOTES = "BENCH_NOTES"
FAILS_AFTER = "BENCH_FAILS_AFTER"
WAYS = ("end", "destroy", "kill", "failure")
ENVIRONMENT = f"""
import os
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

def note(word):
    descriptor = os.open(os.environ["{NOTES}"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{{word}} {{os.getpid()}}\\n".encode())
    os.close(descriptor)

class Noted(CartPoleEnv):
    steps = 0

    def __init__(self):
        super().__init__()
        note("open")

    def step(self, action):
        Noted.steps += 1
        if Noted.steps > int(os.environ.get("{FAILS_AFTER}", "1000000000")):
            raise RuntimeError("the simulator went away")
        return super().step(action)

    def close(self):
        note("close")

gymnasium.register("Noted-v0", entry_point=Noted)
"""


def main(arguments: list[str]) -> int:
    """Run every way in turn and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=52)
    options = parser.parse_args(arguments)
    opened: collections.Counter[str] = collections.Counter()
    closed: collections.Counter[str] = collections.Counter()
    codes: dict[str, collections.Counter[str]] = {way: collections.Counter() for way in WAYS}
    for number in range(options.runs):
        way = WAYS[number % len(WAYS)]
        with tempfile.TemporaryDirectory(prefix="l2r-") as folder:
            words, ended = run(Path(folder), way)
        opened[way] += words["open"]
        closed[way] += words["close"]
        codes[way].update(ended)
        print(
            f"{number + 1}: {way}, {words['open']} opened, {words['close']} closed, exit codes {ended}", flush=True
        )
    for way in WAYS:
        ends = ", ".join(f"{count} x {code}" for code, count in sorted(codes[way].items()))
        print(f"{way:8} {opened[way]:5} opened {closed[way]:5} closed   {ends}")
    return int(opened != closed)


def run(folder: Path, way: str) -> tuple[collections.Counter[str], list[str]]:
    """Run one way; return how often each word was written, and role and exit code of each process."""
    (folder / "noted_env.py").write_text(ENVIRONMENT)
    os.environ.update({NOTES: str(folder / "notes"), "PYTHONPATH": f"{Path.cwd()}:{folder}"})
    os.environ.pop(FAILS_AFTER, None)
    settings = {
        "environment": "noted_env:Noted-v0",
        "algorithm": "ppo",
        "num_envs": COPIES,
        "segment_steps": 16,
        "hidden": [8],
        "eval_episodes": 2,
        "ppo": {"batch_steps": 64, "minibatch_size": 64, "epochs": 1},
        **({"total_env_steps": 512} if way == "end" else {}),
    }
    roles = ["learner", "worker", "evaluator"]
    with RunProcesses(folder, settings, cpus=1) as processes:
        started = [processes.start("learner")]
        if way == "failure":
            os.environ[FAILS_AFTER] = "100"
        started += [processes.start(role) for role in roles[1:]]
        if way in {"destroy", "kill"}:
            wait_until_collected(processes)
        if way == "kill":
            started[1].send_signal(signal.SIGTERM)
            started[1].wait()
            before = processes.records()[-1]["env_steps"]
            started.append(processes.start("worker", 1))
            roles.append("worker 1")
            wait_until_collected(processes, before)
        if way == "failure":
            started[1].wait()
        if way != "end":
            for process in started:
                process.send_signal(signal.SIGTERM)
        processes.wait()
        if not (folder / "notes").exists():
            raise SystemExit(f"nothing was made:\n{processes.output('learner')[-2000:]}")
        ended = [f"{role} {process.returncode}" for role, process in zip(roles, started, strict=True)]
    words = collections.Counter(line.split()[0] for line in (folder / "notes").read_text().splitlines())
    return words, ended


def wait_until_collected(processes: RunProcesses, before: int = 0) -> None:
    """Wait until the learner has more than so many env steps."""
    while not any(each["env_steps"] > before for each in processes.records()):
        if processes.started[0].poll() is not None:
            raise SystemExit(f"the learner ended:\n{processes.output('learner')[-2000:]}")
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
