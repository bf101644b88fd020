"""Generator of the reference pages: ``python -m tests.reference`` writes each from what the program itself reads.

| page | source |
| --- | --- |
| docs/verbs.md | the parsers of the verbs, and the examples of their help |
| docs/configuration.md | the settings, and the contract between a launcher and its processes |
| docs/exit-codes.md | the exit codes of both programs |
| docs/metrics.md | the records of that contract, and the names for Prometheus |
| docs/rights.md | the table of rights on Kubernetes |

`tests/l2rtui/test_reference.py` compares the pages with these sources.
"""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from l2rtui import errors
from l2rtui.backends.kubernetes.rights import TABLE, RoleScope
from l2rtui.cli.argument_parser import Parser
from l2rtui.cli.examples import EXAMPLES, PAGES
from l2rtui.cli.parser import VERBS, app_parser, verb_parser
from l2rtui.config import FILE_ONLY, PREFIX, Settings
from runtime.base import contract
from runtime.exchange.status_server import GAUGES, PEER_GAUGES

DOCS: Final = Path(__file__).parents[1] / "docs"
GENERATED: Final = "`python -m tests.reference` generates this page{}. A test compares the two.\n"
DATA: Final = ("json", "yaml")


# --- docs/verbs.md --------------------------------------------------------------------------------------------
def verbs() -> Iterator[str]:
    """Yield the lines of the page of verbs."""
    yield "# All verbs and options\n"
    yield "`l2rtui VERB --help` prints the same. [Commands for terminals and scripts](commands.md) explains how to"
    yield "choose runs, follow a list and wait.\n"
    yield GENERATED.format(" from the parser of the program")
    yield "| verb | effect |\n| --- | --- |"
    for verb in VERBS.values():
        yield f"| [`{verb.name}`](#{verb.name}) | {cell(verb.summary)} |"
    yield "\n## Options of every verb\n"
    common = common_options()
    yield from option_table([action for action in actions_of(app_parser()) if name_of(action) in common])
    yield "\n## Options without a verb\n\n`l2rtui` without a verb opens the app.\n"
    yield from option_table([action for action in actions_of(app_parser()) if name_of(action) not in common])
    for verb in VERBS.values():
        parser = verb_parser(verb)
        yield f"\n## {verb.name}\n\n{verb.summary[0].upper()}{verb.summary[1:]}.\n"
        yield f"```text\n{usage(parser, common)}\n```\n"
        own = [action for action in actions_of(parser) if name_of(action) not in common]
        yield from option_table(own)
        if examples := EXAMPLES.get(verb.name):
            yield "\n```sh\n" + "\n".join(examples) + "\n```"
        if verb.name in PAGES:
            title = (DOCS / PAGES[verb.name]).read_text("utf-8").partition("\n")[0].removeprefix("# ")
            yield f"\nRead: [{title}]({PAGES[verb.name]})."
        if set(DATA) <= set(verb.formats) and re.search(rf"^## .*\b{verb.name}\b", json_page(), re.MULTILINE):
            heading = next(line for line in json_page().splitlines() if re.match(rf"## .*\b{verb.name}\b", line))
            anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.removeprefix("## ")).lower())
            yield f"\nFields of `-o json`: [{heading.removeprefix('## ')}](json.md#{anchor})."


def json_page() -> str:
    """Return the page of the JSON documents."""
    return (DOCS / "json.md").read_text("utf-8")


