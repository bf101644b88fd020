"""`python -m tests.bench NAME [OPTIONS]`: run a measurement; without a name, list them with their requirements.

Each prints ratios against a reference in the same run if possible, because machines are noisy. None of them is a
test. `--tiny` uses a size that takes seconds, which only shows that the program works. Each runs in a separate
process, and none is imported for the list, so that only a measurement that runs needs its peers and cards.
"""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
CLUSTER = "$KUBECONFIG"


class Bench(NamedTuple):
    """Requirements of a measurement beyond `make .venv/dev`, its minutes on two cores, and the options of a tiny
    run.

    `{folder}` in an option is a temporary folder.
    """

    needs: str
    minutes: float
    tiny: str


BENCHES = {
    "artifacts": Bench("", 10, "--mebibytes 24 --kills 2"),
    "attackers": Bench("", 20, "--each 5 rendezvous"),
    "charts": Bench("", 3, "--hours 0.5 --seconds 1"),
    "curves": Bench("", 60, "--seeds 0 --minutes 0.1 --laps 1 --out {folder}/curves"),
    "damage": Bench("", 5, "--kills 3 --damages 5"),
    "env_checks": Bench("", 2, "--seconds 0.5"),
    "env_copies": Bench("", 20, "--runs 2"),
    "exchange abuse": Bench("", 10, "--seconds 2"),
    "exchange faults": Bench("", 60, "--count 100 --workers 2"),
    "exchange inference": Bench("", 2, "--rounds 1 --seconds 0.2 --workers 1"),
    "exchange inference_learning": Bench("", 4, "--rounds 1 --seconds 0.5 --askers 2 --cases vector"),
    "exchange members": Bench("", 1, "--rounds 1 --members 10 100"),
    "exchange scale": Bench("", 1, "--rounds 1 --seconds 0.1"),
    "exchange segments": Bench("", 2, "--rounds 1 --seconds 0.1 --memory 64"),
    "exchange simulation": Bench("", 3, "--workers 20 --seconds 0.5 --rounds 1"),
    "exchange weights": Bench("", 2, "--rounds 1 --seconds 0.2"),
    "exchange workers": Bench("", 1, "--segments 300"),
    "gpu": Bench("a GPU, or --device cpu", 8, "--device cpu --tiny --sections machine"),
    "halving": Bench("", 22, "--env-steps 10240 --rates 1"),
    "kills": Bench("", 40, "--strikes 2 --only kill stop"),
    "kills_cluster": Bench(f"root, and {CLUSTER} with a real node", 60, "--strikes 2 --only kill"),
    "kubernetes_destroy": Bench(CLUSTER, 60, "2"),
    "kubernetes_lists": Bench(f"{CLUSTER} with a stand-in node", 10, "--rounds 1 --pods 50"),
    "kubernetes_scale": Bench(f"{CLUSTER} with 200 stand-in nodes", 15, "fill --pods 5"),
    "learn_to_race": Bench("a checkout of github.com/learn-to-race/l2r", 1, ""),
    "learning": Bench("", 240, "--only cartpole-ppo --seeds 0 --steps 4096 --records {folder}/records"),
    "learning_libraries": Bench("stable-baselines3, mujoco and ale-py", 600, ""),
    "learning_speed": Bench("", 10, "--rounds 1 --seconds 1 --only PPO"),
    "monkey": Bench("", 30, "--keys 60 --backend demo"),
    "mutants": Bench("", 30, "--only session --count 1"),
    "racing": Bench("", 10, "--seeds 1 --cpu-seconds 3"),
    "racing_device": Bench("", 60, "--seeds 0 --env-steps 2048 --sizes 8 --out {folder}/device"),
    "ranks": Bench("", 30, "curves --ranks 1 2 --seeds 0 --env-steps 2048 --out {folder}/ranks"),
    "startup": Bench("", 3, "--idle-seconds 1 --rounds 1"),
    "ui": Bench("", 20, "--pods 50 --seconds 1 --parts start busy idle"),
}


def summary(name: str) -> str:
    """Return the first sentence of a measurement's docstring, read from its source."""
    path = FOLDER.joinpath(*name.split()).with_suffix(".py")
    path = path if path.exists() else path.with_suffix("") / "__init__.py"
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n")[0]


def run(name: str, options: list[str]) -> int:
    """Run a measurement in a separate process and return its exit code."""
    with tempfile.TemporaryDirectory(prefix="l2r-bench-") as folder:
        if options == ["--tiny"]:
            if not BENCHES[name].tiny:
                print(f"{name} has no tiny run: it needs {BENCHES[name].needs}.", file=sys.stderr)
                return 2
            options = [word.format(folder=folder) for word in shlex.split(BENCHES[name].tiny)]
        package, *part = name.split()
        command = [sys.executable, "-m", f"tests.bench.{package}", *part, *options]
        return subprocess.run(command, check=False).returncode


def main(words: list[str]) -> int:
    """List the measurements, or run the named one."""
    if not words:
        for name, bench in BENCHES.items():
            needs = f"   needs {bench.needs}" if bench.needs else ""
            print(f"{name:28} {bench.minutes:4} min   {summary(name)}{needs}")
        return 0
    for length in (2, 1):
        if (name := " ".join(words[:length])) in BENCHES:
            return run(name, words[length:])
    print(f"There is no measurement {words[0]}; there are {', '.join(BENCHES)}.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
