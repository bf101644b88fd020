"""Several contexts in one view: two API servers in memory, of which one is taken away while the other goes on."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, aclosing

import pytest

from l2rtui.backends.composed.backend import ComposedBackend
from l2rtui.backends.composed.qualified import QualifiedRows, short_names
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.cli.contexts import contexts_of
from l2rtui.cli.parser import VERBS, app_parser, verb_parser
from l2rtui.cli.session import Session, settings_of
from l2rtui.cli.verbs.list import run_nodes, run_pods, run_slots
from l2rtui.config import Settings
from l2rtui.domain.change import apply
from l2rtui.domain.log import LogQuery
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.plan import LaunchPlan, ScalePlan
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, PodView, RunView
from l2rtui.errors import BackendError, ConfigError, NotFoundError, RefusedError, UsageError
from tests.fakes.kubernetes_objects import ObjectServer, serving


def node(name: str) -> dict:
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "8"}}
    return {"kind": "Node", "metadata": {"name": name, "labels": {labels.GPUS: "1"}}, "status": status}


def cluster() -> ObjectServer:
    """A server whose objects have the names and uids of every other's."""
    server = ObjectServer()
    server.put(node("n1"))
    spec = {"nodeName": "n1", "containers": [{"name": "main", "image": "i"}]}
    server.put({"kind": "Pod", "metadata": {"name": "p1"}, "spec": spec, "status": {"phase": "Running"}})
    return server


async def change(server: ObjectServer, manifest: dict) -> None:
    server.put(manifest)
    async with server._changed:
        server._changed.notify_all()


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
    made = ComposedBackend({name: KubernetesBackend(Settings(context=name)) for name in ("lab", "prod")})
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
    # Never connected to before: a watch that has been there once goes on trying.
    fresh = ComposedBackend({name: KubernetesBackend(Settings(context=name)) for name in ("lab", "prod")})
    async with asyncio.timeout(60), aclosing(fresh.watch()) as batches:
        with pytest.raises(BackendError, match=r"lab: .*; prod: "):
            await anext(batches)
    await fresh.close()


async def test_every_change_is_refused_by_a_sentence_that_names_the_contexts(composed):
    pod, run = PodView("lab:u", "lab:p", context="lab"), RunView("lab:u", "lab:r", "e")
    plan = LaunchPlan(())
    for call in (
        lambda: composed.check(plan),
        lambda: anext(composed.launch(plan)),
        lambda: composed.spec("r"),
        lambda: composed.scale(ScalePlan("r", "w", 1, (), ())),
        lambda: composed.kill([pod]),
        lambda: anext(composed.destroy(run)),
        composed.leaks,
        lambda: composed.exec(pod, ["sh"]),
        lambda: composed.capture(pod, ["ls"]),
        composed.doctor,
    ):
        with pytest.raises(RefusedError, match=r"needs one context. Name it: `--context lab` or `--context prod`"):
            await call()
    assert set(await composed.denied()) >= {"launch", "kill", "destroy"}
    with pytest.raises(NotFoundError):
        await anext(composed.logs(PodView("u", "p", context="gone"), LogQuery()))


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


def test_a_verb_that_acts_and_the_app_want_one_context(kubeconfig):
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
    with pytest.raises(UsageError, match="The app acts in one context"):
        contexts_of(app_parser().read(["--all-contexts"]))
