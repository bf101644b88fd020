"""One table of commands: what ``:`` understands, what it completes, and what help says about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Command:
    """One thing that can be typed.

    Attributes:
        name: The word. takes: what may follow, for people; empty when nothing does.
        tooltip: One sentence.
        action: The action without ``action_``; ``%`` stands for what follows, as a text.
        words: Which words complete what follows: ``columns``, ``runs``, ``specs``, ``themes``,
            ``filters``, or none.
        changes: ``--readonly`` forbids it.
    """

    name: str
    takes: str
    tooltip: str
    action: str
    words: str = ""
    changes: bool = False


COMMANDS: Final = (
    Command("slots", "[FILTER]", "Slots of the nodes that match: free>=2", "view('slots',%)", "columns"),
    Command("seeds", "[FILTER]", "Seeds and their sets", "view('runs',%)", "columns"),
    Command("pods", "[FILTER]", "Pods that match: status=Failed node=n1 restarts>3", "view('pods',%)", "columns"),
    Command("nodes", "[FILTER]", "Nodes that match: free>=2", "view('nodes',%)", "columns"),
    Command("log", "[RUN[/SET[/INDEX]]]", "The log of a run, a set or a pod", "log_of(%)", "runs"),
    Command("events", "[FILTER]", "Events that match: level=Warning", "view('events',%)", "columns"),
    Command("leaks", "", "What runs that are gone have left behind", "view('leaks',%)"),
    Command("charts", "", "Charts of the marked runs", "view('charts',%)"),
    Command("place", "[FILE]", "Place a run on slots by cursor", "place(%)", "specs", changes=True),
    Command("launch", "[FILE]", "Launch a run from a spec file", "launch(%)", "specs", changes=True),
    Command("destroy", "[RUN]", "Destroy a run, or all that are `mine`", "destroy(%)", "runs", changes=True),
    Command("kill", "[RUN[/SET[/INDEX]]]", "Kill pods, which come back", "kill(%)", "runs", changes=True),
    Command("relaunch", "[RUN]", "Launch again, also what is gone", "relaunch(%)", "runs", changes=True),
    Command("edit", "", "Edit the run's spec or scale in $EDITOR", "edit", changes=True),
    Command("shell", "", "Open a shell beside the pod's process", "shell", changes=True),
    Command("attach", "", "Only this pod's output, on the whole screen", "attach"),
    Command("signal", "[NAME]", "Send the pod's process a signal", "signal(%)", changes=True),
    Command("forward", "[LOCAL:REMOTE]", "Carry a port to the pod, or end it", "forward(%)", changes=True),
    Command("simulators", "", "See to the simulators of a worker", "simulators"),
    Command("volumes", "", "See the volumes and the files in them", "volumes"),
    Command("images", "", "Build and push images", "images"),
    Command("artifacts", "[PLACE]", "See the checkpoints that runs have left", "artifacts(%)"),
    Command("admin", "", "Act for other people, or no more; their names are typed", "admin", changes=True),
    Command("filter", "[NAME]", "Show what a filter with a name shows; lists them", "filter(%)", "filters"),
    Command("keep", "NAME", "Keep the filter of this view under a name", "keep_filter(%)", "filters"),
    Command("forget", "NAME", "Forget a filter that was kept", "forget_filter(%)", "filters"),
    Command("include", "[PATTERN]", "Show only log lines that match", "narrow_log('include',%)"),
    Command("exclude", "[PATTERN]", "Hide log lines that match", "narrow_log('exclude',%)"),
    Command("save", "[FILE]", "Save the shown log lines", "save_log(%)"),
    Command("export", "FILE", "Write the shown rows of the table as CSV", "export(%)"),
    Command("faults", "", "Show only what fails", "faults"),
    Command("mine", "", "Show only what is mine, or everybody's", "mine"),
    Command("all", "", "Show the pods of all runs, or of one", "all_pods"),
    Command("theme", "[NAME]", "Other colours: l2r-dark l2r-light l2r-contrast l2r-ascii", "theme(%)", "themes"),
    Command("refresh", "", "Look at the cluster again", "look_again"),
    Command("help", "", "All keys and commands", "help"),
    Command("quit", "", "Leave the app; runs go on", "leave"),
)  # fmt: skip


def command_named(word: str) -> Command | None:
    """The command with this name, or the only one that begins so."""
    exact = next((one for one in COMMANDS if one.name == word), None)
    found = [one for one in COMMANDS if word and one.name.startswith(word)]
    return exact or (found[0] if len(found) == 1 else None)


def complete(text: str, words: Mapping[str, Sequence[str]]) -> str:
    """What the text may go on to, itself included; the text when nothing fits.

    Args:
        words: The words that stand for each ``Command.words``; columns of a view are under its command's name.
    """
    head, space, rest = text.partition(" ")
    if not space:
        return next((one.name for one in COMMANDS if head and one.name.startswith(head)), text)
    command = command_named(head)
    if command is None or not command.words:
        return text
    choices = words.get(command.name if command.words == "columns" else command.words, ())
    before, gap, last = rest.rpartition(" ")
    found = next((word for word in choices if last and word.startswith(last)), last)
    return f"{head} {before}{gap}{found}"
