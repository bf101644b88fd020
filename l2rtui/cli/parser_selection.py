"""Arguments by which lists, ``metrics`` and ``wait`` select objects and follow them."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from l2rtui.cli.argument_parser import Parser

STATES = {
    "nodes": ("ready", "notready", "cordoned", "unknown"),
    "slots": ("free", "busy", "unknown", "off", "failed", "reserved"),
    "pods": ("running", "pending", "completed", "failing", "failed", "terminating", "unknown"),
    "runs": (
        *("queued", "running", "starting", "degraded", "completed", "terminating"),
        *("live", "slow", "starved", "stalled", "diverged", "done", "failed", "unknown"),
    ),
}
"""States for completion; a backend's own reasons, such as ``ImagePullBackOff``, are accepted too."""
TRACKERS = ("mlflow", "wandb")
OUTCOMES = ("running", "done", "failed", "destroyed", "taken-back", "lost")
AXES = ("env_steps", "time", "updates")
CONDITIONS = ("running", "learned", "done", "failed", "gone")


def nodes(parser: Parser) -> None:
    """Add the words of ``nodes``."""
    _names(parser, "NODE", "nodes; patterns with * and ? work here and below")
    _selector(parser, "labels of the node")
    _state(parser, "nodes")
    _of_gpu(parser, "only with a GPU")
    _narrowing(parser)


def slots(parser: Parser) -> None:
    """Add the words of ``slots``."""
    _names(parser, "SLOT", "node, node/gpu or node/gpu.slot")
    _selector(parser, "labels of the node")
    _state(parser, "slots")
    _whose(parser)
    parser.text("--run", "RUN", "only what these runs or experiments hold")
    parser.text("--node", "NODE", "only of these nodes")
    _of_gpu(parser, "only of GPUs")
    _narrowing(parser)


def _of_gpu(parser: Parser, what: str) -> None:
    parser.text("--gpu", "EXPR", f"{what} on which this holds: 'free>=2 model=H100 memory>=40G'")


def pods(parser: Parser) -> None:
    """Add the words of ``pods``."""
    _names(parser, "NAME", "pod, RUN, RUN/SET, RUN/SET/INDEX, or experiment/NAME in place of RUN")
    _selector(parser, "labels of the pod; l2rtui.io/run, owner, seed, set and role are there on every backend")
    _state(parser, "pods")
    _whose(parser)
    parser.text("--run", "RUN", "only of these runs or experiments")
    parser.text("--node", "NODE", "only on these nodes")
    _narrowing(parser)


def runs(parser: Parser) -> None:
    """Add the words of ``runs``."""
    _names(parser, "RUN", "run, or experiment/NAME")
    _selector(parser, "l2rtui.io/run, experiment, owner, seed")
    _state(parser, "runs")
    _whose(parser)
    parser.text("--node", "NODE", "only with pods on these nodes")
    _narrowing(parser)


def experiments(parser: Parser) -> None:
    """Add the words of ``experiments``."""
    _names(parser, "NAME", "experiments")
    _narrowing(parser)


def owners(parser: Parser) -> None:
    """Add the words of ``owners``."""
    _filter(parser)


def reserve(parser: Parser) -> None:
    """Add the words of ``reserve``."""
    _places(parser, "; without it: list reservations")
    parser.option("--for", dest="seconds", type=span, default=None, metavar="SPAN", help="30m, 4h, 2d; up to 14d")
    parser.text("--note", "TEXT", "why, for the others: up to 100 characters")


def unreserve(parser: Parser) -> None:
    """Add the words of ``unreserve``."""
    _places(parser, "")
    parser.flag("--mine", "all that is reserved for you")
    parser.flag("--admin", "also what others have reserved")
    parser.flag("--yes", "do not ask", short="-y")


def _places(parser: Parser, more: str) -> None:
    parser.option(
        "places",
        nargs="*",
        metavar="SLOTS",
        help=f"NODE, NODE/GPU or NODE/GPU.SLOT, with ranges and commas: n1/0-3,n2/cpu{more}",
    )


def history(parser: Parser) -> None:
    """Add the words of ``history``."""
    parser.option(
        "names",
        nargs="*",
        metavar="NAME",
        help="only these runs or experiments, patterns or ids; `show RUN` prints a record, `rm RUN…` removes some, "
        "`export [NAME…] --to TRACKER` copies the listed ones",
    )
    parser.text("--state", "STATE", f"with commas: {', '.join(OUTCOMES)}")
    parser.values["--state"] = OUTCOMES
    _whose(parser)
    parser.text("--filter", "EXPR", "only rows that match: words, or columns, such as 'best>200 state=done'")
    parser.option("--last", type=whole_number, default=0, metavar="N", help="only the newest N")
    parser.flag("--since-left", "only runs that started or ended since the app was last open")
    parser.option("--to", choices=TRACKERS, help="tracker of an export; it goes where its own settings say")
    parser.text("--project", "NAME", "project or MLflow experiment of an export (default: each run's)")
    parser.flag("--yes", "do not ask before records are removed", short="-y")


def diff(parser: Parser) -> None:
    """Add the words of ``diff``."""
    parser.option("first", metavar="RUN", help="run of the history: its name, or the beginning of its id")
    parser.option("second", metavar="RUN", help="the other one")


