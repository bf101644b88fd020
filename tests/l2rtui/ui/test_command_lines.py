"""Command lines of dialogs: parsed and run on the same snapshot, they mean exactly what the dialog lists."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from l2rtui.backends.composed.member import QualifiedRows
from l2rtui.backends.fake import FakeBackend
from l2rtui.backends.registry import compose
from l2rtui.cli.argument_parser import Parser
from l2rtui.cli.parser import find_verb, split_verb, verb_parser
from l2rtui.cli.session import settings_of
from l2rtui.cli.targets import pods_named, require_only_named, runs_meant
from l2rtui.cli.verbs.destroy import scopes_of
from l2rtui.cli.verbs.scale_kill_exec import sets_named
from l2rtui.config import Settings, user_name
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.placement import PlacementPolicy, parse_pins
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView, SetView
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.services.terminal import flags_of, with_flags, write
from l2rtui.ui.dialogs.launch import LaunchScreen
from l2rtui.ui.dialogs.questions import destroy_question, kill_question, pod_targets, scale_question
from l2rtui.ui.dialogs.relaunch import pins_of, relaunch_question
from l2rtui.ui.keys import cli_equivalents
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.state.background import Background

EXAMPLES = 2000 if settings.get_current_profile_name() in ("ci", "nightly") else 60
# A seed and no strategy of parts: 2,000 snapshots of those would take a minute of drawing alone.
RANDOM = st.integers(0, 2**32 - 1).map(Random)
T = TypeVar("T")
# Words before a name, names of sets and of pods: whatever two name spaces could share.
NAMES = ("exp", "experiment", "run", "pod", "a", "a-s0", "a-s1", "a-w-0", "w", "nap")
SETS = ("w", "v", "a", "0", "learner")
PLACES = ("", "lab", "team")


@dataclass
class Place:
    """What an app shows, and what each command line would see."""

    ctx: AppContext
    snapshot: ClusterSnapshot
    by_context: Mapping[str, ClusterSnapshot]

    def seen_by(self, context: str | None, namespace: str | None) -> ClusterSnapshot:
        snapshot = self.by_context[context or ""]
        return snapshot.in_namespace(namespace) if namespace else snapshot


def some(rng: Random, values: Iterable[T], least: int, most: int) -> list[T]:
    every = list(values)
    return rng.sample(every, min(len(every), rng.randint(least, most)))


def random_snapshot(rng: Random, namespaces: tuple[str, ...], prefix: str = "") -> ClusterSnapshot:
    runs: dict[str, RunView] = {}
    pods: dict[str, PodView] = {}
    used: set[tuple[str, str]] = set()

    def add(pod: PodView) -> None:
        if (pod.namespace, pod.name) not in used:
            used.add((pod.namespace, pod.name))
            pods[pod.uid] = pod

    for name, namespace in some(rng, product(NAMES, namespaces), 1, 5):
        uid = f"{prefix}run-{namespace}-{name}"
        owner = rng.choice((user_name(), "somebody"))
        sets = tuple(
            SetView(part, Role.WORKER, rng.randint(0, 2), rng.random() < 0.8) for part in some(rng, SETS, 1, 2)
        )
        runs[uid] = RunView(uid, name, rng.choice(NAMES), owner, sets=sets, namespace=namespace)
        for part in sets:
            for index in range(part.replicas):
                own = rng.choice(NAMES) if rng.random() < 0.4 else f"{name}-{part.name}-{index}"
                place = (f"{uid}/{part.name}/{index}", own, "n", owner, name, part.name, Role.WORKER, index)
                add(PodView(*place, namespace=namespace))
    for name in some(rng, NAMES, 0, 2):
        namespace = rng.choice(namespaces)
        add(PodView(f"{prefix}foreign-{namespace}-{name}", name, "n", namespace=namespace))
    return ClusterSnapshot({}, pods, runs)


def context_of(settings: Settings, backend: object = None) -> AppContext:
    ctx = AppContext(settings, Background(None, lambda: None), lambda: 0.0, "", backend)
    ctx.is_admin = True
    return ctx


def random_place(rng: Random) -> Place:
    kind = rng.choice(("bare", "backend", "one namespace", "namespaces", "contexts", "user"))
    if kind == "contexts":
        members = {name: Settings(backend="kubernetes", context=name) for name in ("east", "west")}
        backend = compose(members, make=lambda _: FakeBackend(lambda: 0.0))
        by_context = {name: random_snapshot(rng, ("lab",), name) for name in members}
        rows = [(QualifiedRows(name), snapshot) for name, snapshot in by_context.items()]
        runs = [qualified.run(run) for qualified, snapshot in rows for run in snapshot.runs.values()]
        pods = [qualified.pod(pod) for qualified, snapshot in rows for pod in snapshot.pods.values()]
        shown = ClusterSnapshot({}, {pod.uid: pod for pod in pods}, {run.uid: run for run in runs})
        return Place(context_of(Settings(context="east,west"), backend), shown, by_context)
    own = {
        "bare": Settings(),
        "backend": Settings(backend="docker"),
        "one namespace": Settings(namespaces=("lab",)),
        "namespaces": Settings(namespaces=("lab", "team")),
        "user": Settings(context="it's; rm -rf /", impersonate_user="anna b", impersonate_groups=("x", "y z")),
    }[kind]
    snapshot = random_snapshot(rng, {"namespaces": ("lab", "team"), "one namespace": ("lab",)}.get(kind, ("",)))
    return Place(context_of(own), snapshot, {own.context: snapshot})


@cache
def parser_of(verb: str) -> Parser:
    """The parser of a verb; it keeps nothing of what it has read, and is slow to make."""
    return verb_parser(find_verb(verb))


def commands_in(line: str) -> list[SimpleNamespace]:
    """Parse a line as a shell and a new process do."""
    commands: list[list[str]] = [[]]
    for word in shlex.split(line):
        if word == "&&":
            commands.append([])
        else:
            commands[-1].append(word)
    parsed = []
    for program, *words in commands:
        assert program == "l2rtui"
        verb, rest = split_verb(words)
        args = parser_of(verb).read(rest)
        parsed.append(SimpleNamespace(**vars(args), verb=verb))
    return parsed


def check_start(args: SimpleNamespace, place: Place, row: PodView | RunView) -> None:
    """The command starts where the dialog acts."""
    ours = place.ctx.settings
    member = place.ctx.member_of(row)
    expected = member.settings if member is not None else ours
    assert (args.backend or ("kubernetes" if args.context else "")) in (expected.backend, "kubernetes")
    assert (args.context or "") == expected.context
    assert (args.impersonate_user or "") == expected.impersonate_user
    assert tuple(args.impersonate_groups or ()) == expected.impersonate_groups


def may_go_without_a_question(args: SimpleNamespace, named: Mapping[str, list[str]]) -> None:
    """Each word names one run: the line works in a script with --yes, too."""
    session = SimpleNamespace(args=SimpleNamespace(yes=True, all_matching=False))
    require_only_named(session, args.verb, named)


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(RANDOM)
def test_the_line_of_a_destroy_means_the_runs_of_the_dialog(rng: Random) -> None:
    place = random_place(rng)
    runs = some(rng, place.snapshot.runs.values(), 1, 3)
    question = destroy_question(place.ctx, runs, place.snapshot)
    meant = set()
    for args in commands_in(question.command):
        check_start(args, place, runs[0]) if len({run.context for run in runs}) == 1 else None
        seen = place.seen_by(args.context, args.namespace if len(place.ctx.settings.namespaces) > 1 else None)
        scopes = scopes_of(seen, args.targets, args.seed)
        may_go_without_a_question(args, runs_meant(seen, args.targets))
        meant |= {(args.context if place.ctx.backend_or_none else None, run.uid, part) for run, part in scopes}
        assert args.admin or all(run.owner == user_name() for run, _ in scopes)
    assert meant == {(run.context or None, place.ctx.as_seen(run).uid, "") for run in runs}


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(RANDOM)
def test_the_line_of_a_kill_means_the_pods_of_the_dialog(rng: Random) -> None:
    place = random_place(rng)
    snapshot = place.snapshot
    if not snapshot.pods:
        return
    run = rng.choice([*snapshot.runs.values()])
    target = rng.choice(["", run.name, f"{run.name}/{run.sets[0].name}", f"experiment/{run.experiment}"])
    pods = list(snapshot.select(target)) if target else []
    pods = pods or some(rng, snapshot.pods.values(), 1, 4)
    question = kill_question(place.ctx, pods, snapshot, target)
    if not question.command:  # where no word of the command line means a pod alone, there is no line
        assert any(not pod_targets(place.ctx, snapshot, [pod]) for pod in pods)
        return
    meant = set()
    for args in commands_in(question.command):
        seen = place.seen_by(args.context, args.namespace if len(place.ctx.settings.namespaces) > 1 else None)
        found = pods_named(seen, args.targets)
        meant |= {(args.context if place.ctx.backend_or_none else None, pod.uid) for pod in found}
        assert args.admin or all(pod.owner == user_name() for pod in found)
    assert meant == {(pod.context or None, place.ctx.as_seen(pod).uid) for pod in pods}


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(RANDOM)
def test_the_line_of_a_scale_means_the_sets_of_the_dialog(rng: Random) -> None:
    place, replicas = random_place(rng), rng.randint(0, 9)
    part = rng.choice([run.sets[0].name for run in place.snapshot.runs.values()])
    having = [run for run in place.snapshot.runs.values() if run.set_named(part)]
    runs = some(rng, having, 1, 3)
    question = scale_question(place.ctx, runs, part, replicas)
    meant = []
    for args in commands_in(question.command):
        seen = place.seen_by(args.context, args.namespace if len(place.ctx.settings.namespaces) > 1 else None)
        scaled, set_name = sets_named(seen, args.target)
        may_go_without_a_question(args, runs_meant(seen, [args.target]))
        assert args.replicas == replicas
        meant += [(args.context if place.ctx.backend_or_none else None, run.uid, set_name) for run in scaled]
    assert sorted(meant, key=str) == sorted(
        ((run.context or None, place.ctx.as_seen(run).uid, part) for run in runs), key=str
    )


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(RANDOM)
def test_the_line_of_a_relaunch_means_the_runs_and_slots_of_the_dialog(rng: Random) -> None:
    place = random_place(rng)
    pods = dict(place.snapshot.pods)
    for run in place.snapshot.runs.values():
        for number, pod in enumerate(place.snapshot.pods_of(run)):
            node = f"{pod.context}:n1" if pod.context else "n1"
            has_slots = run.set_named(pod.set_name).takes_slots and rng.random() < 0.8
            devices = (DeviceUsage(number, 0), DeviceUsage(number, 1)) if has_slots else ()
            pods[pod.uid] = replace(pod, node=node, devices=devices)
    snapshot = dataclasses.replace(place.snapshot, pods=pods)
    runs = some(rng, snapshot.runs.values(), 1, 3)
    question = relaunch_question(place.ctx, runs, snapshot)
    destroyed, launched = set(), {}
    for args in commands_in(question.command):
        where = args.context if place.ctx.backend_or_none else None
        seen = place.seen_by(args.context, args.namespace if len(place.ctx.settings.namespaces) > 1 else None)
        if args.verb == "destroy":
            destroyed |= {(where, run.uid) for run, _ in scopes_of(seen, args.targets, args.seed)}
        else:
            launched[where, seen.run_named(args.target).uid] = args.on
    assert destroyed == {(run.context or None, place.ctx.as_seen(run).uid) for run in runs}
    for run in runs:
        own = list(map(place.ctx.as_seen, snapshot.pods_of(run)))
        parts = [
            SetSpec(part.name, part.role, ("w",), replicas=part.replicas, slots=2 * part.takes_slots)
            for part in run.sets
        ]
        spec = RunSpec(Kind.JOB, run.name, run.name, tuple(parts))
        on = launched.pop((run.context or None, place.ctx.as_seen(run).uid))
        assert (on or ()) == pins_of(spec, own)
    assert not launched


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(RANDOM, st.one_of(st.integers(60, 14 * 86_400), st.floats(60.0, 14 * 86_400.0)), st.text(max_size=12))
def test_the_line_of_a_reservation_is_the_request_of_the_dialog(rng: Random, seconds: float, note: str) -> None:
    note = note.strip() if note != "--" else ""  # which ends the options for argparse, even as a value
    where = rng.choice(("n1", "n1/0-3", "n1/cpu", "n 1/2.0"))
    (args,) = commands_in(write([cli_equivalents.reserve(where, seconds, note)], ("--context", "it's")))
    assert (args.verb, args.context, args.places, args.seconds) == ("reserve", "it's", [where], seconds)
    assert args.note == note


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(RANDOM, st.integers(1, 4_194_304), st.sampled_from(("TERM", "USR1", "INT")))
def test_the_line_of_a_signal_reaches_the_pod_and_the_process_of_the_dialog(rng, pid, name):  # type: ignore[no-untyped-def]
    place = random_place(rng)
    if not place.snapshot.pods:
        return
    pod = rng.choice([*place.snapshot.pods.values()])
    targets = pod_targets(place.ctx, place.snapshot, [pod])
    if not targets:
        return
    line = place.ctx.command_line(cli_equivalents.signal(targets[0], name, pid), row=pod)
    start, _, command = line.partition(" -- ")
    assert tuple(shlex.split(command)) == cli_equivalents.signal_command(name, pid)
    (args,) = commands_in(start)
    seen = place.seen_by(args.context, args.namespace if len(place.ctx.settings.namespaces) > 1 else None)
    assert args.verb == "exec"
    assert [found.uid for found in pods_named(seen, [args.target])] == [place.ctx.as_seen(pod).uid]


TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=12).filter(
    lambda text: not text.startswith("-")
)


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(
    TEXTS,
    TEXTS,
    st.sampled_from(("", "0-3", "1,5")),
    st.sampled_from(("", "spread")),
    st.sampled_from(("", "n1/0-3,n2/cpu")),
    st.sampled_from(("", "8")),
    st.sampled_from(("", "train.gamma=0.9 'name=a b'")),
)
def test_the_line_of_the_launch_form_is_the_request_of_the_form(path, name, seeds, policy, on, wave, changes):  # type: ignore[no-untyped-def]
    if path.endswith((".yaml", ".yml")):
        path = f"{path}x"
    choice = LaunchScreen._read([path, name, seeds, policy, on, wave, changes])
    (args,) = commands_in(write([choice.command], ("--context", "it's")))
    assert (args.verb, args.context, args.file, args.name) == ("launch", "it's", [path], name)
    assert (tuple(args.seeds), args.on, args.wave) == (choice.seeds, choice.pins, choice.wave)
    assert (PlacementPolicy(args.policy) if args.policy else None) == choice.policy
    assert args.on == (parse_pins(on) if on else None)
    assert tuple(args.set) == choice.changes


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(
    st.sampled_from(("", "local", "docker", "demo", "kubernetes")),
    st.one_of(st.just(""), TEXTS),
    st.lists(TEXTS.filter(lambda text: "," not in text and text.strip() == text), max_size=2, unique=True),
    st.one_of(st.just(""), TEXTS),
    st.lists(TEXTS.filter(lambda text: text.strip() == text), max_size=2),
    st.booleans(),
)
def test_a_new_process_reads_the_settings_back_from_the_flags(backend, context, namespaces, user, groups, readonly):  # type: ignore[no-untyped-def]
    before = Settings(
        backend=backend,
        context=context,
        namespaces=tuple(namespaces),
        impersonate_user=user,
        impersonate_groups=tuple(groups),
        readonly=readonly,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("L2RTUI_CONFIG", "/dev/null")
        patch.delenv("L2RTUI_READY_SECONDS", raising=False)  # set for all tests
        flags = flags_of(before, {}, {"L2RTUI_CONFIG": "/dev/null"})
        words = shlex.split(write([["runs"]], flags))[1:]
        verb, rest = split_verb(words)
        after = settings_of(parser_of(verb).read(rest))
    if before.backend == "kubernetes" and (before.context or before.namespaces):
        before = dataclasses.replace(before, backend="")  # that is what a context or a namespace means
        after = dataclasses.replace(after, backend="")
    assert dataclasses.replace(after, keys=(), filters=()) == before


def test_flags_are_those_that_differ_from_the_settings_file(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('backend = "kubernetes"\n[context.other]\nnamespaces = ["a"]\n', "utf-8")
    environ = {"L2RTUI_CONFIG": str(config)}
    assert flags_of(Settings(backend="kubernetes"), {}, environ) == ()
    assert flags_of(Settings(backend="kubernetes", context="other", namespaces=("a",)), {}, environ) == (
        *("--context", "other"),
    )
    assert flags_of(Settings(backend="kubernetes", context="other", namespaces=("b",)), {}, environ) == (
        *("--context", "other", "-n", "b"),
    )
    files = {"--kubeconfig": "/a b", "--config": str(config)}
    assert flags_of(Settings(backend="local"), files, {}) == (
        *("--kubeconfig", "/a b", "--config", str(config), "--backend", "local"),
    )


def test_a_variable_of_this_shell_is_written_out_for_another(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("L2RTUI_BACKEND", "docker")
    monkeypatch.delenv("L2RTUI_CONFIG", raising=False)
    assert flags_of(Settings(backend="docker")) == ("--backend", "docker")


@pytest.mark.parametrize(
    "words",
    [
        ["launch", "-f", "SPEC", "--set", "env.API_KEY=hunter2hunter2"],
        cli_equivalents.launch_from("https://anna:hunter2hunter2@host/x", "again"),
        ["volume", "put", "password=hunter2hunter2", "v:/"],
    ],
)
def test_no_line_holds_a_secret(words):
    assert "hunter2" not in write([words])


def test_hints_act_where_the_process_acts():
    flags = ("-n", "lab")
    assert with_flags("See `l2rtui runs`, or `l2rtui logs x`.", flags) == (
        "See `l2rtui -n lab runs`, or `l2rtui -n lab logs x`."
    )
    forms = ("Write `l2rtui launch -f SPEC`.", "`l2rtui scale RUN/SET N`", "`l2rtui scale x/SET 0`")
    for text in ("See `l2rtui image login h`.", "`l2rtui --context NAME` opens one.", "Nothing.", *forms):
        assert with_flags(text, flags) == text
