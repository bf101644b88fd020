"""Visibility: resources listed and watched with the user's permissions, and the sentences about the others."""

from __future__ import annotations

import pytest

from l2rtui.backends.kubernetes.api.decode import UndecodedObject
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.list_pages import Scope
from l2rtui.backends.kubernetes.api.structs import ObjectMeta
from l2rtui.backends.kubernetes.state.visibility import (
    Visibility,
    find_visibility,
    missing,
    scopes,
    undecoded_problems,
    visibility_problems,
)
from tests.l2rtui.backends.kubernetes.state.cluster_server import Cluster, connected

RESOURCE = "/apis/resource.k8s.io"


@pytest.fixture
def cluster():
    return Cluster()


async def test_an_administrator_sees_all_namespaces_and_has_nothing_to_complain_of(cluster):
    async with connected(cluster) as api:
        visibility = await find_visibility(api)
    assert visibility == Visibility((None,), ("default",), is_cluster_wide=True, has_nodes=True)
    assert visibility.is_complete
    assert visibility_problems(visibility) == []
    assert scopes(visibility)[:2] == [Scope("Node"), Scope("Pod")]
    assert {scope.kind for scope in scopes(visibility)[2:]} == {
        *("ReplicaSet", "StatefulSet", "Job", "ConfigMap", "Event"),
    }
    assert {scope.namespace for scope in scopes(visibility)[2:]} == {"default"}, "runs are those of one namespace"


async def test_a_user_of_two_namespaces_sees_these_and_is_told_what_is_missing(cluster):
    cluster.allowed = lambda _, namespace: namespace is not None
    async with connected(cluster, namespaces=("a", "b")) as api:
        visibility = await find_visibility(api)
    assert visibility == Visibility(("a", "b"), ("a", "b"), is_cluster_wide=False, has_nodes=False)
    assert not visibility.is_complete
    assert [scope for scope in scopes(visibility) if scope.kind in ("Node", "Pod")] == [
        Scope("Pod", "a"),
        Scope("Pod", "b"),
    ]
    pods, nodes = visibility_problems(visibility)
    assert pods.startswith("Only pods of a, b can be listed")
    assert "list and watch nodes" in nodes


@pytest.mark.parametrize("may_list", [True, False])
async def test_where_reviews_are_forbidden_a_list_of_one_object_tells(cluster, may_list):
    cluster.has_reviews = False
    cluster.allowed = lambda *_: may_list
    async with connected(cluster) as api:
        visibility = await find_visibility(api)
    assert (visibility.is_cluster_wide, visibility.has_nodes) == (may_list, may_list)


async def test_a_broken_admission_webhook_keeps_nobody_from_reading(cluster):
    # Rules for all resources ("*") include access reviews, so such a webhook fails them like every creation.
    cluster.failing = {"selfsubjectaccessreviews"}
    async with connected(cluster) as api:
        visibility = await find_visibility(api)
        assert await api.visible_namespaces("ConfigMap") == (None,)
    assert visibility.is_complete


async def test_a_server_that_fails_is_not_taken_for_a_missing_permission(cluster):
    cluster.has_reviews, cluster.failing = False, {"pods"}
    async with connected(cluster) as api:
        with pytest.raises(ApiError, match="broken"):
            await find_visibility(api)


@pytest.mark.parametrize(
    ("served", "version"), [(("v1beta1", "v1"), "v1"), (("v1beta1", "v1beta2"), "v1beta2"), (("v1alpha3",), "")]
)
async def test_the_newest_version_of_resource_claims_that_both_know_is_used(cluster, served, version):
    cluster.groups[RESOURCE] = {"versions": [{"version": name} for name in served]}
    async with connected(cluster) as api:
        visibility = await find_visibility(api)
    assert visibility.resource_api == (f"resource.k8s.io/{version}" if version else "")
    claims = [scope for scope in scopes(visibility) if scope.kind in ("ResourceClaim", "ResourceSlice")]
    assert [scope.api_version for scope in claims] == ([visibility.resource_api] * 2 if version else [])


async def test_claims_are_read_in_our_namespaces_where_those_of_all_are_hidden(cluster):
    cluster.groups[RESOURCE] = {"versions": [{"version": "v1"}]}
    cluster.allowed = lambda plural, namespace: plural in ("pods", "nodes") or namespace == "a"
    async with connected(cluster, namespaces=("a", "b")) as api:
        visibility = await find_visibility(api)
    assert (visibility.claim_namespaces, visibility.has_slices) == (("a",), False)
    assert visibility.is_complete, "an unknown GPU is worth no message"


def test_objects_that_cannot_be_decoded_are_counted_and_the_first_are_named():
    undecoded = {f"ml/{name}": UndecodedObject(ObjectMeta(name=name), "odd") for name in "edcba"}
    sentences = undecoded_problems(Scope("Pod", "ml"), undecoded, 2)
    assert sentences == [
        "5 of the pods in the namespace ml cannot be decoded: ml/a (odd), ml/b (odd), ml/c (odd) and 2 more.",
        "2 of the pods in the namespace ml cannot be read at all, not even their names.",
    ]
    assert undecoded_problems(Scope("Pod"), {}, 0) == []


def test_a_kind_that_is_missing_is_named_with_the_server_s_own_words():
    assert missing(Scope("Event", "ml"), ApiError("no", detail="you may not.")) == (
        "events in the namespace ml cannot be read: you may not."
    )
