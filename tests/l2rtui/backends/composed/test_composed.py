"""Several contexts in one view: two API servers in memory, one of which is stopped while the other continues."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, aclosing
from functools import partial

import pytest
from msgspec.structs import replace

from l2rtui.backends.common.liveness import LivenessTiming
from l2rtui.backends.composed.member import QualifiedRows, short_names
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.backends.registry import compose, named_contexts
from l2rtui.cli.contexts import contexts_of
from l2rtui.cli.parser import VERBS, app_parser, verb_parser
from l2rtui.cli.session import Session, settings_of
from l2rtui.cli.verbs.history import run_history
from l2rtui.cli.verbs.list import run_nodes, run_pods, run_slots
from l2rtui.config import Settings
from l2rtui.domain.change import apply
from l2rtui.domain.log import LogQuery
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.plan import LaunchPlan, ScalePlan
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, PodView, RunView
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.errors import BackendError, ConfigError, NotFoundError, RefusedError, UsageError
from l2rtui.services import launcher
from l2rtui.services.history.completion import complete_ended
from l2rtui.services.history.store import HistoryStore
from tests.fakes.kubernetes_objects import ObjectServer, serving


def node(name: str) -> dict:
    room = {"cpu": "8", "memory": "64Gi", "pods": "110"}
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": room, "capacity": room}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {labels.GPUS: "1", labels.HOSTNAME: name}},
        "status": status,
    }


def cluster() -> ObjectServer:
    """A server whose objects have the same names and uids as every other's."""
    server = ObjectServer()
    server.put(node("n1"))
    spec = {"nodeName": "n1", "containers": [{"name": "main", "image": "i"}]}
    server.put({"kind": "Pod", "metadata": {"name": "p1"}, "spec": spec, "status": {"phase": "Running"}})
    return server


async def launched(backend: KubernetesBackend, name: str) -> None:
    """Launch a run of one worker in one context in the ordinary way, and close the backend."""
    workers = SetSpec("w", Role.WORKER, ("w",), replicas=1, restart=RestartPolicy.ALWAYS)
    prepared = await launcher.prepare_runs(backend, [RunSpec(Kind.JOB, name, name, (workers,), image="i:1")])
    async with aclosing(launcher.launch(backend, prepared)) as steps:
        assert [done.error for done in [done async for done in steps] if done.error] == []
    await backend.close()


async def change(server: ObjectServer, manifest: dict) -> None:
    server.put(manifest)
    async with server.changed:
        server.changed.notify_all()


@pytest.fixture
async def servers():
    """Two servers, each with the stack that ends it: ``await servers["lab"][1].aclose()``."""
    running = {}
    async with AsyncExitStack() as every:
        for name in ("lab", "prod"):
            stack = await every.enter_async_context(AsyncExitStack())
            running[name] = (await stack.enter_async_context(serving(cluster())), stack)
        yield running


