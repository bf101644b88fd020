"""Argument parser: argparse with errors as sentences that suggest the nearest valid word."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from l2rtui.errors import UsageError, nearest

_OPTIONS_OF_OTHERS = {
    "-A": "Namespaces are named: -n NS1,NS2.",
    "--all-namespaces": "Namespaces are named: -n NS1,NS2.",
    "--all": "Every run of yours: `l2rtui destroy --all-mine`.",
    "--replicas": "Write `l2rtui scale RUN/SET N`.",
    "--grace-period": "Write --grace S.",
    "--now": "Write --grace 0.",
    "--dry-run": "Write `l2rtui plan -f SPEC`.",
    "--cascade": "A destroy takes all that a run owns.",
    "--follow": "Write -w, or --watch.",
    "-f": "Write -w to follow; a file is for `launch` and `plan`.",
    "-u": "Write --owner NAME, or --mine.",
    "--user": "Write --owner NAME, or --mine.",
    "--show-labels": "Write -o json: its `labels`.",
    "--field-selector": "Write --node NODE, --state STATE or --filter EXPR.",
    "--sort-by": "Write -o json, and sort that; the app sorts by `.`.",
    "--idle-minutes-to-autostop": "A run continues until `l2rtui destroy RUN`.",
    "--json": "Write -o json.",
    "--yaml": "Write -o yaml.",
    "--format": "Write -o json, yaml, table or name.",
    "--no-color": "Set the variable NO_COLOR=1; a pipe has no colours anyway.",
    "--no-colour": "Set the variable NO_COLOR=1; a pipe has no colours anyway.",
    **dict.fromkeys(
        ("--gpus", "--gpu", "--num-gpus", "--accelerators"),
        "Slots and GPUs are set in the spec: `--set workers.0.gpus=1`; --on NODE/GPU names them.",
    ),
    **dict.fromkeys(("--limit", "--head", "--top"), "Write `| head` behind it; history has --last N."),
    "--cpus": "CPU and memory are set in the spec: `--set workers.0.pod.cpu=4`.",
    "--force": "This verb has no --force; --yes skips its question, if it asks one.",
    "--yes": "It asks no question, so it needs no --yes.",
    "-y": "It asks no question, so it needs no -y.",
    "--demo": "Write `l2rtui demo`, or --backend demo.",
}
"""Next steps for options of other programs that no verb has, or that this verb lacks."""
_OTHER_NAMES = {
    **dict.fromkeys(("--age", "--days", "--older-than", "--before"), "--older"),
    **dict.fromkeys(("--max-size", "--bytes"), "--size"),
    **dict.fromkeys(("--tail", "--lines"), "--last"),
}
"""Options that a verb may have under another name."""
_CHANGING = ("--yes", "-y", "--as", "--as-group", "--all-matching")
"""Options that skip a question or change who acts: proposed only for a wrong letter."""


class Parser(argparse.ArgumentParser):
    """argparse with errors as sentences, suggestions of the nearest valid word, and no abbreviations."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self._name = prog.removeprefix("l2rtui").strip()
        self.hint = ""
        """Next step for a superfluous or a missing word, if ``--help`` is not the best."""
        self.options: list[str] = ["-h", "--help"]
        self.values: dict[str, tuple[str, ...]] = {}
        """Options that take the next word, with its allowed values; empty if any value is allowed."""

    def option(self, *names: str, **settings: Any) -> None:
        """Add one argument and remember its names for completion and for hints."""
        if names[0].startswith("-"):
            self.options += names
            if "action" not in settings or "metavar" in settings:
                self.values |= dict.fromkeys(names, settings.get("choices", ()))
        self.add_argument(*names, **settings)

    def flag(self, name: str, sentence: str, short: str = "") -> None:
        """Add an option without a value."""
        self.option(*filter(None, (short, name)), action="store_true", help=sentence)

    def text(self, name: str, metavar: str, sentence: str) -> None:
        """Add an option whose value is a text, empty by default."""
        self.option(name, default="", metavar=metavar, help=sentence)

    def repeated(self, name: str, metavar: str, sentence: str) -> None:
        """Add an option that may be given several times; its value is a list of texts."""
        self.option(name, action="append", default=[], metavar=metavar, help=sentence)

    def optional(self, name: str, metavar: str, sentence: str) -> None:
        """Add an argument that may be left out; it is then empty."""
        self.option(name, nargs="?", default="", metavar=metavar, help=sentence)

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse, or raise UsageError with the nearest option for each unknown one."""
        self._require_file_option(words)
        arguments, unknown = self.parse_known_intermixed_args(words)
        if not unknown:
            return arguments
        word = unknown[0]
        if not word.startswith("-"):
            raise UsageError(f"{self._name} takes no further argument {word!r}.", self.hint or self._see())
        name = word.partition("=")[0]
        # `--gpus` where this verb has --gpu.
        slips = [option for option in self.options if len(name) > 3 and is_typo(name, option)]
        of_others = nearest(name, slips, most=2) if name in _OPTIONS_OF_OTHERS else ""
        of_others = of_others or _OPTIONS_OF_OTHERS.get(name, "")
        if (other := _OTHER_NAMES.get(name)) in self.options:
            of_others = f"Did you mean {other}?"
        near = [option for option in self.options if option not in _CHANGING or option in slips]
        hint = of_others or nearest(name, near, most=2) or self._see()
        raise UsageError(f"{self._name or 'l2rtui without a verb'} has no option {name}.", hint)

    def _require_file_option(self, words: Sequence[str]) -> None:
        """Report a file given without its option, as SkyPilot and Ray accept it."""
        file = next((word for word in words if word.endswith((".yaml", ".yml"))), "")
        if file and "--file" in self.options and not any(word.startswith(("-f", "--file")) for word in words):
            raise UsageError(f"{self._name} takes its file by -f.", f"Write `{self.prog} -f {file}`.")

    def error(self, message: str) -> NoReturn:
        """Turn argparse's error into a UsageError with our wording."""
        hint = self.hint if "required" in message and self.hint else self._see()
        raise UsageError(f"{self._name}: {message}." if self._name else f"{message}.", hint)

    def _see(self) -> str:
        return f"See `{self.prog} --help`."


def is_typo(word: str, right: str) -> bool:
    """Return True if the words differ by one missing, extra or wrong letter, or by two swapped adjacent letters."""
    if abs(len(word) - len(right)) > 1 or word == right:
        return False
    start = next((i for i, pair in enumerate(zip(word, right, strict=False)) if pair[0] != pair[1]), len(word))
    left, rest = word[start:], right[start:]
    return (
        rest in (left[1:], left[:1] + left[1:])
        or left == rest[1:]
        or left[1:] == rest[1:]
        or (left[:2] == rest[1::-1] and left[2:] == rest[2:])
    )
