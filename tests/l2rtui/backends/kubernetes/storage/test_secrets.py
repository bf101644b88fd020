"""Secrets against an API server in memory: kept, replaced, removed; those of others are left alone."""

from __future__ import annotations

import base64

import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.storage.secrets import KubernetesSecrets
from l2rtui.domain.secret import Secret, SecretKind
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
