"""The words of the command line: verbs, their arguments and options, and error sentences.

Each call builds one parser, for its verb: argparse's subparsers would build all of them, and would hide the options
before the verb from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from l2rtui import __version__, commit
from l2rtui.cli import parser_groups as groups
from l2rtui.cli import parser_selection as selection
from l2rtui.cli.argument_parser import Parser, is_typo
from l2rtui.cli.examples import epilog
from l2rtui.cli.other_words import advice
from l2rtui.cli.parser_selection import whole_number
from l2rtui.errors import UsageError, nearest

if TYPE_CHECKING:
    from l2rtui.domain.selection.shared_view import SharedView

FORMATS = ("table", "wide", "json", "yaml", "name")
POLICIES = ("pack", "spread", "free-memory", "least-busy")
BINDINGS = ("env", "device-plugin", "shared", "hami", "dra", "cpu")
SHELLS = ("bash", "zsh", "fish")
_TARGETS = "RUN, RUN/SET, RUN/SET/INDEX, or experiment/NAME in place of RUN"
DEFAULT_WAIT_SECONDS = 120.0
DEFAULT_SERVE_PORT = 8000
VALUE_OPTIONS = (
    *("--backend", "--kubeconfig", "--context", "--as", "--as-group"),
    *("-n", "--namespace", "--config", "-o", "--output", "--record", "--replay", "--speed", "--view"),
)
"""Options that may precede the verb and take the next word."""


class Verb(NamedTuple):
    """One word of the command line.

    Attributes:
        module: Under ``l2rtui.cli.verbs``; imported when the verb runs. It holds ``async def run_<verb>``.
        add: Adds the verb's arguments to its parser.
        formats: The values of ``-o``; empty if the verb lacks it.
    """

    name: str
    module: str
    summary: str
    add: Callable[[Parser], None]
    formats: tuple[str, ...] = FORMATS


def _nothing(parser: Parser) -> None:
    """Most verbs that only read take just the common options."""


def _plan(parser: Parser) -> None:
    _spec(parser)
    parser.flag("--diff", "print the differences from the objects on the cluster")
    _places(parser)


def _spec(parser: Parser) -> None:
    parser.hint = (
        "Write `-f FILE` for a spec, or `-t NAME` for a template or example, such as `-t cartpole-ppo`. A program "
        "needs a spec that runs it (docs/guides/own-code.md)."
    )
    sentence = "spec file, or Kubernetes objects (repeatable), in YAML or JSON; - is the standard input"
    parser.option("-f", "--file", action="append", default=[], metavar="SPEC", help=sentence)
    parser.option("-t", "--template", default="", metavar="NAME", help="template in place of -f: `l2rtui template`")
    parser.repeated("--set", "K=V", "change one field, such as workers.w.replicas=8; repeatable")
    parser.flag("--allow-outside", "the spec may name programs outside of its own folder")
    parser.option("--seeds", type=_seeds, default=(), metavar="LIST", help="one run for each seed: 0-11 or 1,5,7")
    parser.option("--name", default="", help="name of the run, instead of the name in the file")
    parser.flag("--rename", "if the name is taken, use the next free one: NAME-2, NAME-3")
    parser.text("--image", "NAME", "image of the run, pinned to its current digest")
    parser.flag(
        "--no-pin",
        "with --image: use the tag instead of a digest, and ask no registry",
    )


def _places(parser: Parser) -> None:
    parser.option(
        "--on", type=_pins, metavar="PINS", help="only these devices or slots: node/0-3,node/5.1,node/cpu"
    )
    policies = "fill GPUs one by one, take turns, most free memory first, or least loaded first"
    parser.option("--policy", choices=POLICIES, help=policies)
    parser.option("--binding", choices=BINDINGS, help="how pods get a GPU, or cpu; overrides the spec")
    parser.flag("--overcommit", "share slots with other pods if no slot is free, several times if needed")
    parser.option(
        "--wave",
        type=whole_number,
        default=0,
        metavar="N",
        help="start N pods, wait until they run, then the next N",
    )


def _launch(parser: Parser) -> None:
    _spec(parser)
    parser.text("--like", "RUN", "launch exactly like this run of the history, instead of -f")
    parser.option(
        "--as-run", dest="as_run", default="", metavar="RUN", help=argparse.SUPPRESS
    )  # its name until 0.1
    parser.option(
        "--with",
        dest="changes",
        action="append",
        default=[],
        metavar="K=V",
        help="with --like: change one setting, such as gamma=0.9",
    )
    parser.flag("--inexact", "with --like: even if its code or image is no longer available")
    _start(parser)


def _relaunch(parser: Parser) -> None:
    parser.optional("target", "RUN", "run or experiment/NAME; by default the last one")
    parser.flag("--list", "list destroyed runs that can be launched again")
    _start(parser)


def _start(parser: Parser) -> None:
    _places(parser)
    parser.flag("--queue", "whole runs that find no room wait in a queue, and start when slots are free")
    parser.flag("--wait", "return when every pod has been ready for 10 s without a restart")
    parser.option(
        "--timeout",
        type=_seconds,
        default=DEFAULT_WAIT_SECONDS,
        metavar="S",
        help="how long --wait waits, in seconds (default %(default)g)",
    )
    _yes(parser)


def _scale(parser: Parser) -> None:
    parser.option(
        "target", metavar="RUN/SET", help="the set; experiment/NAME/SET: the set in each run, after a question"
    )
    parser.option("replicas", type=whole_number, metavar="N", help="new number of replicas")
    parser.flag("--overcommit", "share slots with other pods if no slot is free")
    _admin(parser)
    groups.all_matching(parser)
    _yes(parser)


def _kill(parser: Parser) -> None:
    parser.option("targets", nargs="+", metavar="NAME", help=f"pod, {_TARGETS}")
    _grace(parser)
    _admin(parser)
    groups.all_matching(parser)
    _yes(parser)


def _destroy(parser: Parser) -> None:
    parser.option("targets", nargs="*", metavar="RUN", help="run, RUN/SET for one set of it, or experiment/NAME")
    parser.option(
        "--seed", type=_seeds, default=(), metavar="LIST", help="only these seeds of an experiment: 3 or 0-2,7"
    )
    parser.flag("--all-mine", "all of your runs")
    parser.flag("--purge", "also delete results: checkpoints, metrics and other files")
    _grace(parser)
    parser.flag(
        "--force", "after the grace period, delete pods without waiting for their processes; check the node"
    )
    _admin(parser)
    groups.all_matching(parser)
    _yes(parser)


def _leaks(parser: Parser) -> None:
    parser.flag("--clean", "destroy what deleted runs left behind, with a receipt for each")
    _grace(parser)
    _admin(parser)
    _yes(parser)


def _logs(parser: Parser) -> None:
    parser.option("targets", nargs="+", metavar="TARGET", help=f"pod, {_TARGETS}")
    parser.flag("--follow", "continue with new lines", short="-f")
    parser.option("--since", metavar="WHEN", help="only lines newer than: 10m, 2h, or an RFC 3339 time")
    parser.option(
        "--tail", type=whole_number, metavar="N", help="only the last N lines; --grep chooses among those"
    )
    parser.option("-c", "--container", default="", metavar="NAME", help="only of this container of the pods")
    parser.flag("--previous", "logs of the previous process", short="-p")
    parser.text("--grep", "RE", "only lines that match this pattern")
    parser.text("--exclude", "RE", "no lines that match this pattern")
    parser.flag("--timestamps", "begin each line with its time, UTC")


def _attach(parser: Parser) -> None:
    parser.option("target", metavar="TARGET", help="one pod: its name, or RUN/SET/INDEX")
    parser.flag("--stdin", "accepted for users of kubectl; the command has the terminal anyway", short="-i")
    parser.flag("--tty", "the same", short="-t")


def _exec(parser: Parser) -> None:
    _attach(parser)
    parser.hint = "Write `l2rtui exec TARGET -- CMD`."
    parser.usage = "%(prog)s [options] TARGET -- CMD [ARGUMENT ...]"


def _serve(parser: Parser) -> None:
    parser.option(
        "--port",
        type=_port,
        default=DEFAULT_SERVE_PORT,
        metavar="N",
        help="port of the loopback address (default %(default)d); 0 takes any that is free",
    )


def _explain(parser: Parser) -> None:
    parser.optional("path", "FIELD", "such as train.sac.actor_lr or workers.replicas; the whole spec without it")


def _completion(parser: Parser) -> None:
    parser.option("shell", choices=SHELLS, help="whose script to print")


def _grace(parser: Parser) -> None:
    parser.option(
        "--grace",
        type=_seconds,
        metavar="S",
        help="seconds between SIGTERM and SIGKILL (default: as the spec says)",
    )


def _admin(parser: Parser) -> None:
    parser.flag("--admin", "also what belongs to other people")


def _describe(parser: Parser) -> None:
    parser.option("target", metavar="TARGET", help="one pod, run or node")


def _events(parser: Parser) -> None:
    parser.optional("target", "TARGET", "pod, run or node; all when left out")


def _port_forward(parser: Parser) -> None:
    parser.optional("target", "TARGET", "one pod: its name, or RUN/SET/INDEX; without it: list current forwards")
    parser.option(
        "ports",
        type=_ports,
        nargs="?",
        metavar="LOCAL:REMOTE",
        help="port of this machine : port of the pod; 0 for any",
    )


def _simulator(parser: Parser) -> None:
    parser.option("what", choices=("status", "restart", "signal", "frame"), help="what to do")
    parser.option("target", metavar="TARGET", help="pod or RUN/SET/INDEX; for status also RUN or RUN/SET")
    parser.option(
        "--index", type=whole_number, default=0, metavar="N", help="which of the worker's simulators (default 0)"
    )
    parser.text("--signal", "NAME", "for signal: its name or number, such as USR1")
    parser.text("--camera", "NAME", "for frame: such as CameraBirdsEye")
    parser.text("--to", "FILE", "for frame: write a PPM instead of showing it")
    _admin(parser)
    _yes(parser)


def _yes(parser: Parser) -> None:
    parser.flag("--yes", "do not ask", short="-y")


VERBS = {
    verb.name: verb
    for verb in (
        Verb("nodes", "list", "nodes with their GPUs and load", selection.nodes),
        Verb("slots", "list", "every slot of every GPU, and who holds it", selection.slots),
        Verb("pods", "list", "pods: everybody's, with their slots and state", selection.pods),
        Verb("runs", "list", "runs with their sets", selection.runs),
        Verb("experiments", "list", "experiments over their seeds: states, mean return", selection.experiments),
        Verb("owners", "owners", "who holds which slots and GPUs, and which of them do nothing", selection.owners),
        Verb("reserve", "owners", "set slots aside for your runs for a time, or list them", selection.reserve),
        Verb("unreserve", "owners", "end reservations of slots", selection.unreserve, ()),
        Verb("new", "template", "write a commented spec file to begin with", groups.new, ()),
        Verb("plan", "launch", "print the objects that a launch would create, and every problem", _plan),
        Verb("launch", "launch", "start a run, or one for each seed", _launch),
        Verb("relaunch", "launch", "launch destroyed runs again", _relaunch),
        Verb("history", "history", "past runs: list, show, remove", selection.history, (*FORMATS, "csv")),
        Verb("diff", "history", "differences between two past runs", selection.diff, ("table", "json", "yaml")),
        Verb("report", "history", "an experiment as one HTML page: curves, runs, spec, ends", selection.report, ()),
        Verb(
            "sweep",
            "history",
            "results of the trials of a sweep, the best first",
            selection.sweep,
            (*FORMATS, "csv"),
        ),
        Verb("queue", "queue", "runs that wait for slots, in their order: list, cancel, move", groups.queue),
        Verb("scale", "scale_kill_exec", "change the number of replicas of a set", _scale),
        Verb("kill", "scale_kill_exec", "stop pods; their sets replace them", _kill),
        Verb("destroy", "destroy", "remove runs and all they own, and prove it", _destroy),
        Verb("leaks", "list", "leftover objects of deleted runs: list, remove", _leaks),
        Verb("recover", "recover", "continue runs whose supervisor has ended, as after a reboot", _nothing),
        Verb("logs", "logs", "lines of one or many pods, in the order of time", _logs),
        Verb("metrics", "metrics", "training progress of runs", selection.metrics),
        Verb("wait", "wait", "block until runs reach a condition, for scripts", selection.wait),
        Verb("exec", "scale_kill_exec", "run a command in a pod, next to its process", _exec, ()),
        Verb("attach", "scale_kill_exec", "connect to a pod's process, and type if it reads input", _attach, ()),
        Verb(
            "describe",
            "inspect",
            "all known facts about one pod, run or node",
            _describe,
            ("table", "json", "yaml"),
        ),
        Verb("events", "inspect", "events of the cluster, newest last", _events),
        Verb(
            "port-forward",
            "inspect",
            "forward ports of this machine to ports of pods",
            _port_forward,
        ),
        Verb("simulator", "simulator", "state of a worker's simulators; restart, signal or view one", _simulator),
        Verb("alerts", "alerts", "send a test message to each target of a run's alerts", groups.alerts, ()),
        Verb("check", "list", "check this setup: problems, and how to solve them", _nothing),
        Verb("template", "template", "your named specs: list, show, save, delete", groups.template),
        Verb("config", "config", "show all settings, check their file", groups.config),
        Verb("image", "image", "container images: build, push, log in to registries, list", groups.image),
        Verb("secret", "secret", "keys and logins for runs: create, list, delete; never shown", groups.secret),
        Verb(
            "cluster",
            "cluster",
            "create, scale, delete a cluster in Amazon's cloud; prepare any cluster",
            groups.cluster,
        ),
        Verb(
            "artifacts", "artifacts", "checkpoints in buckets and folders: list, fetch, compare", groups.artifacts
        ),
        Verb("results", "volume", "results of destroyed runs on this machine: list, delete", groups.results),
        Verb("volume", "volume", "volumes and the files in them: list, make, delete, fetch, put", groups.volume),
        Verb("serve", "serve", "the app in a browser on this machine, behind a token", _serve, ()),
        Verb("service", "service", "install a systemd unit that continues runs after a reboot", groups.service, ()),
        Verb("schema", "files", "JSON Schema of spec files", _nothing, ("json", "yaml")),
        Verb(
            "explain",
            "files",
            "explain a field of a spec: type, default, unit, when to change it",
            _explain,
            ("table", "json", "yaml"),
        ),
        Verb("completion", "files", "completion script for a shell", _completion, ()),
    )
}


CHANGING = frozenset(
    (
        *(
            "reserve",
            "unreserve",
            "new",
            "launch",
            "relaunch",
            "queue",
            "scale",
            "kill",
            "destroy",
            "exec",
            "attach",
        ),
        *("simulator", "alerts", "template", "image", "secret", "cluster", "artifacts", "results", "volume"),
        *("port-forward", "history", "new", "recover", "service"),
    )
)
"""Verbs that change something, or have an action that does."""


def split_verb(words: Sequence[str]) -> tuple[str, list[str]]:
    """Find the verb among the words; return it and the other words. The verb is empty if there is none."""
    skip = False
    for number, word in enumerate(words):
        if skip or word.startswith("-"):
            skip = not skip and word in VALUE_OPTIONS
            continue
        return word, [*words[:number], *words[number + 1 :]]
    return "", list(words)


def app_parser() -> Parser:
    """Return the parser without a verb, which opens the app."""
    verbs = "\n".join(f"  {verb.name:<12} {verb.summary}" for verb in VERBS.values())
    parser = Parser(
        "l2rtui",
        usage="l2rtui [options]            open the app\n       l2rtui VERB [options]       do one thing",
        description="Reinforcement learning on shared GPU machines: place, launch, watch, kill and destroy.",
        epilog=f"verbs:\n{verbs}\n\n`l2rtui VERB --help` explains one.\n"
        "exit codes: 0 done, 1 failed, 2 usage, 3 refused by preflight, 4 something was left behind,\n"
        "            5 out of reach and 124 timeout (wait), 128 + n stopped by signal n",
    )
    parser.option("--version", action=_Version, nargs=0, default=argparse.SUPPRESS, help="version and commit")
    parser.text("--record", "FILE", "also record the displayed data with times to a new file, without secrets")
    parser.text("--replay", "FILE", "show such a file instead of a backend, read-only")
    parser.option(
        "--speed", type=_speed, default=1.0, metavar="X", help="with --replay: X seconds of it in a second"
    )
    parser.option(
        "--view", type=_view, metavar="LINK", help="open the view of a `:share` link, or of a file with one"
    )
    _common(parser)
    return parser


def verb_parser(verb: Verb) -> Parser:
    """Return the parser of one verb."""
    parser = Parser(
        f"l2rtui {verb.name}", description=f"{verb.summary[0].upper()}{verb.summary[1:]}.", epilog=epilog(verb.name)
    )
    verb.add(parser)
    if verb.formats:
        parser.option("-o", "--output", choices=verb.formats, default=verb.formats[0], help="output format")
    _common(parser)
    return parser


def _common(parser: Parser) -> None:
    parser.option("--backend", metavar="NAME", help="where runs live: local, kubernetes, docker or demo")
    if "--kubeconfig" not in parser.options:  # `cluster` defines it itself: the file that it writes to
        parser.text("--kubeconfig", "FILE", "clusters and users, instead of $KUBECONFIG and ~/.kube/config")
    parser.option("--context", metavar="NAME", help="cluster of the kubeconfig; several with commas")
    parser.flag("--all-contexts", "list or show all clusters of the kubeconfig")
    parser.option("--as", dest="impersonate_user", metavar="USER", help="act as another user of the cluster")
    parser.option(
        "--as-group", dest="impersonate_groups", action="append", metavar="GROUP", help="act in a group; repeatable"
    )
    parser.option("-n", "--namespace", metavar="NS", help="namespaces, with commas")
    parser.option("--config", metavar="FILE", help="settings file, instead of the default one")
    parser.option("--readonly", action="store_true", default=None, help="change nothing")
    parser.flag("--verbose", "log actions to stderr", short="-v")
    parser.flag("--debug", "log everything, to stderr and to the log file")


class _Version(argparse.Action):
    """Print version and commit, which is read only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        revision = commit()[:12]
        print(f"l2rtui {__version__}{f' (commit {revision})' if revision else ''}")
        parser.exit()


