"""A worker that fails on request: ``python worker.py ACTION…`` takes the actions below one after the other.

say TEXT    print a line                    part TEXT   print without ending the line
env NAME    print a variable                flood N     print N lines immediately
count N S   print N lines, S seconds apart  sleep S     do nothing for a while
exit CODE   end                             die N       end by signal N
deaf        ignore SIGTERM                  fork        a child in this process group, deaf
escape      a child in a separate session, deaf
once FILE   the first time run up to ``else``; each later time run the part after it
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def main(words: list[str]) -> None:
    while words:
        action, rest = words[0], words[1:]
        if action == "else":
            return
        if action == "once":
            mark = Path(rest[0])
            is_first = not mark.exists()
            mark.touch()
            words = rest[1:] if is_first else rest[rest.index("else") + 1 :]
            continue
        function, count = ACTIONS[action]
        function(*rest[:count])
        words = rest[count:]


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)


def flood(count: str) -> None:
    print("\n".join(f"line {number}" for number in range(int(count))), flush=True)


def count_lines(count: str, pause: str) -> None:
    for number in range(int(count)):
        say(f"count {number}")
        time.sleep(float(pause))


def die(number: str) -> None:
    os.kill(os.getpid(), int(number))
    signal.pause()


def deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def child(*, escapes: bool) -> None:
    if os.fork() == 0:
        if escapes:
            os.setsid()
        deaf()
        time.sleep(600)
        os._exit(0)


ACTIONS = {
    "say": (say, 1),
    "part": (lambda text: say(text, end=""), 1),
    "env": (lambda name: say(f"{name}={os.environ.get(name, '(unset)')}"), 1),
    "flood": (flood, 1),
    "count": (count_lines, 2),
    "sleep": (lambda seconds: time.sleep(float(seconds)), 1),
    "exit": (lambda code: sys.exit(int(code)), 1),
    "die": (die, 1),
    "deaf": (deaf, 0),
    "fork": (lambda: child(escapes=False), 0),
    "escape": (lambda: child(escapes=True), 0),
}

if __name__ == "__main__":
    main(sys.argv[1:])
