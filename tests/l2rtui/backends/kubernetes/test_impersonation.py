"""Acting as another user: by the options of the program, for every request, and shown with the context."""

from __future__ import annotations

import json

from aiohttp import web

from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.cli.main import main
from l2rtui.cli.parser import VERBS, verb_parser
from l2rtui.cli.session import settings_of
from l2rtui.cli.verbs.serve import options_passed_on
from tests.l2rtui.backends.kubernetes.api_server import Server, serving

OPTIONS = ["--as", "anna", "--as-group", "readers", "--as-group", "system:guests"]


async def test_options_of_the_program_reach_the_server_and_the_screen(tmp_path):
    requests = []

    async def answer(request):
        requests.append(request.headers.copy())
        return web.json_response({"major": "1", "minor": "31"})

    config = tmp_path / "config"
    async with serving(Server(on_request=answer)) as server:
        context = {"cluster": "k", "user": "admin", "namespace": "ml"}
        config.write_text(json.dumps({
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": context}],
            "clusters": [{"name": "k", "cluster": {"server": server.base}}],
            "users": [{"name": "admin", "user": {"token": "t"}}],
        }))  # fmt: skip
        args = verb_parser(VERBS["pods"]).read(OPTIONS)
        args.verb = "pods"
        backend = KubernetesBackend(settings_of(args), str(config))
        await backend.context()
        assert backend.location == "lab · ml · as anna (impersonated by admin)"
        assert backend.acts_on(["ml"]).endswith("as anna (impersonated by admin)")
        await backend.close()
    assert {headers["Impersonate-User"] for headers in requests} == {"anna"}
    assert {tuple(headers.getall("Impersonate-Group")) for headers in requests} == {("readers", "system:guests")}


def test_a_backend_without_users_says_so(capsys):
    assert main(["pods", "--backend", "demo", *OPTIONS]) == 2
    assert "The demo backend has no users: --as means nothing there" in capsys.readouterr().err


def test_tabs_of_serve_act_as_the_same_user():
    args = verb_parser(VERBS["serve"]).read(OPTIONS)
    assert options_passed_on(args) == OPTIONS
