"""Learner process without learning: its watch sees a thousand changes of state, as fast as possible.

    python -m tests.fakes.watched_changes FIRST LAST

A virtual clock moves 60 ms with each change, so a thousand of them are a minute. At LAST it prints the duration of
its calls of the watch and waits for a line; without LAST it is killed there.
"""

from __future__ import annotations

import json
import os
import sys
import time

from runtime.base.launch_context import LaunchContext
from runtime.rl.roles.run_watch import RunWatch

CHANGES = 1000
SECONDS_APART = 0.06
LEARNED_AT = 300
RETURN = 500.0


def main(first: int, last: int) -> None:
    """Make the changes from one number to another."""
    context = LaunchContext.from_environment(os.environ, "learner")
    said: list[str] = []
    now = 0.0
    watch = RunWatch(context, os.environ, context.learner_folder(), said.append, lambda: now)
    took = []
    for number in range(first, last):
        now += SECONDS_APART
        began = time.perf_counter()
        # Every second time there was no update: then it is stalled, and with the next it is not.
        watch.update(number, number // 2, RETURN if number >= LEARNED_AT else 0.0)
        took.append(time.perf_counter() - began)
    print(json.dumps({"took": took}), flush=True)
    sys.stdin.readline()
    watch.finish("1000 changes", {})
    began = time.perf_counter()
    watch.close()
    print(json.dumps({"closed": time.perf_counter() - began, "said": said}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