def report(parser: Parser) -> None:
    """Add the words of ``report``."""
    parser.option("experiment", metavar="EXPERIMENT", help="experiment, or one run by its name or id")
    parser.text("--out", "FILE", "where to write it (default EXPERIMENT.html); - is the output")


def sweep(parser: Parser) -> None:
    """Add the words of ``sweep``."""
    parser.option("experiment", metavar="EXPERIMENT", help="experiment that was launched from a spec with `sweep:`")


def metrics(parser: Parser) -> None:
    """Add the words of ``metrics``."""
    _names(parser, "RUN", "run or experiment/NAME; all runs when left out")
    _state(parser, "runs")
    _whose(parser)
    parser.text("--filter", "EXPR", "only rows that match: words, or columns, such as 'return>200 lag<3'")
    parser.flag("--watch", "one line now and one for each new record; on a terminal a table", short="-w")
    parser.text("--svg", "FILE", "write charts of the curves over the full length of the runs; - is the output")
    parser.text("--csv", "FILE", "write the curves as a table")
    parser.flag(
        "--tensorboard", "where the TensorBoard files are, and the commands that show them; also of destroyed runs"
    )
    parser.option("--over", choices=AXES, default=AXES[0], help="x axis of the charts (default %(default)s)")
    parser.flag("--mean", "in charts, the seeds of an experiment as their mean with its 95%% interval")
    parser.flag("--smooth", "in charts, an exponential moving average over 2%% of the axis")


def wait(parser: Parser) -> None:
    """Add the words of ``wait``."""
    parser.option("names", nargs="+", metavar="RUN", help="run, experiment/NAME, or a pattern with * and ?")
    parser.option(
        "--for",
        dest="condition",
        required=True,
        type=_condition,
        metavar="CONDITION",
        help="running (every pod runs), learned=VALUE (its mean return has reached VALUE), done (it has finished "
        "well), failed, gone (it was destroyed)",
    )
    parser.values["--for"] = ("running", "learned=", "done", "failed", "gone")
    parser.option(
        "--timeout",
        type=span,
        default=None,
        metavar="SPAN",
        help="such as 90s, 30m or 2h; 0 looks once (default: no limit)",
    )
    parser.flag("--any", "return when one of the runs has reached it")


def _names(parser: Parser, metavar: str, sentence: str) -> None:
    parser.option("names", nargs="*", metavar=metavar, help=f"only these: {sentence}")


def _selector(parser: Parser, sentence: str) -> None:
    parser.option(
        "-l",
        "--selector",
        action="append",
        default=[],
        type=_compiled_selector,
        metavar="LABELS",
        help=f"KEY=VALUE, KEY!=VALUE, KEY, '!KEY', 'KEY in (A,B)', with commas: {sentence}",
    )


def _state(parser: Parser, verb: str) -> None:
    parser.text("--state", "STATE", f"with commas: {', '.join(STATES[verb])}")
    parser.values["--state"] = STATES[verb]


def _whose(parser: Parser) -> None:
    parser.text("--owner", "NAME", "only of these people, with commas")
    parser.flag("--mine", "only your objects")


def _filter(parser: Parser) -> None:
    parser.text(
        "--filter",
        "EXPR",
        "only rows that match: words, or columns with =, ~, <, >=; `/` in the app takes the same",
    )


def _narrowing(parser: Parser) -> None:
    _filter(parser)
    parser.flag("--watch", "follow: a table that is painted in place, in a pipe a line for each change", short="-w")


# argparse shows the text of an ArgumentTypeError unchanged, after the option's name.
def whole_number(text: str) -> int:
    """Read a whole number from 0 up. Raises ArgumentTypeError."""
    # isdigit() also accepts digits of other scripts, which int() would silently accept.
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def size(text: str) -> int:
    """Read a number of bytes: ``10Gi``, ``500M``. Raises ArgumentTypeError."""
    from l2rtui.domain.quantity import parse_bytes, parse_quantity

    try:
        return parse_bytes(text)
    except ValueError as error:
        # Too little for the memory of a pod may be enough here.
        with contextlib.suppress(ValueError):
            if (value := parse_quantity(text)) >= 0:
                return int(value)
        raise argparse.ArgumentTypeError(str(error)) from None


def _compiled_selector(text: str) -> Any:
    from l2rtui.domain.selection.filter_language import compile_selector

    try:
        return compile_selector(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def span(text: str) -> float:
    """Read a duration: ``90``, ``90s``, ``30m``, ``1.5h``, ``1h30m``, ``2d``; seconds.

    Raises:
        ArgumentTypeError: the text is not a time span.
    """
    from runtime.base.durations import parse_duration

    try:
        return parse_duration(text, allows_zero=True)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _condition(text: str) -> tuple[str, float | None]:
    """Read ``--for``: a condition and the value that ``learned`` takes."""
    import math

    word, equals, value = text.partition("=")
    # kubectl's spellings mean the same here.
    word, value = {"delete": ("gone", value), "condition": (value.casefold(), "")}.get(word, (word, value))
    word = {"ready": "running", "complete": "done", "completed": "done", "succeeded": "done"}.get(word, word)
    if word not in CONDITIONS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a condition: use running, learned=VALUE, done, failed or gone"
        )
    if word != "learned":
        if value and equals:
            raise argparse.ArgumentTypeError(f"{word} takes no value")
        return word, None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError("learned takes the return to wait for, such as learned=200")
    return word, number
