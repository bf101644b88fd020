"""Another context, or other namespaces, while the app runs: two API servers in memory behind one kubeconfig."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial

import pytest

from l2rtui.backends.common.liveness import LivenessTiming
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.config import Settings, load_settings
from l2rtui.domain.history import HistoryEntry, HistoryRecord
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.services import launcher
from l2rtui.services.history import place
from l2rtui.ui.app import L2RApp
from l2rtui.ui.state.app_context import ContextOpener
from tests.fakes.kubernetes_objects import Failure, ObjectServer, serving
from tests.l2rtui.ui.conftest import Desk

CONFIG = """
[context.prod]
protected = true
[context.frozen]
readonly = true
"""


def node(name: str) -> dict:
    room = {"cpu": "8", "memory": "64Gi", "pods": "110"}
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": room, "capacity": room}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {labels.GPUS: "2", labels.HOSTNAME: name}},
        "status": status,
    }


def cluster(name: str) -> ObjectServer:
    """A server with a node and a pod in each of two namespaces, named after it."""
    server = ObjectServer()
    server.put(node(f"{name}-n1"))
    for namespace in ("ml", "other"):
        server.put({"kind": "Namespace", "metadata": {"name": namespace}})
        spec = {"nodeName": f"{name}-n1", "containers": [{"name": "main", "image": "i"}]}
        pod = {"kind": "Pod", "metadata": {"name": f"{name}-{namespace}-pod"}, "spec": spec}
        server.put({**pod, "status": {"phase": "Running"}}, namespace)
    return server


@pytest.fixture
def quick_silence(monkeypatch):
    """Silence of a server is noticed after half a second."""
    timing = partial(LivenessTiming, quiet=0.2, answer=2.0, silent=0.5, again=0.1)
    monkeypatch.setattr("l2rtui.backends.common.liveness.LivenessTiming", timing)


@pytest.fixture
async def stacks():
    """What ends each server, by its name."""
    async with AsyncExitStack() as every:
        yield {name: await every.enter_async_context(AsyncExitStack()) for name in ("lab", "prod")}


@pytest.fixture
async def servers(stacks):
    return {name: await stack.enter_async_context(serving(cluster(name))) for name, stack in stacks.items()}


async def launched(name: str) -> None:
    """A run of one worker in a context, in the ordinary way."""
    workers = SetSpec("w", Role.WORKER, ("w",), replicas=1, restart=RestartPolicy.ALWAYS)
    backend = KubernetesBackend(Settings(context=name))
    prepared = await launcher.prepare_runs(backend, [RunSpec(Kind.JOB, "r7", "r7", (workers,), image="i:1")])
    async with aclosing(launcher.launch(backend, prepared)) as steps:
        assert not [done.error async for done in steps if done.error]
    await backend.close()


@pytest.fixture
def opened(servers, tmp_path, monkeypatch):
    """Open the app over a context: ``async with opened("lab") as one``; flags as those of the start."""
    bases = {"frozen": servers["lab"].base, "dead": "http://127.0.0.1:9", **{k: s.base for k, s in servers.items()}}
    config = {
        "current-context": "lab",
        "contexts": [{"name": name, "context": {"cluster": name, "user": "u", "namespace": "ml"}} for name in bases]
        + [{"name": "broken", "context": {"cluster": "nowhere", "user": "u"}}],
        "clusters": [{"name": name, "cluster": {"server": base}} for name, base in bases.items()],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    (tmp_path / "config.toml").write_text(CONFIG)
    for name, value in (("KUBECONFIG", "kubeconfig"), ("L2RTUI_CONFIG", "config.toml")):
        monkeypatch.setenv(name, str(tmp_path / value))

    @asynccontextmanager
    async def open_app(**flags):
        def settings_for(context, namespaces):
            return load_settings({**flags, "context": context, "namespaces": namespaces})

        settings = settings_for("lab", None)
        app = L2RApp(
            settings, partial(KubernetesBackend, settings), opener=ContextOpener(settings_for, KubernetesBackend)
        )
        app.ctx.cancel_seconds = 0.0
        async with app.run_test(size=(160, 45)) as pilot:
            one = Desk(app, pilot, None)
            await one.until(lambda: app.screen is app.cluster and shows(one, "lab"), "the home screen")
            yield one

    return open_app


def shows(one: Desk, name: str) -> bool:
    return f"{name}-n1" in one.cluster.snapshot.nodes and f"kubernetes · {name} ·" in one.words()


async def type_command(one: Desk, text: str) -> None:
    names = {" ": "space", ",": "comma", "*": "asterisk", "-": "minus"}
    await one.press("colon", *(names.get(letter, letter) for letter in text), "enter")


async def test_another_context_replaces_everything_that_was_of_the_one_before(opened):
    async with opened() as one:
        before, old = one.app.ctx.backend, one.cluster
        one.cluster.panes.pods.narrow(text="lab")
        one.app.ctx.is_admin = True
        await type_command(one, "ctx prod")
        await one.until(lambda: shows(one, "prod"), "the other cluster")
        assert one.cluster is not old
        assert list(one.cluster.snapshot.nodes) == ["prod-n1"]
        assert one.cluster.panes.pods.model.filter_text == ""
        assert one.app.ctx.acts_on() == "on context prod, namespace ml, as u"
        assert not one.app.ctx.is_admin
        assert before._context is None  # closed
        await one.until(lambda: any(text.startswith("Here is prod · ml") for text in one.says()))
        # What happens there is shown from now on.
        assert "lab-n1" not in one.words()


async def test_a_followed_log_and_a_forwarded_port_end_with_a_word(opened):
    async with opened() as one:
        await one.press("3")
        await one.until(lambda: one.cluster.panes.logs.controllers[0].selection.pods, "the log of the pod")
        await one.press("F")
        await one.press("0", "colon", *"7070", "enter")  # the system chooses the local one
        await one.until(lambda: any("7070" in text for text in one.says()), "the port")
        await type_command(one, "ctx prod")
        await one.until(lambda: shows(one, "prod"))
        await one.until(lambda: any("1 followed log and 1 forwarded port ended" in text for text in one.says()))


@pytest.mark.slow
async def test_rules_of_a_context_come_and_go_with_it(opened):
    async with opened() as one:
        assert (one.app.ctx.protected, one.app.ctx.settings.readonly) == ("", False)
        await type_command(one, "ctx prod")
        await one.until(lambda: shows(one, "prod"))
        await one.until(lambda: "PROTECTED" in one.words())
        assert one.app.ctx.protected == "prod"
        assert one.app.has_class("protected")
        await type_command(one, "ctx frozen")
        await one.until(lambda: shows(one, "frozen") or "READ-ONLY" in one.words())
        await one.until(lambda: "READ-ONLY" in one.words())
        assert one.app.ctx.protected == ""
        assert not one.app.has_class("protected")
        await one.until(lambda: one.app.ctx.forbidden("kill"))
        await type_command(one, "ctx lab")
        await one.until(lambda: shows(one, "lab"))
        assert not one.app.ctx.settings.readonly


@pytest.mark.slow
async def test_a_context_that_cannot_be_entered_is_a_sentence_and_the_view_stays(opened, servers):
    failures = {
        "prd": "no context 'prd'",
        "broken": "The context broken has no cluster 'nowhere'",
        "dead": "127.0.0.1:9",
    }
    async with opened(readonly=True) as one:
        cluster, backend = one.cluster, one.app.ctx.backend
        for name, sentence in failures.items():
            await type_command(one, f"ctx {name}")
            await one.until(lambda sentence=sentence: any(sentence in text for text in one.says()), sentence)
            await one.until(lambda: one.top == "ClusterScreen")
        assert sum("The view stays where it is." in text for text in one.says()) == len(failures)
        assert (one.cluster, one.app.ctx.backend) == (cluster, backend)
        # And it lives: what changes in the old cluster is shown.
        servers["lab"].put(node("lab-n2"))
        async with servers["lab"].changed:
            servers["lab"].changed.notify_all()
        await one.until(lambda: "lab-n2" in one.cluster.snapshot.nodes, "the watch goes on")
        with one.app.background.busy("launching r7"):
            await type_command(one, "ctx prod")
            await one.until(lambda: any("Now launching r7" in text for text in one.says()))
        assert shows(one, "lab")
        await type_command(one, "ctx prod")
        await one.until(lambda: shows(one, "prod"))
        assert one.app.ctx.settings.readonly  # of the start, and not of a context


async def test_esc_gives_up_a_context_that_does_not_answer(opened, servers):
    servers["prod"].failures = [Failure("GET", "Node", 0, times=10_000), Failure("GET", "Pod", 500, times=10_000)]
    async with opened() as one:
        await one.press("colon", *"ctx", "space", *"prod", "enter")
        await one.until(lambda: one.top == "ConnectingScreen" or one.says())
        await one.press("escape")
        await one.until(lambda: one.top == "ClusterScreen")
        assert shows(one, "lab")


@pytest.mark.slow
async def test_namespaces_of_the_same_context(opened, servers):
    async with opened() as one:
        assert one.app.ctx.acts_on() == "on context lab, namespace ml, as u"
        await type_command(one, "ns other,ml")
        await one.until(lambda: "lab · other,ml" in one.words())
        assert one.app.ctx.acts_on() == "on context lab, namespace other, as u"
        await type_command(one, "ns *")
        await one.until(lambda: "lab · ml" in one.words())
        assert one.app.ctx.settings.namespaces == ()


@pytest.mark.slow
async def test_a_list_to_choose_from(opened, servers):
    async with opened() as one:
        complete = one.cluster.command_line.complete
        assert complete("ctx pr") == "ctx prod"
        await one.until(lambda: complete("ns ml,ot") == "ns ml,other")
        assert complete("ns zz") == "ns zz"
        await type_command(one, "ctx")
        await one.until(lambda: one.top == "ChoiceScreen" and "● lab" in one.words())
        for name in ("frozen", "dead", "prod", "broken"):
            assert name in one.words()
        await one.press("down", "enter")
        await one.until(lambda: shows(one, "prod"))
        await type_command(one, "ns")
        await one.until(lambda: one.top == "ChoiceScreen" and "other" in one.words())
        await one.press("down", "down", "enter")
        await one.until(lambda: "prod · other" in one.words())
        servers["prod"].denied.add(("list", "namespaces"))
        await type_command(one, "ns")
        await one.until(lambda: any("`:ns NAME` goes to one all the same." in text for text in one.says()))


async def test_a_backend_without_contexts_says_so(desk):
    async with desk(ready=False) as one:
        for command in ("ctx lab", "ns x", "ctx", "namespace"):
            await type_command(one, command)
        await one.until(lambda: sum("l2rtui --context NAME" in text for text in one.says()) == 4)


# --- several contexts in one view ------------------------------------------------------------------------------
def both(one: Desk) -> bool:
    return {"lab:lab-n1", "prod:prod-n1"} <= one.cluster.snapshot.nodes.keys()


@pytest.mark.slow
async def test_two_contexts_stand_in_one_view_and_each_has_its_own_health(opened):
    async with opened() as one:
        await type_command(one, "ctx lab,prod")
        await one.until(lambda: both(one), "the rows of both")
        await one.until(lambda: "lab ● live" in one.words() and "prod ● live ▲ PROTECTED" in one.words())
        await one.press("A", "3")
        await one.until(lambda: "lab:lab-ml-pod" in one.words() and "prod:prod-ml-pod" in one.words())
        assert [column.key for column in one.cluster.panes.pods.model.columns][:2] == ["pod", "context"]
        # What needs the slots of one cluster says how to go there.
        assert "needs one context, such as `:ctx lab`" in one.app.ctx.forbidden("launch")
        await type_command(one, "ctx prod")
        await one.until(lambda: shows(one, "prod"))
        assert "context" not in [column.key for column in one.cluster.panes.pods.model.columns]


async def test_the_history_of_a_view_has_the_runs_and_the_places_of_each(opened, tmp_path):
    tables = [f'[context.{name}]\nhistory_to = "{tmp_path / name}"\n' for name in ("lab", "prod")]
    (tmp_path / "config.toml").write_text("".join(tables))
    for number, name in enumerate(("lab", "prod")):
        backend = KubernetesBackend(Settings(context=name, history_to=str(tmp_path / name)))
        entry = HistoryEntry(f"past-{name}", f"{number}" * 32, owner="ada", context=name)
        await place.leave(backend, [HistoryRecord(entry)])
        await backend.close()
    async with opened() as one:
        await type_command(one, "ctx lab,prod")
        await one.until(lambda: both(one), "the rows of both")
        await one.press("H")
        await one.until(lambda: "past-lab" in one.words() and "past-prod" in one.words(), "the records of both")


@pytest.mark.slow
async def test_a_context_that_cannot_be_reached_is_away_and_the_others_are_shown(opened):
    async with opened() as one:
        await type_command(one, "ctx lab,dead,broken")
        await one.until(lambda: "lab:lab-n1" in one.cluster.snapshot.nodes, "the rows of the one that is there")
        await one.until(lambda: "dead ✖ away" in one.words() and "broken ✖ away" in one.words(), "the others")
        assert "lab ● live" in one.words()
        before = one.cluster
        await type_command(one, "ctx lab,prd")
        await one.until(lambda: any("no context 'prd'" in text for text in one.says()))
        assert one.cluster is before


@pytest.mark.slow
async def test_a_killed_server_ages_its_own_rows_and_the_other_goes_on(opened, servers, stacks, quick_silence):
    async with opened() as one:
        await type_command(one, "ctx *")
        await one.until(lambda: both(one), "the rows of both")
        await one.press("4")
        await one.until(lambda: "prod:prod-n1" in one.words())
        await stacks["prod"].aclose()
        servers["lab"].put(node("lab-n2"))
        async with servers["lab"].changed:
            servers["lab"].changed.notify_all()
        await one.until(lambda: "lab:lab-n2" in one.words(), "what happens in the other meanwhile")
        await one.until(lambda: "prod ▲ old" in one.words(), "its health")
        nodes = one.cluster.panes.nodes.model
        await one.until(
            lambda: nodes.rows["prod:prod-n1"].cells[1].text.startswith("prod ▲ "), "the age of its row"
        )
        assert nodes.rows["lab:lab-n1"].cells[1].text == "lab"
        grid = [line.strip() for line in one.words().splitlines() if "prod:prod-n1" in line]
        assert any("▲ old" in line for line in grid), grid
        await one.press("r")
        await one.until(lambda: "refreshed" in one.says(), "a look at everything")
        assert both(one)  # old rows are not gone


@pytest.mark.process
async def test_a_change_names_the_context_of_its_row_and_acts_there_alone(opened, servers):
    for name in servers:
        await launched(name)
    async with opened() as one:
        await type_command(one, "ctx lab,prod")
        await one.until(lambda: {"lab:r7", "prod:r7"} == {run.name for run in one.cluster.snapshot.runs.values()})
        await type_command(one, "kill lab:r7")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert "on context lab, namespace ml, as u" in one.words()
        assert "l2rtui --context lab kill r7" in one.words()
        await one.press("escape")
        await type_command(one, "destroy prod:r7")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert "on context prod, namespace ml, as u" in one.words()
        await one.press(*"prod", "enter")  # its own name: this context is protected, the other is not
        await one.until(lambda: "nothing left of prod:r7" in one.words(), "the receipt")
        assert not [name for name in servers["prod"].names("Pod") if "r7" in name]
        assert [name for name in servers["lab"].names("Pod") if "r7" in name]
        await one.press("escape")
        await one.until(lambda: {run.name for run in one.cluster.snapshot.runs.values()} == {"lab:r7"})
        # A scale is planned over the slots of its own cluster alone.
        await one.press("2", "plus")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert "l2rtui --context lab scale r7/w 2" in one.words()
        await one.press("y")
        await one.until(
            lambda: sum("r7" in name for name in servers["lab"].names("Pod")) == 2, "the second replica"
        )


@pytest.mark.process
async def test_changes_of_two_contexts_of_a_read_only_one_and_of_specs_are_refused_by_a_sentence(opened, servers):
    for name in servers:
        await launched(name)
    async with opened() as one:
        await type_command(one, "ctx lab,prod,frozen")
        names = {"lab:r7", "prod:r7", "frozen:r7"}
        await one.until(lambda: names == {run.name for run in one.cluster.snapshot.runs.values()})
        for command, sentence in (
            ("destroy mine", "These are of the contexts"),
            ("destroy frozen:r7", "The context frozen is read-only"),
        ):
            await type_command(one, command)
            await one.until(lambda text=sentence: any(text in said for said in one.says()), sentence)
            assert one.top == "ClusterScreen"
        lab = next(run for run in one.cluster.snapshot.runs.values() if run.name == "lab:r7")
        one.cluster.panes.runs.move_to(lab.uid)
        await one.press("2", "e")
        await one.until(lambda: any("`:ctx lab` opens that of lab:r7" in said for said in one.says()))


@pytest.mark.slow
async def test_logs_descriptions_and_events_come_from_the_context_of_the_row(opened, servers):
    async with opened() as one:
        await type_command(one, "ctx lab,prod")
        await one.until(lambda: both(one))
        await one.press("A", "3")
        pods = one.cluster.panes.pods
        await one.until(lambda: any("prod:" in row.cells[0].text for row in pods.model.rows.values()))
        uid = next(uid for uid, pod in one.cluster.snapshot.pods.items() if pod.name == "prod:prod-ml-pod")
        pods.move_to(uid, by_user=True)
        await one.until(lambda: ("GET", "Pod", "prod-ml-pod") in servers["prod"].requests, "its log")
        asked = len(servers["lab"].requests)
        await one.press("d")
        await one.until(lambda: one.top == "DetailScreen", "its description")
        assert "prod-ml-pod" in one.words()
        assert not [name for _, _, name in servers["lab"].requests[asked:] if name == "prod-ml-pod"]
