"""Shell completion: a short script for each shell, which calls the hidden verb ``__complete``.

Verbs and options come from the parser itself, the names of runs, sets and pods from the backend at that moment.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from l2rtui.cli.argument_parser import Parser
from l2rtui.cli.other_words import translated
from l2rtui.cli.parser import SHELLS, VERBS, app_parser, split_verb, verb_parser
from l2rtui.errors import EXIT_DONE

if TYPE_CHECKING:
    from l2rtui.domain.snapshot import ClusterSnapshot

SCRIPTS = {
    "bash": """\
# eval "$(l2rtui completion bash)"
_l2rtui() {
    local IFS=$'\\n'
    COMPREPLY=($(l2rtui __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _l2rtui l2rtui""",
    "zsh": """\
#compdef l2rtui
# eval "$(l2rtui completion zsh)"
_l2rtui() {
    local -a found
    found=("${(@f)$(l2rtui __complete -- "${(@)words[2,$CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
}
compdef _l2rtui l2rtui""",
    "fish": """\
# l2rtui completion fish | source
complete -c l2rtui -f -a '(l2rtui __complete -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
complete -c l2rtui -n '__fish_seen_subcommand_from plan launch' -s f -l file -r -F""",
}
_SNAPSHOT_SECONDS = 2.0


def complete(words: Sequence[str]) -> int:
    """Print the candidates for the last word, one per line."""
    # The word under the cursor may be empty, but must still be completed.
    *before, last = list(words[1:] if words[:1] == ["--"] else words) or [""]
    # bash splits `--for=do` into three words, and completes only the text after the sign.
    if last == "=":
        last = ""
    elif before[-1:] == ["="]:
        before.pop()
    for candidate in _candidates(before, last):
        if candidate.startswith(last):
            print(candidate)
    return EXIT_DONE


def _candidates(before: list[str], last: str) -> Iterable[str]:
    name, others = split_verb(before)
    if name and name not in VERBS:
        # `get pods …` is completed like `pods …`, and `get` itself with the kinds that can be listed.
        command_line = translated(name, others)
        return _candidates(command_line, last) if command_line else _KINDS if name == "get" else ()
    parser = verb_parser(VERBS[name]) if name else app_parser()
    previous = before[-1] if before else ""
    option, equals, _ = last.partition("=")
    if equals and option in parser.values:
        return [f"{option}={value}" for value in _values(parser, option, others)]
    if previous in parser.values:
        return _values(parser, previous, others)
    if last.startswith("-"):
        return parser.options
    if not name:
        return VERBS
    if name == "explain":
        return _fields()
    return SHELLS if name == "completion" else _live_names(name, others)


_KINDS: Final = ("pods", "nodes", "runs", "experiments", "slots", "events", "secrets", "volumes")
_OBJECTS: Final = {
    **dict.fromkeys(("runs", "metrics", "wait", "--run"), "runs"),
    **dict.fromkeys(("nodes", "--node"), "nodes"),
    **dict.fromkeys(("destroy", "report"), "experiments"),
    **dict.fromkeys(("experiments", "sweep"), "experiment names"),
    "scale": "sets",
    "slots": "devices",
    "--owner": "owners",
    **dict.fromkeys(("describe", "events"), "objects"),
    **dict.fromkeys(("pods", "kill", "logs", "exec", "attach", "port-forward", "simulator"), "pods"),
}
"""Kinds of names that follow a verb or an option."""


def _fields() -> Iterable[str]:
    from l2rtui.services.spec.reference import every_path

    return every_path()


def _values(parser: Parser, option: str, words: Sequence[str]) -> Iterable[str]:
    if option == "--backend":
        from l2rtui.backends.registry import BACKENDS

        return BACKENDS
    if option in ("-t", "--template"):
        from l2rtui.services.spec.templates import examples, templates

        return [*(template.name for template in templates()), *examples()]
    if option == "--set":
        return [f"{path}=" for path in _fields()]
    if option in _OBJECTS:
        return _live_names(option, words)
    return parser.values[option]


def _live_names(verb: str, words: Sequence[str]) -> Iterable[str]:
    """Return current names; empty if the backend does not answer, since errors must not disturb a prompt."""
    if verb not in _OBJECTS:
        return ()
    import asyncio

    from l2rtui.errors import L2RError

    try:
        args, _ = app_parser().parse_known_args(words)
        return asyncio.run(_names(_OBJECTS[verb], args))
    except (L2RError, OSError, TimeoutError):
        return ()


async def _names(kind: str, args: Namespace) -> list[str]:
    import asyncio

    from l2rtui.backends.registry import make_backend
    from l2rtui.cli.session import settings_of

    settings = settings_of(args)
    backend = make_backend(settings.backend, settings)
    try:
        # A cluster that does not answer must not block the prompt.
        async with asyncio.timeout(_SNAPSHOT_SECONDS):
            snapshot = await backend.snapshot()
    finally:
        await backend.close()
    return _names_in(snapshot, kind)


def _names_in(snapshot: ClusterSnapshot, kind: str) -> list[str]:
    runs = sorted(run.name for run in snapshot.runs.values())
    sets = [f"{run.name}/{set_view.name}" for run in snapshot.runs.values() for set_view in run.sets]
    match kind:
        case "sets":
            return sets
        case "experiments":
            experiments = sorted({run.experiment for run in snapshot.runs.values()})
            return [*sorted({*runs, *experiments}), *(f"experiment/{name}" for name in experiments)]
        case "experiment names":
            return sorted({run.experiment for run in snapshot.runs.values()})
        case "runs":
            return runs
        case "nodes":
            return list(snapshot.nodes)
        case "devices":
            devices = dict.fromkeys(str(slot).rpartition(".")[0] for slot in snapshot.ledger.slots)
            return [*snapshot.nodes, *devices]
        case "owners":
            return sorted({pod.owner for pod in snapshot.pods.values() if pod.owner})
        case "objects":
            return [*runs, *snapshot.nodes, *(pod.name for pod in snapshot.pods.values())]
        case _:
            return [*runs, *sets, *(pod.name for pod in snapshot.pods.values())]
