"""Words of kubectl, helm, docker, SkyPilot, Ray and shells that users may try as verbs.

Words that only read are executed: ``get pods`` runs ``pods``. Words that change something only print the command to
type, since the same word has another meaning here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from l2rtui.domain.selection.filter_language import KINDS

LISTS: Final = {
    "get": "",
    "list": "runs",
    "ls": "runs",
    "ps": "pods",
    "squeue": "queue",
    "status": "runs",
    "stat": "runs",
    "show": "runs",
    "jobs": "runs",
    "workers": "pods",
    "gpus": "slots",
}
"""Words that list, with the verb they mean if no kind follows."""
SAME: Final = {
    "log": "logs",
    "run": "runs",
    "pod": "pods",
    "node": "nodes",
    "slot": "slots",
    "event": "events",
    "version": "--version",
    "doctor": "check",
    "info": "check",
    "cluster-info": "check",
    "tree": "runs",
    "users": "owners",
    "who": "owners",
    "desc": "describe",
    "inspect": "describe",
}
"""Other spellings of read-only verbs; ``run`` is one if no file follows."""
_VALUE_OPTIONS: Final = frozenset(
    [
        "--backend",
        "--kubeconfig",
        "--context",
        "-n",
        "--namespace",
        "--config",
        "-o",
        "--output",
        "-l",
        "--selector",
        "-f",
        "--file",
        "--filename",
        "-c",
        "--container",
        "--grace-period",
        "--grace",
        "--replicas",
        "--timeout",
        "--image",
        "--as",
        "--as-group",
    ]
)
"""Options of this program and of others whose value is the next word."""
_FILES: Final = (".yaml", ".yml", ".json")


def translated(verb: str, words: Sequence[str]) -> list[str]:
    """Return the command line meant by a word of another tool; empty if the word only looks like one.

    Args:
        verb: A word that is not a verb. words: the other words, in order.
    """
    kind, rest = _split_kind(words)
    match verb:
        case "help":
            return [*words, "--help"]
        case "kubectl" | "sky" | "ray" | "dstack" if words and (words[0] in SAME or words[0] in LISTS):
            return translated(words[0], words[1:])
        case "top" if KINDS.get(kind, "nodes") == "nodes":
            return ["nodes", *(rest if kind else words), "-o", "wide"]
        case "top" if KINDS.get(kind) == "pods":
            return ["slots", *rest, "--state", "busy,failed", "-o", "wide"]
        case "run" if _file(words):
            return []
        case "diff" if _file(words):  # kubectl's: with two runs it is our verb
            return ["plan", "--diff", *words]
        case _ if verb in SAME:
            return [*SAME[verb].split(), *words]
        case _ if verb in LISTS and kind in KINDS:
            return [*KINDS[kind].split(), *rest]
        case _ if LISTS.get(verb):
            return [LISTS[verb], *words]
    return []


def without_kind(words: Sequence[str]) -> list[str]:
    """Return the words of ``describe`` without a kind before the name: ``pod NAME`` gives ``NAME``."""
    names = _positionals(words)
    if len(names) == 2 and names[0] in KINDS:
        cut = list(words).index(names[0])
        return [*words[:cut], *words[cut + 1 :]]
    return list(words)


def advice(verb: str, words: Sequence[str]) -> str:
    """Return the command to type for another tool's word that changes something; empty for an unknown word."""
    make = ADVICE.get(verb)
    return make(words) if make is not None else ""


# --- what changes something ------------------------------------------------------------------------------------
def _delete(words: Sequence[str]) -> str:
    kind, rest = _split_kind(words)
    names = " ".join(_positionals(rest if kind else words))
    match KINDS.get(kind, ""):
        case "pods":
            return f"Write `l2rtui kill {names or 'POD'}`: its set replaces it. For the run: `l2rtui destroy RUN`."
        case "secret ls":
            return f"Write `l2rtui secret delete {names or 'NAME'}`."
        case "volume ls":
            return f"Write `l2rtui volume delete {names or 'NAME'}`."
        case "nodes":
            return "Nodes are the cluster's: `l2rtui cluster scale` gives a group fewer."
    if file := _file(words):
        return f"Write `l2rtui destroy RUN` with the name in {file}."
    return f"Write `l2rtui destroy {names or 'RUN'}` for a run, `l2rtui kill {names or 'POD'}` for a pod."


def _launch(words: Sequence[str]) -> str:
    file = _file(words) or "SPEC"
    return f"Write `l2rtui launch -f {file}`; `l2rtui plan -f {file} --diff` shows the difference."


def _create(words: Sequence[str]) -> str:
    kind, rest = _split_kind(words)
    names = " ".join(_positionals(rest))
    match KINDS.get(kind, ""):
        case "secret ls":
            name = _positionals(rest)[-1:] or ["NAME"]
            return f"Write `l2rtui secret create {name[0]} --prompt KEY`."
        case "volume ls":
            return f"Write `l2rtui volume create {names or 'NAME'} --size 50Gi`."
    return f"{_launch(words)} Others: `l2rtui volume create`, `secret create`, `cluster create`."


