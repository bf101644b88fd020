"""Correctness: the tests on a card that decide whether its figures are valid, in several parallel processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

from tests.bench.gpu.measuring import Bench, show

FILES = ("updates", "streams", "replay", "racing", "inference", "memory")
"""Files of `tests/gpu`, most important first."""
PLUGINS = ("xdist.plugin", "pytest_timeout", "pytest_asyncio.plugin")
PROCESSES = 8


def measure(bench: Bench) -> None:
    title = f"tests/gpu: {', '.join(FILES)}"
    if not bench.has_time(10.0, title):
        return
    files = [f"tests/gpu/test_{name}.py" for name in FILES]
    command = [sys.executable, "-m", "pytest", *files, "-m", "gpu and not process", "-q", "--timeout", "60"]
    command += ["-p", "no:cacheprovider", "-n", str(min(PROCESSES, os.cpu_count() or 1))]
    # Only the plugins in use: pytest-benchmark warns that xdist is on, and a warning is an error here.
    for plugin in PLUGINS:
        command += ["-p", plugin]
    environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    began = time.monotonic()
    tests = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert tests.stdout is not None
    lines = []
    for line in tests.stdout:  # ended with this process's group if it takes too long
        print(line, end="", flush=True)
        lines.append(line)
    code = tests.wait()
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", lines[-1] if lines else "")}
    counted = {word: counts[word] for word in ("passed", "failed", "skipped", "errors", "error") if word in counts}
    if code or (bench.is_gpu and not counted.get("passed")):
        bench.fail(title, "".join(lines[-5:]) or f"pytest ended with {code}")
    else:
        show(title, {**counted, "seconds": time.monotonic() - began})
