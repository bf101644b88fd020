"""Table of commands: names after ``:``, their completion, and their help. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType
from typing import Final

from l2rtui.ui.keys.table import KEYS


@dataclass(frozen=True, slots=True)
class Command:
    """Command of the command line.

    Attributes:
        name: First word. takes: its arguments, for the help; empty without any.
        tooltip: One sentence.
        action: The action without ``action_``; ``%`` is replaced by the argument text.
        completion: Source of the completions of its argument: ``columns``, ``runs``, ``gone``, ``specs``,
            ``experiments``, ``themes``, ``filters``, ``contexts``, ``namespaces``, or none.
        changes: ``--readonly`` forbids it.
    """

    name: str
    takes: str
    tooltip: str
    action: str
    completion: str = ""
    changes: bool = False


COMMANDS: Final = (
    Command("slots", "[FILTER]", "Slots of the nodes that match: free>=2", "view('slots',%)", "columns"),
    Command("runs", "[FILTER]", "Runs and their sets", "view('runs',%)", "columns"),
    Command("pods", "[FILTER]", "Pods that match: status=Failed node=n1 restarts>3", "view('pods',%)", "columns"),
    Command("nodes", "[FILTER]", "Nodes that match: free>=2", "view('nodes',%)", "columns"),
    Command("log", "[RUN[/SET[/INDEX]]]", "The log of a run, a set or a pod", "log_of(%)", "targets"),
    Command("events", "[FILTER]", "Events that match: level=Warning", "view('events',%)", "columns"),
    Command("leaks", "", "Remains of destroyed runs", "view('leaks',%)"),
    Command("charts", "", "Charts of the marked runs", "view('charts',%)"),
    Command("place", "[FILE]", "Place a run on slots by cursor", "place(%)", "specs", changes=True),
    Command("launch", "[FILE]", "Launch a run from a spec file", "launch(%)", "specs", changes=True),
    Command("destroy", "[RUN]", "Destroy a run, or all that are `mine`", "destroy(%)", "targets", changes=True),
    Command("kill", "[RUN[/SET[/INDEX]]]", "Kill pods, which come back", "kill(%)", "targets", changes=True),
    Command("relaunch", "[RUN]", "Launch a run again, also a destroyed one", "relaunch(%)", "gone", changes=True),
    Command("gone", "", "Runs that were destroyed from here; enter launches again", "gone", changes=True),
    Command("describe", "", "All that is known of the selection", "detail"),
    Command("edit", "", "Edit the run's spec or scale in $EDITOR", "edit", changes=True),
    Command("shell", "", "Open a shell next to the pod's process", "shell", changes=True),
    Command("attach", "", "Type into the pod's process, or see only its output", "attach"),
    Command("signal", "[NAME]", "Send the pod's process a signal", "signal(%)", changes=True),
    Command("forward", "[LOCAL:REMOTE]", "Forward a port to the pod, or end it", "forward(%)", changes=True),
    Command("forwards", "", "See the ports that are forwarded", "forwards"),
    Command("simulators", "", "List, restart or signal its simulators", "simulators"),
    Command("volumes", "", "See the volumes and the files in them", "volumes"),
    Command("images", "", "Build and push images", "images"),
    Command("artifacts", "[PLACE]", "List the checkpoints that runs have left", "artifacts(%)"),
    Command("experiments", "[FILTER]", "Experiments over their seeds: stalled>0", "experiments(%)"),
    Command("sweep", "[NAME]", "Trials of a sweep with their values and returns", "sweep(%)", "experiments"),
    Command("owners", "[FILTER]", "Who holds which slots and GPUs: idle>0", "owners(%)"),
    Command("reserve", "[SLOTS] [4h] [NOTE]", "Set slots aside for your runs", "reserve(%)", changes=True),
    Command("unreserve", "[SLOTS]", "End the reservation of slots", "unreserve(%)", changes=True),
    Command("alerts", "[RUN]", "Send a test to a run's alert targets", "test_alerts(%)", "targets", changes=True),
    Command("history", "[FILTER]", "Runs of the past: best>200 state=failed", "past_runs(%)"),
    Command("journal", "", "Runs launched, scaled, killed and destroyed from here", "journal"),
    Command("since", "", "What started, ended or failed since you left", "since_left"),
    Command("admin", "", "Act for other people, or stop; you type their names", "admin", changes=True),
    Command("filter", "[NAME]", "Apply a named filter; lists them", "filter(%)", "filters"),
    Command("sort", "[-]COLUMN", "Sort the table by a column, with - downwards", "sort_by(%)", "columns"),
    Command("save-filter", "NAME", "Save the filter of this view under a name", "keep_filter(%)", "filters"),
    Command("ctx", "[CONTEXT]", "Go to another cluster; `a,b` or `*` shows several", "context(%)", "contexts"),
    Command("ns", "[NAME[,NAME]]", "Look at other namespaces, * at all", "namespaces(%)", "namespaces"),
    Command("delete-filter", "NAME", "Delete a saved filter", "forget_filter(%)", "filters"),
    Command("include", "[PATTERN]", "Show only log lines that match", "narrow_log('include',%)"),
    Command("exclude", "[PATTERN]", "Hide log lines that match", "narrow_log('exclude',%)"),
    Command("save", "[FILE]", "Save the shown log lines", "save_log(%)"),
    Command("export", "FILE", "Write the shown rows as CSV; the charts as .svg or .csv", "export(%)"),
    Command("screenshot", "[FILE]", "Write the screen to a file: .svg or .txt", "app.save_screen(%)"),
    Command("share", "[FILE]", "Copy the command that opens this view, or write its link", "share(%)"),
    Command("faults", "", "Show only what fails", "faults"),
    Command("mine", "", "Show only your own rows, or all", "mine"),
    Command("all", "", "Show the pods of all runs, or of one", "all_pods"),
    Command("theme", "[NAME]", "Other colours: l2r-dark l2r-light l2r-contrast l2r-ascii", "theme(%)", "themes"),
    Command("reload", "", "Read the settings file again", "app.reload_settings"),
    Command("refresh", "", "Look at the cluster again", "look_again"),
    Command("help", "", "All keys and commands", "help"),
    Command("quit", "", "Leave the app; runs go on", "leave"),
)  # fmt: skip


ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "seeds": "runs",
        "ls": "runs",
        "po": "pods",
        "top": "nodes",
        "logs": "log",
        "ev": "events",
        "delete": "destroy",
        "keep": "save-filter",
        "forget": "delete-filter",
    }
    | {"context": "ctx", "contexts": "ctx", "namespace": "ns", "namespaces": "ns"}
    | {"rm": "destroy", "apply": "launch", "desc": "describe", "?": "help", "q!": "quit", "exit": "quit"}
)
"""Words of kubectl, k9s and shells that people may try first."""


SYNONYMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "kill": "restart reset recreate",
        "destroy": "stop delete remove terminate cancel",
        "relaunch": "restart rerun again",
        "cancel": "undo revert",
        "launch": "start run submit new train",
        "scale": "replicas workers more fewer",
        "charts": "metrics plot curve graph tensorboard returns learning",
        "log": "tail output console print stdout",
        "forward": "port tunnel tensorboard",
        "owners": "quota usage who idle queue",
        "reserve": "queue book",
        "theme": "colours colors dark light skin",
        "reload": "settings config preferences",
        "spec": "yaml settings manifest file",
        "edit": "settings yaml change",
        "sweep": "trials search hyperparameters grid",
        "artifacts": "checkpoints models weights",
        "past runs": "history diff compare",
        "faults": "errors failures problems",
        "shell": "exec bash terminal ssh",
        "describe": "details info inspect",
        "screenshot": "picture svg",
        "filter": "search find grep",
        "zoom": "maximise maximize fullscreen",
    }
)
"""Synonyms of keys and commands, by name."""


def is_meant(words: str, name: str, sentence: str) -> bool:
    """Return True if every one of the words begins a word of a name, its sentence or its synonyms."""
    text = f"{name} {sentence} {SYNONYMS.get(name, '')}".casefold()
    of_text = text.replace(";", " ").replace(",", " ").replace("/", " ").split()
    wanted_words = words.casefold().split()
    return bool(wanted_words) and all(any(part.startswith(word) for part in of_text) for word in wanted_words)


@cache
def changing_actions() -> frozenset[str]:
    """Names of the actions of keys and commands that ``--readonly`` forbids, without their arguments."""
    return frozenset(entry.action.partition("(")[0] for entry in (*KEYS, *COMMANDS) if entry.changes)


def hint_for(word: str) -> str:
    """Return the next step after an unknown command; one that changes something only for a slip of the fingers."""
    if key := next((key for key in KEYS if key.name == word), None):
        return f"The key {key.face} does that."
    changing = {command.name for command in COMMANDS if command.changes}
    every = [*(command.name for command in COMMANDS), *ALIASES]
    looking = [name for name in every if ALIASES.get(name, name) not in changing]
    slips = [name for name in get_close_matches(word, every, n=2, cutoff=0.8) if name[0] == word[:1]]
    by_synonym = [name for name in looking if word.casefold() in SYNONYMS.get(name, "").split()]
    names = dict.fromkeys(
        ALIASES.get(name, name) for name in slips or by_synonym or get_close_matches(word, looking, n=2)
    )
    return f"Did you mean {' or '.join(names)}?" if names else "`:?` lists them."


def command_named(word: str) -> Command | None:
    """Return the command with this name or alias, or the only one with this prefix."""
    word = ALIASES.get(word, word)
    exact = next((command for command in COMMANDS if command.name == word), None)
    matching = [command for command in COMMANDS if word and command.name.startswith(word)]
    return exact or (matching[0] if len(matching) == 1 else None)


def complete(text: str, completions: Mapping[str, Sequence[str]]) -> str:
    """Return the text with its last word completed; unchanged if nothing matches.

    Args:
        completions: Words by ``Command.completion``; the columns of a view are under the name of its command.
    """
    head, space, rest = text.partition(" ")
    if not space:
        return next((candidate.name for candidate in COMMANDS if head and candidate.name.startswith(head)), text)
    command = command_named(head)
    if command is None or not command.completion:
        return text
    choices = completions.get(command.name if command.completion == "columns" else command.completion, ())
    # Only the last word is completed: a filter has several.
    before, gap, last = rest.rpartition("," if command.completion in ("namespaces", "contexts") else " ")
    matching = next((word for word in choices if last and word.startswith(last)), last)
    return f"{head} {before}{gap}{matching}"
