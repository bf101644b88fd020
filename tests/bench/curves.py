"""Train a racing example with several seeds, one after the other, and draw the learning curves.

Everything uses the program's own commands: `l2rtui launch`, the evaluator's records from `l2rtui logs`, `l2rtui
destroy`. Writes docs/learning.svg and docs/learning.jsonl (the raw records), or another pair of files; a seed that
is already in the records is not trained again.

    python -m tests.bench.curves --seeds 0-4 --minutes 15
    python -m tests.bench.curves --spec manifests/racing-view.yaml --out docs/learning-view
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from l2rtui.domain.placement import parse_seeds
from tests.bench.learning import HERE, PROGRAM, l2rtui


def main(arguments: list[str]) -> int:
    """Train, record, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", default="manifests/racing-sac.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="change one field, as for launch")
    parser.add_argument("--out", type=Path, default=Path("docs/learning"), help="files to write, without an ending")
    parser.add_argument("--seeds", default="0-4", help="seeds, such as 0-4")
    parser.add_argument("--minutes", type=float, default=30.0, help="at most this long for each seed")
    parser.add_argument("--laps", type=int, default=20, help="end a seed after so many evaluations with clean laps")
    parser.add_argument("--draw", action="store_true", help="only draw the records again")
    options = parser.parse_args(arguments)
    kept = options.out.with_suffix(".jsonl")
    records = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    trained = {record["seed"] for record in records}
    for seed in () if options.draw else parse_seeds(options.seeds):
        if seed not in trained:
            records += train(options.spec, options.set, seed, options.minutes * 60, options.laps)
            kept.write_text("".join(json.dumps(one) + "\n" for one in records))
    draw(records, options.out.with_suffix(".svg"))
    return 0


def train(spec: str, changes: list[str], seed: int, seconds: float, laps: int) -> list[dict[str, Any]]:
    """Train one seed and return the evaluator's records with `seed` and `seconds` since the launch."""
    name = f"curve-{Path(spec).stem}-{seed}"
    began = time.time()
    launch = ["launch", "-f", spec, "--name", name, "--set", f"seed={seed}", "--wait", "--yes", "-o", "json"]
    l2rtui(*launch, *(word for change in changes for word in ("--set", change)))
    follow = [*PROGRAM, "logs", f"{name}/eval", "-f", "--grep", '"l2r":"evaluator"', *HERE]
    found: list[dict[str, Any]] = []
    clean = 0
    with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            try:
                record = json.loads(line[line.find("{") :])  # after the pod's name
            except ValueError:
                continue  # a mark between two processes
            record |= {"seed": seed, "seconds": record["time"] - began}
            found.append(record)
            clean += record["clean_lap"]
            print(
                f"seed {seed}  {record['seconds']:6.0f} s  version {record['policy_version']:5}  "
                f"progress {record['eval_progress']:7.1f} m = {record['progress_ratio'] or 0:5.1f} x random  "
                f"clean laps {record['laps']}/{record['episodes']}  {record['lap_seconds'] or '-'} s",
                flush=True,
            )
            if clean >= laps or record["seconds"] > seconds:
                process.terminate()
                break
    print(l2rtui("destroy", name, "--yes", "--purge").strip())
    report(seed, found)
    return found


def report(seed: int, records: list[dict[str, Any]]) -> None:
    """Print when the seed passed the two marks."""
    five = next((one["seconds"] for one in records if (one["progress_ratio"] or 0) >= 5), None)
    lap = next((one["seconds"] for one in records if one["clean_lap"]), None)
    print(f"seed {seed}: 5 x random after {five and round(five)} s, first clean lap after {lap and round(lap)} s")


def draw(records: list[dict[str, Any]], picture: Path) -> None:
    """Draw progress and lap time over minutes, a line a seed; dots are evaluations whose laps were all clean."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "l2rtui"
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(
        2, sharex=True, figsize=(8, 5), layout="constrained", height_ratios=(3, 2)
    )
    for number, seed in enumerate(sorted({one["seed"] for one in records})):
        mine = [one for one in records if one["seed"] == seed]
        clean = [one for one in mine if one["clean_lap"] and one["laps"] == one["episodes"]]
        colour = f"C{number}"
        above.plot(_minutes(mine), [one["eval_progress"] for one in mine], color=colour, label=f"seed {seed}")
        above.plot(_minutes(clean), [one["eval_progress"] for one in clean], "o", markersize=4, color=colour)
        above.axhline(mine[0]["random_progress"], color=colour, linewidth=0.8, linestyle=":")
        below.plot(_minutes(clean), [one["lap_seconds"] for one in clean], color=colour)
    above.set_ylabel("mean progress of an episode, m")
    above.set_title(
        "dots: every episode was a lap without leaving the track; dotted: the random policy", fontsize=9
    )
    above.legend(frameon=False)
    below.set_ylabel("best lap, s")
    below.set_xlabel("minutes since launch (2 CPU cores: learner, workers, evaluator)")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    figure.savefig(picture, metadata={"Date": None})
    plt.close(figure)


def _minutes(records: list[dict[str, Any]]) -> list[float]:
    return [one["seconds"] / 60 for one in records]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