def find_verb(word: str, others: Sequence[str] = ()) -> Verb:
    """Return the verb with this name.

    Args:
        others: The other words of the command line, for the sentence.

    Raises:
        UsageError: unknown verb; suggests the verb for a word of another tool, otherwise the nearest.
    """
    if word not in VERBS:
        # A verb that changes something is suggested only for a slip behind its first letter, never for similarity.
        looking = [name for name in VERBS if name not in CHANGING]
        near = [name for name in VERBS if name in looking or name[0] == word[:1]]
        slips = [name for name in near if len(word) > 3 and is_typo(word, name)]
        if word.lower() in VERBS:
            raise UsageError(f"There is no verb {word!r}.", f"Write `l2rtui {word.lower()}`.")
        if word.endswith((".yaml", ".yml", ".json", ".py", ".sh")):
            raise UsageError(f"There is no verb {word!r}.", f"Write `l2rtui launch -f {word}`.")
        hint = (
            advice(word, others) or nearest(word, slips or looking, most=2) or f"The verbs are {', '.join(VERBS)}."
        )
        raise UsageError(f"There is no verb {word!r}.", hint)
    return VERBS[word]


# --- values of options ----------------------------------------------------------------------------------------
# argparse shows the text of an ArgumentTypeError unchanged, after the option's name.


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 up")
    return seconds


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    # At higher speeds, the second in which records are gathered would make them look old, and runs stalled.
    if not 0.01 <= speed <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0.01 to 100")
    return speed


def _port(text: str) -> int:
    number = whole_number(text)
    if number > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is a port that does not exist: they end at 65535")
    return number


def _ports(text: str) -> tuple[int, int]:
    local, _, remote = text.rpartition(":")
    if not (remote.isascii() and remote.isdigit() and (local or remote).isascii() and (local or remote).isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not LOCAL:REMOTE, such as 6006:6006")
    if not (0 < int(remote) < 65_536 and int(local or remote) < 65_536):
        raise argparse.ArgumentTypeError(f"{text!r} names a port that does not exist: they end at 65535")
    return int(local or remote), int(remote)


def _seeds(text: str) -> tuple[int, ...]:
    from l2rtui.domain.placement import parse_seeds

    try:
        return parse_seeds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _view(text: str) -> SharedView:
    from l2rtui.cli.shared_view import read_view

    return read_view(text)


def _pins(text: str) -> tuple[Any, ...]:
    from l2rtui.domain.placement import parse_pins

    try:
        return parse_pins(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