@functools.cache
def common_options() -> set[str]:
    """Return the options that the app and every verb take."""
    parsers = [app_parser(), *(verb_parser(verb) for verb in VERBS.values())]
    return set.intersection(*({name_of(action) for action in actions_of(parser)} for parser in parsers))


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options and arguments of a parser, of which argparse has no public list."""
    return parser._actions


def name_of(action: argparse.Action) -> str:
    """Return the last name of an option, or the name of an argument."""
    return action.option_strings[-1] if action.option_strings else action.dest


def usage(parser: Parser, common: set[str]) -> str:
    """Return the usage without the options of every verb; argparse's own differs between versions of Python."""
    if parser.usage:
        return parser.usage % {"prog": parser.prog}
    words = [parser.prog]
    for action in actions_of(parser):
        if name_of(action) in {*common, "--help"} or action.help == argparse.SUPPRESS:
            continue
        value = "" if action.nargs == 0 else value_of(action)
        if action.option_strings:
            words.append(f"[{action.option_strings[0]}{f' {value}' if value else ''}]")
        else:
            words.append(
                {"?": f"[{value}]", "*": f"[{value} ...]", "+": f"{value} ..."}.get(str(action.nargs), value)
            )
    # A non-breaking space keeps an option and its value in one line.
    joined = " ".join(word.replace(" ", "\N{NO-BREAK SPACE}") for word in words)
    lines = textwrap.wrap(joined, 100, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def value_of(action: argparse.Action) -> str:
    """Return the name of a value."""
    return str(action.metavar or action.dest.upper())


def option_table(actions: list[argparse.Action]) -> Iterator[str]:
    """Yield a table of arguments and options with their values and defaults."""
    rows = [action for action in actions if action.help != argparse.SUPPRESS and name_of(action) != "--help"]
    if not rows:
        yield "It has no options of its own."
        return
    yield "| word | effect |\n| --- | --- |"
    for action in rows:
        choices = ", ".join(f"`{choice}`" for choice in action.choices or ())
        value = "" if action.nargs == 0 else f" {value_of(action)}"
        words = ", ".join(f"{name}{value}" for name in action.option_strings) or value_of(action)
        meaning = str(action.help or "") % {"prog": "l2rtui", **vars(action)}
        yield f"| `{cell(words)}` | {cell(meaning)}{f': {choices}' if choices else ''} |"


# --- docs/configuration.md ------------------------------------------------------------------------------------
def configuration() -> Iterator[str]:
    """Yield the lines of the page of settings and variables."""
    yield "# Configuration and environment variables\n"
    yield "The settings of l2rtui itself. Settings of the training are [on a page of their own](settings.md).\n"
    yield "A setting comes from an option, a variable, the settings file, or its default, in this order."
    yield "The file is `~/.config/l2rtui/config.toml`; `$L2RTUI_CONFIG` or `--config` names another."
    yield "`l2rtui config show` prints every setting with its value and source, and `l2rtui config check` names"
    yield "every mistake. [Keys](keys.md#other-keys) and tables of one context,"
    yield "`[context.NAME]`, are [described with the keys](keys.md#settings-by-context).\n"
    yield '```toml\nbackend = "kubernetes"\nnamespaces = ["lab"]\nslots_per_gpu = 4\n'
    yield '[limits]\nwall = "12h"\n```\n'
    yield GENERATED.format(" from the settings and the contract of the processes")
    yield "## Settings\n\n| setting | variable | values | meaning |\n| --- | --- | --- | --- |"
    meanings = dict(attribute_lines(Settings))
    for setting in fields(Settings):
        variable = "" if setting.name in FILE_ONLY else f"`{PREFIX}{setting.name.upper()}`"
        yield f"| `{setting.name}` | {variable} | {cell(values_of(setting))} | {cell(meanings[setting.name])} |"
    yield "\n## Variables that l2rtui reads\n\n| variable | meaning |\n| --- | --- |"
    for name, meaning in VARIABLES.items():
        yield f"| `{name}` | {meaning} |"
    yield "\n## Variables of every process of a run\n"
    yield "A launcher sets these. A program of your own can read them.\n\n| variable | meaning |\n| --- | --- |"
    for name, meaning in constants(contract, "ENV_"):
        yield f"| `{getattr(contract, name)}` | {cell(meaning)} |"


VARIABLES: Final = {
    "L2RTUI_CONFIG": "the settings file",
    "KUBECONFIG": "kubeconfig files, as for kubectl; `--kubeconfig` overrides it",
    "XDG_CONFIG_HOME": "folder of the settings file, by default `~/.config`",
    "XDG_STATE_HOME": "folder of runs, history, queue and log, by default `~/.local/state`",
    "NO_COLOR": "no colours, in the app and in tables",
    "DOCKER_HOST": "the Docker Engine; with `DOCKER_CONTEXT`, `DOCKER_CERT_PATH`, `DOCKER_TLS_VERIFY`",
    "AWS_*": "credentials and region for buckets and clusters, as for the AWS command line",
}
"""Variables besides the settings; `test_reference` checks that the program reads each."""


def attribute_lines(owner: type) -> Iterator[tuple[str, str]]:
    """Yield name and description of each attribute that a docstring describes."""
    text = (inspect.getdoc(owner) or "").partition("Attributes:\n")[2]
    for match in re.finditer(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE):
        yield match[1], " ".join(match[2].split())


def values_of(setting: Any) -> str:
    """Return the values of a setting in words."""
    if choices := setting.metadata["choices"]:
        return ", ".join(f"`{choice}`" for choice in choices)
    low, high = setting.metadata["low"], setting.metadata["high"]
    kinds = {"str": "text", "bool": "true, false", "int": "whole number", "tuple[str, ...]": "names"}
    kind = kinds.get(str(setting.type), "table" if str(setting.type).startswith("tuple") else "number")
    return kind if low is None else f"{kind}, {low:,} to {high:,}"


def constants(module: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the names of constants with this prefix, and the string below each in one line."""
    for name, text in constant_texts(module).items():
        if name.startswith(prefix):
            yield name, " ".join(text.split())


def constant_texts(module: Any) -> dict[str, str]:
    """Return the string below each constant of a module; empty if there is none."""
    texts: dict[str, str] = {}
    body = ast.parse(Path(module.__file__).read_text("utf-8")).body
    for line, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            texts[line.target.id] = str(following.value.value) if is_text else ""  # type: ignore[union-attr]
    return texts


# --- docs/exit-codes.md ---------------------------------------------------------------------------------------
def exit_codes() -> Iterator[str]:
    """Yield the lines of the page of exit codes."""
    yield "# Exit codes\n"
    yield GENERATED.format(" from the constants of both programs")
    yield "## l2rtui\n\n| code | meaning |\n| --- | --- |"
    for code, meaning in OUR_CODES.items():
        yield f"| {code} | {meaning} |"
    yield "\n`exec` ends with the code of its command. A script can rely on these:\n"
    yield '```sh\nl2rtui wait racing-sac --for=learned=200 --timeout 2h || echo "code $?"\n```\n'
    yield "## l2r-runtime, the program in the pods\n"
    yield "`pods` shows the code of the last process that ended. [When a pod fails](guides/pod-fails.md) has the"
    yield "remedies.\n"
    yield "| code | meaning |\n| --- | --- |"
    for name, meaning in constants(contract, "EXIT_"):
        yield f"| {getattr(contract, name)} | {cell(meaning or name.removeprefix('EXIT_').lower())} |"
    yield "| 137 | killed by SIGKILL: most often the memory limit of its pod (OOMKilled) |"
    yield "| 128 + n | ended by signal n |"


OUR_CODES: Final = {
    errors.EXIT_DONE: "done",
    errors.EXIT_FAILED: "failed; the sentence on stderr says why",
    errors.EXIT_USAGE: "usage: a wrong option, field or setting; nothing was changed",
    errors.EXIT_REFUSED: "refused by preflight; nothing was created",
    errors.EXIT_LEFT_BEHIND: "something was left behind; the receipt names it",
    errors.EXIT_OUT_OF_REACH: "`wait`: a run can no longer reach the condition",
    errors.EXIT_TIMEOUT: "`wait`: timeout",
    "128 + n": "stopped by signal n (130 for Ctrl-C)",
    141: "the reader of a pipe has closed it",
}


# --- docs/metrics.md ------------------------------------------------------------------------------------------
def metrics() -> Iterator[str]:
    """Yield the lines of the page of metrics."""
    yield "# Metrics: records and Prometheus\n"
    yield "Each process of a run writes records to its standard output, one JSON object a line. `l2rtui metrics`,"
    yield "the app, TensorBoard, MLflow and W&B show them. [JSON](json.md#metrics) lists the fields of"
    yield "`l2rtui metrics -o json`, and [TensorBoard and W&B](guides/trackers.md) the ways to other programs.\n"
    yield GENERATED.format(" from the contract of the processes and the learner's status server")
    yield "## Records\n"
    yield f"A record begins with `{contract.METRIC_PREFIX}` and its kind.\n"
    text = constant_texts(contract)["METRIC_PREFIX"].partition("\n\n")[2].replace("``", "`").rstrip()
    yield re.sub(r"^(`\w+`): ", r"- \1: ", text, flags=re.MULTILINE)
    yield "\n## Prometheus\n"
    yield "A learner answers `/metrics` and `/status` at `$L2R_STATUS`; on a cluster that is port 5557 of its pod."
    yield "The setting `metrics_namespace` lets the namespace of Prometheus in.\n"
    yield "| name | meaning |\n| --- | --- |"
    for name, meaning in GAUGES.items():
        yield f"| `l2r_{name}` | {meaning} |"
    for name, meaning in COUNTERS.items():
        yield f"| `l2r_{name}` | {meaning} |"
    for name, meaning in PEER_GAUGES.items():
        yield f"| `l2r_peer_{name}` | {meaning} Labels `pod`, `role`. |"
    yield "\nEvery name has the label `run`."


COUNTERS: Final = {
    "env_steps_total": "Env steps learned from.",
    "segments_total": "Segments by what became of them. Label `outcome`.",
    "policy_lag": "Versions that accepted segments were behind. Label `stat`: `min`, `mean`, `max`.",
    "exchange_NAME_total": "Exchange: messages and bytes in and out, since the learner's start.",
    "inference_NAME_total": "Remote inference: requests and batches, since the learner's start.",
}


# --- docs/rights.md -------------------------------------------------------------------------------------------
def rights() -> Iterator[str]:
    """Yield the lines of the page of rights."""
    yield "# Rights on Kubernetes, verb by verb\n"
    yield "[Rights](kubernetes.md#rights) explains the Roles of [manifests/rbac.yaml](../manifests/rbac.yaml)."
    yield "`l2rtui check` asks the server for each of these rights.\n"
    yield GENERATED.format(" from the table that the program checks")
    scopes = {
        RoleScope.VIEWER: "Role `l2rtui-viewer`",
        RoleScope.RESEARCHER: "Role `l2rtui-researcher`",
        RoleScope.CLUSTER: "ClusterRole `l2rtui-ledger` (optional)",
        RoleScope.WITHHELD: "In no Role",
    }
    for scope, title in scopes.items():
        yield f"## {title}\n\n| right | for the verbs | without it |\n| --- | --- | --- |"
        groups: dict[tuple[str, str, str], list[str]] = {}
        for row in TABLE:
            if row.part is scope:
                note = row.without or (f"needed for: {row.only_for}" if row.only_for else row.reason)
                key = (row.right.resource, ", ".join(f"`{use}`" for use in row.uses), note)
                groups.setdefault(key, []).append(row.right.verb)
        for (resource, uses, note), names in groups.items():
            yield f"| {', '.join(dict.fromkeys(names))} `{resource}` | {uses} | {cell(note)} |"
        yield ""


def cell(text: str) -> str:
    """Return the text for a cell of a table: a bare | would end the cell."""
    return text.replace("``", "`").replace("|", "\\|")


PAGES_MADE: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "verbs.md": verbs,
    "configuration.md": configuration,
    "exit-codes.md": exit_codes,
    "metrics.md": metrics,
    "rights.md": rights,
}


@functools.cache
def page(name: str) -> str:
    """Return a page as Markdown."""
    return "\n".join(PAGES_MADE[name]()).rstrip() + "\n"


if __name__ == "__main__":
    for name in PAGES_MADE:
        (DOCS / name).write_text(page(name), "utf-8")
