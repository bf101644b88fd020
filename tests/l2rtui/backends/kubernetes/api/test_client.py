"""The client of the API server: requests that it sends, permissions that it caches, and opening a context."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from l2rtui.backends.kubernetes.api.client import connect
from l2rtui.backends.kubernetes.api.errors import ApiError
from tests.l2rtui.backends.kubernetes.api_server import Server, config_map, refusal, serving

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ml"}}


class Recorder:
    """Answers every request by a function of its path, and remembers method, path, query and body."""

    def __init__(self, answer=lambda _: web.json_response({"metadata": {"uid": "u"}})):
        self.answer = answer
        self.requests = []

    async def __call__(self, request):
        body = await request.read()
        parsed = json.loads(body) if body else None
        self.requests.append((request.method, request.path, dict(request.query), parsed, request.content_type))
        return self.answer(request)


@pytest.fixture
async def recorder():
    made = Recorder()
    async with serving(Server(on_request=made)) as server:
        made.api = server.api()
        yield made
        await made.api.close()


@pytest.mark.parametrize("dry_run", [False, True])
async def test_writes_name_our_field_manager_and_a_dry_run_says_so(recorder, dry_run):
    api = recorder.api
    assert await api.create(POD, dry_run=dry_run) == {"metadata": {"uid": "u"}}
    await api.apply(POD, dry_run=dry_run, force=True)
    dry = {"dryRun": "All"} if dry_run else {}
    created, applied = recorder.requests
    query = {"fieldManager": "l2rtui"}
    assert created == ("POST", "/api/v1/namespaces/ml/pods", query | dry, POD, "application/json")
    path = "/api/v1/namespaces/ml/pods/p"
    assert applied == ("PATCH", path, query | dry | {"force": "true"}, POD, "application/apply-patch+yaml")


async def test_replace_patch_and_delete_name_object_and_subresource(recorder):
    api = recorder.api
    await api.replace(POD)
    await api.patch("ReplicaSet", "ml", "r", {"spec": {"replicas": 2}}, subresource="scale")
    await api.delete("Pod", "ml", "p", uid="u", resource_version="7", propagation="Foreground", grace_seconds=0)
    await api.delete("Node", None, "n")
    replaced, patched, deleted, bare = recorder.requests
    assert replaced[:2] == ("PUT", "/api/v1/namespaces/ml/pods/p")
    assert patched[:2] == ("PATCH", "/apis/apps/v1/namespaces/ml/replicasets/r/scale")
    assert patched[4] == "application/merge-patch+json"
    assert deleted[3] == {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "propagationPolicy": "Foreground",
        "gracePeriodSeconds": 0,
    }
    assert bare[1:4] == ("/api/v1/nodes/n", {}, {"kind": "DeleteOptions", "apiVersion": "v1"})


async def test_a_manifest_without_a_namespace_goes_to_that_of_the_context_and_its_version_wins(recorder):
    claim = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim", "metadata": {"name": "c"}}
    await recorder.api.create(claim)
    assert recorder.requests[0][1] == "/apis/resource.k8s.io/v1beta1/namespaces/default/resourceclaims"


async def test_a_list_is_read_in_pages_and_again_in_one_piece_once_its_revision_has_expired():
    first = {"metadata": {"resourceVersion": "10", "continue": "more"}, "items": [config_map("a", 1)]}
    server = Server([config_map("b", 2)], on_list=[first, refusal(410, "Expired")])
    async with serving(server):
        api = server.api()
        items = await api.list("ConfigMap", None, labels="l2rtui.io/run=x")
        await api.close()
    assert [item["metadata"]["name"] for item in items] == ["b"], "half of the first attempt is not part of it"
    selector = {"labelSelector": "l2rtui.io/run=x"}
    assert server.lists == [
        selector | {"limit": "500"},
        selector | {"limit": "500", "continue": "more"},
        selector,
    ]


async def test_an_error_on_the_first_page_is_no_reason_to_ask_again():
    server = Server(on_list=[refusal(410, "Expired")])
    async with serving(server):
        api = server.api()
        with pytest.raises(ApiError):
            await api.list("ConfigMap", None)
        await api.close()
    assert len(server.lists) == 1


async def test_a_permission_is_asked_for_once_until_it_is_forgotten(recorder):
    recorder.answer = lambda _: web.json_response({"status": {"allowed": True}})
    api = recorder.api
    assert await api.can("create", "Pod", "ml", subresource="exec")
    assert await api.can("create", "Pod", "ml", subresource="exec")
    assert await api.can("list", "ReplicaSet", None)
    assert len(recorder.requests) == 2
    attributes = [request[3]["spec"]["resourceAttributes"] for request in recorder.requests]
    assert attributes == [
        {"verb": "create", "group": "", "resource": "pods", "subresource": "exec", "namespace": "ml"},
        {"verb": "list", "group": "apps", "resource": "replicasets", "subresource": ""},
    ]
    recorder.answer = lambda _: web.json_response({"status": {"allowed": False}})
    api.forget_permissions()
    assert not await api.can("list", "ReplicaSet", None)


async def test_versions_of_a_group_come_with_the_preferred_one_first_and_are_asked_for_once(recorder):
    group = {
        "versions": [{"version": "v1beta1"}, {"version": "v1"}, {}],
        "preferredVersion": {"version": "v1"},
    }
    recorder.answer = lambda request: (
        web.json_response(group) if request.path == "/apis/resource.k8s.io" else refusal(404, "NotFound")
    )
    for _ in range(2):
        assert await recorder.api.group_versions("resource.k8s.io") == ("v1", "v1beta1")
        assert await recorder.api.group_versions("no.such.group") == ()
    assert len(recorder.requests) == 2
    recorder.answer = lambda _: refusal(503, "ServiceUnavailable")
    with pytest.raises(ApiError):
        await recorder.api.group_versions("apps")


@pytest.fixture
def kubeconfig(tmp_path):
    def write(server):
        path = tmp_path / "config"
        path.write_text(
            json.dumps(
                {
                    "current-context": "lab",
                    "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
                    "clusters": [{"name": "c", "cluster": {"server": server}}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                }
            )
        )
        return str(path)

    return write


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        (lambda: web.json_response({"major": "1", "minor": "27+"}), (1, 27)),
        (lambda: web.json_response({}), (1, 20)),
        (lambda: refusal(403, "Forbidden"), (1, 20)),
    ],
    ids=["a cloud's plus", "no version", "a hardened server"],
)
async def test_a_context_is_opened_with_the_version_of_its_server(kubeconfig, answer, version):
    async with serving(Server(on_request=Recorder(lambda _: answer()))) as server:
        api = await connect(kubeconfig=kubeconfig(server.base), namespaces=("a", "b"))
        await api.close()
    assert (api.server_version, api.context, api.namespace) == (version, "lab", "a")
    assert api.namespaces == ("a", "b")
    assert api._encoding == "identity", "a server on the loopback need not compress"


async def test_a_login_that_is_refused_opens_nothing(kubeconfig):
    async with serving(Server(on_request=Recorder(lambda _: refusal(401, "Unauthorized")))) as server:
        with pytest.raises(ApiError) as caught:
            await connect(kubeconfig=kubeconfig(server.base))
    assert caught.value.is_unauthorized
    assert "Log in" in caught.value.hint
