"""Secrets against an API server in memory: kept, replaced, removed; other users' secrets stay untouched."""

from __future__ import annotations

import base64

import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.manifests import render
from l2rtui.backends.kubernetes.storage.secrets import KubernetesSecrets
from l2rtui.domain.containers import PodSettings
from l2rtui.domain.secret import Secret, SecretKind
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.errors import NotFoundError, RefusedError
from tests.fakes.kubernetes_objects import Failure


@pytest.fixture
def secrets(connect):
    return KubernetesSecrets(connect, "anna@lab")


def variables(**values):
    return Secret("aws", SecretKind.VARIABLES, tuple(values.items()))


async def test_a_secret_is_kept_and_listed_without_its_values(secrets, server):
    await secrets.keep(variables(KEY="value"))
    (view,) = await secrets.list()
    assert (view.name, view.kind, view.keys, view.owner) == ("aws", SecretKind.VARIABLES, ("KEY",), "anna@lab")
    assert "value" not in repr(view)
    assert base64.b64decode(server.get("Secret", "aws")["data"]["KEY"]) == b"value"
    assert server.get("Secret", "aws")["metadata"]["labels"][labels.OWNER] == "anna-lab"


async def test_a_secret_is_replaced_only_when_it_was_said(secrets, server):
    await secrets.keep(variables(KEY="old"))
    with pytest.raises(RefusedError, match="There is a secret aws in ml"):
        await secrets.keep(variables(KEY="new"))
    await secrets.keep(variables(OTHER="new"), replace=True)
    assert set(server.get("Secret", "aws")["data"]) == {"OTHER"}


async def test_a_secret_of_another_type_is_made_anew_since_types_cannot_change(secrets, server):
    await secrets.keep(variables(KEY="x"))
    before = server.get("Secret", "aws")["metadata"]["uid"]
    registry = Secret("aws", SecretKind.REGISTRY, ((".dockerconfigjson", "{}"),))
    await secrets.keep(registry, replace=True)
    after = server.get("Secret", "aws")
    assert (after["type"], after["metadata"]["uid"] != before) == ("kubernetes.io/dockerconfigjson", True)


async def test_a_secret_that_was_changed_meanwhile_is_not_overwritten(secrets, server):
    await secrets.keep(variables(KEY="x"))
    server.failures.append(Failure("PUT", "Secret", 409, "Conflict"))
    with pytest.raises(Exception, match="no"):
        await secrets.keep(variables(KEY="y"), replace=True)
    assert base64.b64decode(server.get("Secret", "aws")["data"]["KEY"]) == b"x"


async def test_secrets_of_others_are_neither_listed_nor_replaced_nor_removed(secrets, server):
    server.put({"kind": "Secret", "metadata": {"name": "aws"}, "data": {}})
    assert await secrets.list() == ()
    for act in (secrets.keep(variables(KEY="x"), replace=True), secrets.delete("aws")):
        with pytest.raises(RefusedError, match="was not made by `l2rtui secret`"):
            await act
    assert server.get("Secret", "aws") is not None


async def test_a_secret_that_is_not_there_cannot_be_removed(secrets):
    await secrets.keep(variables(KEY="x"))
    await secrets.delete("aws")
    with pytest.raises(NotFoundError, match="There is no secret aws in ml"):
        await secrets.delete("aws")


async def test_without_the_right_to_list_those_that_runs_name_are_shown_and_the_rest_is_said_to_be_hidden(
    secrets, server
):
    pod = PodSettings(secrets=("aws", "missing", "foreign"))
    spec = RunSpec(Kind.JOB, "r", "r", (SetSpec("w", Role.WORKER, ("w",), pod=pod),))
    run = {"name": "l2r-r", "labels": {labels.APP_MANAGED_BY: labels.MANAGED_BY, labels.RUN_ID: "u"}}
    server.put({"kind": "ConfigMap", "metadata": run, "data": {labels.SPEC_KEY: render.spec_json(spec)}})
    broken = {**run, "name": "l2r-old"}
    server.put({"kind": "ConfigMap", "metadata": broken, "data": {labels.SPEC_KEY: "{"}})
    server.put({"kind": "Secret", "metadata": {"name": "foreign"}, "data": {}})
    await secrets.keep(variables(KEY="x"))
    await secrets.keep(Secret("unused", SecretKind.VARIABLES, (("KEY", "x"),)))
    assert [view.name for view in await secrets.list()] == ["aws", "unused"]
    assert secrets.hidden == ""
    server.denied.add(("list", "secrets"))
    assert [view.name for view in await secrets.list()] == ["aws"]
    assert "You may not list secrets in ml" in secrets.hidden


async def test_who_may_neither_list_nor_read_secrets_is_told_the_right(secrets, server):
    pod = PodSettings(secrets=("aws",))
    spec = RunSpec(Kind.JOB, "r", "r", (SetSpec("w", Role.WORKER, ("w",), pod=pod),))
    run = {"name": "l2r-r", "labels": {labels.APP_MANAGED_BY: labels.MANAGED_BY}}
    server.put({"kind": "ConfigMap", "metadata": run, "data": {labels.SPEC_KEY: render.spec_json(spec)}})
    server.denied |= {("list", "secrets"), ("get", "secrets")}
    with pytest.raises(ApiError, match="tester lacks the right to get secrets"):
        await secrets.list()
