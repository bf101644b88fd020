"""Another context, or other namespaces, while the app runs: two API servers in memory behind one kubeconfig."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from functools import partial

import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.config import load_settings
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
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "8"}}
    return {"kind": "Node", "metadata": {"name": name, "labels": {labels.GPUS: "2"}}, "status": status}


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
async def servers():
    async with serving(cluster("lab")) as lab, serving(cluster("prod")) as prod:
        yield {"lab": lab, "prod": prod}


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
        async with servers["lab"]._changed:
            servers["lab"]._changed.notify_all()
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


async def test_namespaces_of_the_same_context(opened, servers):
    async with opened() as one:
        assert one.app.ctx.acts_on() == "on context lab, namespace ml, as u"
        await type_command(one, "ns other,ml")
        await one.until(lambda: "lab · other,ml" in one.words())
        assert one.app.ctx.acts_on() == "on context lab, namespace other, as u"
        await type_command(one, "ns *")
        await one.until(lambda: "lab · ml" in one.words())
        assert one.app.ctx.settings.namespaces == ()


async def test_a_list_to_choose_from(opened, servers):
    async with opened() as one:
        complete = one.cluster.command_line._complete
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