def _destroy(words: Sequence[str]) -> str:
    return f"Write `l2rtui destroy {' '.join(_positionals(words)) or 'RUN'}`."


def _stop(words: Sequence[str]) -> str:
    name = " ".join(_positionals(words)) or "RUN"
    return f"Write `l2rtui destroy {name}`, or `l2rtui scale {name}/SET 0`."


def _with_run(sentence: str) -> Callable[[Sequence[str]], str]:
    """Return the advice in which the named run, if any, stands for RUN."""
    return lambda words: sentence.replace("RUN", " ".join(_positionals(words)[:1]) or "RUN")


def _tool(words: Sequence[str]) -> str:
    verb, *rest = words or [""]
    if verb in ("launch", "exec", "logs", "queue", "serve"):  # these are ours, too
        return _launch(rest) if verb == "launch" else f"Write `l2rtui {' '.join(words)}`."
    return advice(verb, rest) or "Write `l2rtui runs`, or another verb: `l2rtui --help` lists them."


def _pause(words: Sequence[str]) -> str:
    name = " ".join(_positionals(words)) or "RUN"
    return (
        f"Runs cannot be paused. `l2rtui scale {name}/SET 0` stops the workers of a set and keeps the run; "
        f"`l2rtui scale {name}/SET N` goes on."
    )


def _restart(words: Sequence[str]) -> str:
    names = [word for word in _positionals(words) if word != "restart"]
    name = " ".join(names).rpartition("/")[2]
    return (
        f"Write `l2rtui kill {name or 'POD'}`: its set replaces it. "
        f"To launch a destroyed run again: `l2rtui relaunch {name or 'RUN'}`."
    )


def _shell(words: Sequence[str]) -> str:
    name = " ".join(_positionals(words)[:1]) or "POD"
    return f"Write `l2rtui exec {name} -- bash`, or `l2rtui attach {name}`."


def _copy(words: Sequence[str]) -> str:
    parts = " ".join(_positionals(words)[:2])
    return (
        f"Write `l2rtui volume get {parts or 'NAME:PATH TO'}` or `l2rtui volume put`; "
        "checkpoints: `l2rtui artifacts get RUN`."
    )


def _fixed(sentence: str) -> Callable[[Sequence[str]], str]:
    return lambda _: sentence