@pytest.fixture
def kubeconfig(servers, tmp_path, monkeypatch):
    bases = {name: server.base for name, (server, _) in servers.items()}
    config = {
        "current-context": "lab",
        "contexts": [{"name": n, "context": {"cluster": n, "user": "u", "namespace": "ml"}} for n in bases],
        "clusters": [{"name": name, "cluster": {"server": base}} for name, base in bases.items()],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    (tmp_path / "config.toml").write_text("[context.prod]\nslots_per_gpu = 2\n")
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("L2RTUI_CONFIG", str(tmp_path / "config.toml"))
    return path


@pytest.fixture
async def composed(kubeconfig):
    made = compose({name: Settings(context=name) for name in ("lab", "prod")})
    yield made
    await made.close()


async def test_rows_of_both_stand_beside_each_other_though_their_names_and_uids_are_the_same(composed):
    snapshot = await composed.snapshot()
    assert list(snapshot.nodes) == ["lab:n1", "prod:n1"]
    assert sorted(pod.name for pod in snapshot.pods.values()) == ["lab:p1", "prod:p1"]
    assert {pod.context for pod in snapshot.pods.values()} == {"lab", "prod"}
    assert {str(slot).partition("/")[0] for slot in snapshot.ledger.slots} == {"lab:n1", "prod:n1"}
    assert snapshot.problems == ()
    assert (composed.location, composed.acts_on()) == ("lab, prod", "on the contexts lab, prod")


async def test_a_server_that_dies_changes_nothing_for_the_other(composed, servers):
    snapshot = EMPTY_SNAPSHOT
    async with asyncio.timeout(60), aclosing(composed.watch()) as batches:

        async def until(is_so):
            nonlocal snapshot
            while not is_so():
                snapshot = apply(snapshot, await anext(batches))

        await until(lambda: len(snapshot.nodes) == 2 and not snapshot.problems)
        await servers["lab"][1].aclose()
        await until(lambda: snapshot.problems)
        assert {problem.partition(":")[0] for problem in snapshot.problems} == {"lab"}
        assert len(snapshot.nodes) == 2  # old rows stay, and the problem says that they are old
        await change(servers["prod"][0], node("n2"))
        await until(lambda: "prod:n2" in snapshot.nodes)
        assert "lab:n1" in snapshot.nodes
        assert {problem.partition(":")[0] for problem in snapshot.problems} == {"lab"}


async def test_a_list_has_the_rows_of_those_that_answer(composed, servers):
    await servers["lab"][1].aclose()
    snapshot = await composed.snapshot()
    assert list(snapshot.nodes) == ["prod:n1"]
    assert [problem.partition(":")[0] for problem in snapshot.problems] == ["lab"]
    await servers["prod"][1].aclose()
    with pytest.raises(BackendError):
        await composed.snapshot()
    # Never connected to before: an established watch would keep retrying.
    fresh = compose({name: Settings(context=name) for name in ("lab", "prod")})
    async with asyncio.timeout(60), aclosing(fresh.watch()) as batches:
        with pytest.raises(BackendError, match=r"lab: .*; prod: "):
            await anext(batches)
    await fresh.close()


async def test_what_needs_the_slots_of_one_cluster_is_refused_by_a_sentence_that_names_the_contexts(composed):
    plan = LaunchPlan(())
    for call in (
        lambda: composed.check(plan),
        lambda: anext(composed.launch(plan)),
        lambda: composed.scale(ScalePlan("r", "w", 1, (), ())),
        composed.doctor,
    ):
        with pytest.raises(RefusedError, match=r"needs one context. Name it: `--context lab` or `--context prod`"):
            await call()
    denied = await composed.denied()
    assert denied["launch"] == denied["volumes"] == "it needs one context, such as `:ctx lab`"
    assert "kill" not in denied


async def test_a_row_that_is_shown_no_more_and_rows_of_two_contexts(composed):
    gone = PodView("u", "p", context="gone")
    for call in (
        lambda: anext(composed.logs(gone, LogQuery())),
        lambda: composed.exec(gone, ["sh"]),
        lambda: composed.capture(gone, ["ls"]),
        lambda: composed.inspector.describe(gone),
        lambda: anext(composed.destroy(RunView("u", "gone:r", "e", context="gone"))),
        lambda: composed.spec("gone:r"),
    ):
        with pytest.raises(NotFoundError):
            await call()
    with pytest.raises(RefusedError, match="of the contexts lab, prod"):
        await composed.kill([PodView(f"{name}:u", f"{name}:p", context=name) for name in ("lab", "prod")])


async def test_a_change_acts_in_the_context_of_its_row_and_in_no_other(composed, servers):
    snapshot = await composed.snapshot()
    pod = next(pod for pod in snapshot.pods.values() if pod.context == "prod")
    await composed.kill([replace(pod, run="prod:r")])
    assert "Pod/p1" not in servers["prod"][0].names("Pod")
    assert servers["lab"][0].names("Pod") == ["Pod/p1"]
    lines = await composed.inspector.describe(next(iter(snapshot.nodes.values())))
    assert any("n1" in line for line in lines)
    assert not any("lab:n1" in line for line in lines)  # with the name of its own cluster


@pytest.mark.process
async def test_a_destroy_leaves_the_run_of_the_same_name_in_the_other_context(composed, servers):
    for context in servers:
        await launched(KubernetesBackend(Settings(context=context)), "r7")
    snapshot = await composed.snapshot()
    assert sorted(run.name for run in snapshot.runs.values()) == ["lab:r7", "prod:r7"]
    assert (await composed.spec("prod:r7")).name == "r7"
    run = next(run for run in snapshot.runs.values() if run.context == "prod")
    *_, receipt = [item async for item in composed.destroy(run)]
    assert (receipt.run, receipt.left) == ("prod:r7", ())
    assert [run.name for run in (await composed.snapshot()).runs.values()] == ["lab:r7"]


async def test_a_read_only_context_is_not_changed_though_the_other_may_be(kubeconfig, servers):
    settings = {"lab": Settings(context="lab"), "prod": Settings(context="prod", readonly=True)}
    made = compose(settings)
    snapshot = await made.snapshot()
    pod = next(pod for pod in snapshot.pods.values() if pod.context == "prod")
    for call in (
        lambda: made.kill([pod]),
        lambda: made.exec(pod, ["sh"]),
        lambda: anext(made.destroy(RunView("prod:u", "prod:r", "e", context="prod"))),
    ):
        with pytest.raises(RefusedError, match="the context prod is read-only here"):
            await call()
    assert servers["prod"][0].names("Pod") == ["Pod/p1"]
    await made.close()


async def test_leaks_and_events_say_which_context_did_not_answer(composed, servers):
    about = {"kind": "Pod", "name": "p1", "namespace": "ml"}
    body = {
        "involvedObject": about,
        "reason": "Killing",
        "type": "Warning",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    servers["prod"][0].put({"kind": "Event", "metadata": {"name": "e1"}, **body})
    await servers["lab"][1].aclose()
    events = await composed.inspector.events()
    assert [event.object for event in events] == ["Context lab", "Pod prod:p1"]
    leaks = (await composed.leaks()).leaks
    assert [(leak.kind, leak.name) for leak in leaks] == [("Context", "lab")]
    assert "nothing is known of it" in leaks[0].reason
    servers["prod"][0].put({"kind": "Namespace", "metadata": {"name": "other"}})
    assert await composed.contexts.namespaces() == ("other",)


async def test_health_of_each_context_while_one_is_away(composed, servers, monkeypatch):
    timing = partial(LivenessTiming, quiet=0.2, answer=2.0, silent=0.5, again=0.1)
    monkeypatch.setattr("l2rtui.backends.common.liveness.LivenessTiming", timing)
    snapshot = EMPTY_SNAPSHOT
    async with asyncio.timeout(120), aclosing(composed.watch()) as batches:

        async def until(is_so):
            nonlocal snapshot
            while not is_so({health.name: health for health in snapshot.contexts}):
                snapshot = apply(snapshot, await anext(batches))

        await until(lambda own: own and own["lab"].is_live and own["prod"].is_live)
        await servers["lab"][1].aclose()
        await until(lambda own: own["lab"].old_since is not None)
        assert [health.is_live for health in snapshot.contexts] == [False, True]
        # A new snapshot keeps the rows of the unreachable context: they are old, not deleted.
        again = await composed.snapshot()
        assert {"lab:n1", "prod:n1"} <= set(again.nodes)
        assert [health.is_live for health in again.contexts] == [False, True]


def test_names_of_contexts_and_their_rows():
    arn = "arn:aws:eks:eu-west-1:1:cluster/rl"
    assert short_names(("lab", arn)) == ("lab", "rl")
    assert short_names((arn, "other/rl")) == ("arn:aws:eks:eu-west-1:1:cluster_rl", "other_rl")
    rows = QualifiedRows("lab")
    pod = PodView("u", "p", node="n", run="r")
    assert rows.pod(pod) == PodView("lab:u", "lab:p", node="lab:n", run="lab:r", context="lab")
    assert rows.original(rows.pod(pod)) == pod
    assert rows.pod(PodView("u", "p")).node == ""  # it waits for a node
    cpu = rows.node(Node("n", (Gpu("n", 0),), cpu=Gpu("n", -1, is_cpu=True)))
    assert {gpu.node for gpu in cpu.devices} == {"lab:n"}


def session(verb: str, *words: str) -> Session:
    args = verb_parser(VERBS[verb]).read(list(words))
    args.verb = verb
    return Session(args, settings_of(args))


async def test_lists_of_the_command_line(kubeconfig, servers, capsys):
    async def printed(list_rows, verb, *words):
        made = session(verb, *words, "-o", "json")
        try:
            assert await list_rows(made) == 0
        finally:
            await made.backend.close()
        return json.loads(capsys.readouterr().out)

    nodes = await printed(run_nodes, "nodes", "--context", "prod,lab")
    # Each with its own table of the settings.
    assert [(row["node"], row["context"], row["slots"]) for row in nodes] == [
        ("lab:n1", "lab", 4),
        ("prod:n1", "prod", 2),
    ]
    slots = await printed(run_slots, "slots", "prod:n1", "--all-contexts")
    assert {row["context"] for row in slots} == {"prod"}
    pods = await printed(run_pods, "pods", "--all-contexts")
    assert [(row["pod"], row["context"]) for row in pods] == [("lab:p1", "lab"), ("prod:p1", "prod")]
    assert "context" not in (await printed(run_nodes, "nodes", "--context", "lab"))[0]
    await servers["lab"][1].aclose()
    made = session("nodes", "--all-contexts")
    assert await run_nodes(made) == 0
    await made.backend.close()
    out, err = capsys.readouterr()
    assert "prod:n1" in out
    assert "warning: lab: " in err


def test_a_verb_that_acts_wants_one_context_and_the_app_shows_several(kubeconfig):
    for verb, error, sentence in (
        ("kill", UsageError, "kill acts in one context"),
        ("metrics", UsageError, "metrics acts in one context"),
        ("leaks", UsageError, "leaks acts in one context"),
    ):
        with pytest.raises(error, match=sentence):
            session(verb, "--context", "lab,prod", *(["x"] if verb == "kill" else []))
    with pytest.raises(ConfigError, match=r"no context 'prd'. Did you mean prod"):
        session("nodes", "--context", "lab,prd")
    with pytest.raises(UsageError, match="exclude each other"):
        session("nodes", "--context", "lab", "--all-contexts")
    with pytest.raises(UsageError, match="The docker backend has no contexts"):
        session("nodes", "--context", "lab,prod", "--backend", "docker")
    assert contexts_of(app_parser().read(["--all-contexts"])) == ("lab", "prod")
    assert named_contexts("*") == ("lab", "prod")
    assert named_contexts("lab") == ()


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Change the user of this machine: each has a separate history."""
    become = lambda name: monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))  # noqa: E731
    become("ada")
    return become


def past() -> dict[str, tuple[str, str]]:
    """Context and state of each run in the own history."""
    with HistoryStore() as store:
        return {entry.run: (entry.context, str(entry.state)) for entry in store.entries()}


def places(tmp_path, **urls: str) -> dict[str, Settings]:
    """Write the place for records of each context into the configuration; return the settings of each."""
    lines = [f'[context.{name}]\nhistory_to = "{tmp_path / url}"\n' for name, url in urls.items()]
    (tmp_path / "config.toml").write_text("".join(lines))
    return {name: Settings(context=name, history_to=str(tmp_path / url)) for name, url in urls.items()}


async def listed(capsys, *words: str) -> tuple[list[dict], str]:
    """Rows of ``history -o json`` in the view of both contexts, and the messages on stderr."""
    made = session("history", "--context", "lab,prod", *words, "-o", "json")
    assert await run_history(made) == 0
    await made.backend.close()
    out, err = capsys.readouterr()
    return json.loads(out), err


@pytest.mark.parametrize("urls", [{"lab": "a", "prod": "b"}, {"lab": "a", "prod": "a"}])
@pytest.mark.process
async def test_the_history_of_a_view_is_that_of_each_context_and_of_each_place(
    kubeconfig, servers, user, tmp_path, capsys, urls
):
    settings = places(tmp_path, **urls)
    for name, own in settings.items():
        await launched(KubernetesBackend(own), f"r-{name}")
    user("bob")
    rows, _ = await listed(capsys)
    assert {(row["run"], row["state"]) for row in rows} == {("r-lab", "running"), ("r-prod", "running")}
    assert past() == {"r-lab": ("lab", "running"), "r-prod": ("prod", "running")}

    # One ends and is seen in the view; the other is destroyed in the view: both ends reach the other users.
    for (kind, _, _), item in servers["lab"][0].objects.items():
        if kind == "Pod" and item["metadata"]["name"] != "p1":
            item["status"] = {**item.get("status", {}), "phase": "Succeeded"}
    user("ada")
    view = compose(settings)
    assert await complete_ended(view) == 1
    run = next(run for run in (await view.snapshot()).runs.values() if run.context == "prod")
    assert [item async for item in launcher.destroy(view, run, grace_seconds=0)][-1].left == ()
    await view.close()
    assert past() == {"r-lab": ("lab", "done"), "r-prod": ("prod", "destroyed")}
    user("bob")
    rows, _ = await listed(capsys)
    assert {(row["run"], row["state"]) for row in rows} == {("r-lab", "done"), ("r-prod", "destroyed")}
    user("carl")  # has never seen either of them run
    rows, err = await listed(capsys, "r-*")
    assert {row["run"]: row["state"] for row in rows} == {"r-lab": "done", "r-prod": "destroyed"}
    assert err == ""


@pytest.mark.process
async def test_a_context_that_is_away_keeps_no_records_of_the_others_back(
    kubeconfig, servers, user, tmp_path, capsys
):
    settings = places(tmp_path, lab="a", prod="b")
    for name, own in settings.items():
        await launched(KubernetesBackend(own), f"r-{name}")
    await servers["prod"][1].aclose()
    user("bob")
    rows, err = await listed(capsys)
    # For the unreachable context, the place has the launched records.
    assert {row["run"] for row in rows} == {"r-lab", "r-prod"}
    assert "Records of others may be missing" in err
