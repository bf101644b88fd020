"""Halving of a sweep compared with its full grid: env steps, time and best trial of each, 24 trials of PPO.

python -m tests.bench halving
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.l2rtui.cli.conftest import Cli
from tests.l2rtui.cli.test_sweep_halving import GAMMAS, RATES, grid, halved, prepare, results


def main(argv: list[str] | None = None) -> int:
    """Run the sweep with halving, then the full grid, each in a separate home."""
    parser = argparse.ArgumentParser(prog="halving", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env-steps", type=int, default=122_880, help="of each trial")
    parser.add_argument("--rates", type=int, default=len(RATES), help="learning rates; each with every discount")
    options = parser.parse_args(argv)
    full, trials = grid(options.env_steps, RATES[: options.rates]), options.rates * len(GAMMAS)
    total = trials * options.env_steps
    best: list[dict[str, float]] = []
    for label, spec in (("halving", halved(full)), ("full grid", full)):
        with tempfile.TemporaryDirectory() as folder:
            cli = Cli(Path(folder))
            cli.env["L2RTUI_BACKEND"] = "local"
            prepare(cli)
            began = time.monotonic()
            try:
                rows = results(cli, spec, trials)
            finally:
                cli.run("destroy", "--all-mine", "--grace", "0", "--purge", "--yes")
        env_steps = sum(trial["env_steps"] for trial in rows)
        share = env_steps / total
        seconds, first = time.monotonic() - began, rows[0]
        best.append(first["values"])
        print(
            f"{label:9}  {env_steps:9,.0f} env steps, {share:.3f} of {total:,}, in {seconds:.0f} s; "
            f"best {first['values']} with return {first['mean_return']:.1f}",
            flush=True,
        )
    print("the same best" if best[0] == best[1] else "another best")
    return 0


if __name__ == "__main__":
    sys.exit(main())