ADVICE: Final[dict[str, Callable[[Sequence[str]], str]]] = {
    "get": _fixed("Write `l2rtui pods`, `nodes`, `runs`, `events` or `slots`; `get pods` works as well."),
    "top": _fixed("Write `l2rtui nodes -o wide` for load, `l2rtui metrics -w` for learning; the app shows both."),
    **dict.fromkeys(("delete", "del", "rm", "remove"), _delete),
    **dict.fromkeys(("down", "cancel", "uninstall", "terminate", "teardown", "scancel", "autodown"), _destroy),
    **dict.fromkeys(("stop", "abort", "halt", "end", "finish"), _stop),
    **dict.fromkeys(
        ("clean", "cleanup", "clear", "prune", "purge", "gc", "free"),
        _fixed(
            "Write `l2rtui leaks` for remains of destroyed runs, `l2rtui results` for what destroyed runs keep on "
            "this machine, `l2rtui history` for records."
        ),
    ),
    **dict.fromkeys(
        (
            "apply",
            "up",
            "submit",
            "install",
            "upgrade",
            "start",
            "run",
            "sbatch",
            "replace",
            "deploy",
            "train",
            "begin",
        ),
        _launch,
    ),
    "create": _create,
    **dict.fromkeys(("rollout", "restart"), _restart),
    **dict.fromkeys(("ssh", "shell", "sh", "bash"), _shell),
    **dict.fromkeys(("cp", "rsync", "scp"), _copy),
    **dict.fromkeys(("edit", "patch"), _fixed("Write `l2rtui launch -f SPEC --set KEY=VALUE` for a new run.")),
    **dict.fromkeys(
        ("cordon", "drain", "uncordon"), _fixed("That is kubectl's. Write `l2rtui nodes` to see them.")
    ),
    **dict.fromkeys(
        ("init", "quickstart", "setup"),
        _fixed(
            "Write `l2rtui new NAME --env ID --algorithm ppo` for a spec file, then `l2rtui launch -f NAME.yaml`. "
            "`l2rtui demo` shows the app without one."
        ),
    ),
    **dict.fromkeys(
        ("examples", "example", "samples", "manifests"),
        _fixed(
            "Write `l2rtui launch -t cartpole-ppo`; `l2rtui template` names the examples, `l2rtui new` writes a "
            "spec."
        ),
    ),
    **dict.fromkeys(
        ("settings", "params", "parameters", "hyperparameters", "fields", "docs"),
        _fixed("Write `l2rtui explain train` for training settings, `l2rtui config show` for the app's settings."),
    ),
    **dict.fromkeys(
        ("undo", "rollback"),
        _fixed("Key u of the app calls a kill back; `l2rtui relaunch RUN` launches again."),
    ),
    **dict.fromkeys(
        ("plot", "chart", "charts", "curve", "curves", "graph", "graphs", "progress", "monitor", "returns"),
        _with_run(
            "Write `l2rtui metrics RUN`; `l2rtui report EXPERIMENT` makes a page of curves, the app draws them."
        ),
    ),
    **dict.fromkeys(
        ("tensorboard", "tb", "wandb", "mlflow"),
        _with_run(
            "Write `l2rtui metrics RUN --tensorboard`; `log_to: wandb` in a spec sends it live, and "
            "`l2rtui history export RUN --to wandb` copies it."
        ),
    ),
    **dict.fromkeys(("port", "forward", "tunnel"), _fixed("Write `l2rtui port-forward POD LOCAL:REMOTE`.")),
    **dict.fromkeys(("tail", "follow", "output", "stdout"), _with_run("Write `l2rtui logs RUN -w`.")),
    **dict.fromkeys(
        ("build", "push", "pull"), _fixed("Write `l2rtui image build`; `l2rtui image --help` names the rest.")
    ),
    **dict.fromkeys(
        ("yaml", "spec", "manifest"),
        _fixed(
            "Write `l2rtui history show RUN -o yaml` for the spec of a run, `l2rtui new NAME --env ID` for a new "
            "file, `l2rtui explain` for its fields."
        ),
    ),
    **dict.fromkeys(
        ("checkpoint", "checkpoints", "model", "models", "weights", "download", "save"),
        _with_run("Write `l2rtui artifacts ls RUN` for checkpoints, `l2rtui artifacts get RUN` to copy one."),
    ),
    **dict.fromkeys(
        ("env", "envs", "environment", "environments", "gym"),
        _fixed("Write `l2rtui explain train.environment`; `l2rtui new NAME --env ID` writes a spec for one."),
    ),
    **dict.fromkeys(
        ("algorithm", "algorithms", "methods", "algos"), _fixed("Write `l2rtui explain train.algorithm`.")
    ),
    **dict.fromkeys(
        ("export", "compare"),
        _fixed(
            "Write `l2rtui report EXPERIMENT`, `l2rtui metrics RUN --csv FILE`, `l2rtui diff RUN RUN`, or "
            "`l2rtui history export RUN --to mlflow`."
        ),
    ),
    **dict.fromkeys(
        ("python", "api", "sdk"),
        _fixed(
            "Programs write `from l2rtui import api`: docs/api.md. The command line begins with `l2rtui launch`."
        ),
    ),
    **dict.fromkeys(("web", "browser", "http"), _fixed("Write `l2rtui serve`: `l2rtui serve --help`.")),
    **dict.fromkeys(("upload", "sync", "mount"), _fixed("Write `l2rtui volume put FROM NAME:PATH`.")),
    **dict.fromkeys(("kubectl", "sky", "ray", "dstack"), _tool),
    **dict.fromkeys(("quota", "quotas", "usage", "whoami"), _fixed("Write `l2rtui owners`: who holds slots.")),
    **dict.fromkeys(("validate", "lint", "dry-run"), _fixed("Write `l2rtui plan -f SPEC`, which creates nothing.")),
    **dict.fromkeys(("pause", "suspend", "unpause"), _pause),
    **dict.fromkeys(
        ("resume", "continue", "rerun", "repeat"),
        _with_run(
            "Write `l2rtui relaunch RUN` for a destroyed run, `l2rtui launch --like RUN` for a run of the history, "
            "`l2rtui scale RUN/SET N` for workers that were scaled to 0."
        ),
    ),
    "watch": _fixed("Write `l2rtui runs -w`, `pods -w` or `metrics -w`."),
    "use": _fixed("l2rtui uses kubectl's contexts: write `l2rtui --context NAME`."),
    "login": _fixed("Write `l2rtui image login REGISTRY`; a cluster's login is in its kubeconfig."),
    **dict.fromkeys(
        ("ui", "tui", "app", "open", "dashboard", "dash"),
        _fixed("Write just `l2rtui` for the app, `l2rtui serve` for the app in a browser: `l2rtui serve --help`."),
    ),
}


# --- reading of words ------------------------------------------------------------------------------------------
def _split_kind(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the kind that is named first, and the other words; ``pod/NAME`` gives the kind and the name."""
    for number, word in enumerate(words):
        if word.startswith("-") or (number and words[number - 1] in _VALUE_OPTIONS):
            continue
        head, slash, name = word.partition("/")
        if head.casefold() in KINDS:
            others = [*words[:number], *([name] if slash else []), *words[number + 1 :]]
            return head.casefold(), others
        return "", list(words)
    return "", list(words)


def _positionals(words: Sequence[str]) -> list[str]:
    """Return the words that are neither options nor their values."""
    return [
        word
        for number, word in enumerate(words)
        if not word.startswith("-") and (number == 0 or words[number - 1] not in _VALUE_OPTIONS)
    ]


def _file(words: Sequence[str]) -> str:
    """Return the first word that is the name of a spec file; empty without one."""
    return next((word for word in words if word.endswith(_FILES)), "")
