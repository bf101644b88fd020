"""The table of rights against the program: each verb runs, and its requests are compared with its rows."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from l2rtui.backends.kubernetes.actions import destroy as destroying
from l2rtui.backends.kubernetes.api.errors import MissingRight
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.backends.kubernetes.manifests import rbac
from l2rtui.backends.kubernetes.rights import TABLE, RoleScope, advice, rows_of
from l2rtui.backends.kubernetes.storage import volumes as volume_claims
from l2rtui.config import Settings
from l2rtui.domain.preflight import Severity
from l2rtui.errors import L2RError
from tests.fakes.kubernetes_objects import serving
from tests.l2rtui.backends.kubernetes.actions.verbs import VERBS, FullServer, Program

RESEARCHER = (RoleScope.VIEWER, RoleScope.RESEARCHER)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(destroying, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(destroying, "_ROUND_SECONDS", (0.01,))
    monkeypatch.setattr(volume_claims, "_BIND_SECONDS", 0.0)


def granted(*parts):
    """Return the calls that Roles permit."""
    return {(*row.right, row.part is not RoleScope.CLUSTER) for row in rows_of(*parts)}


@asynccontextmanager
async def program_with(tmp_path, rights, namespaces=("ml",)):
    """A program whose user has exactly these rights; None allows everything."""
    async with serving(FullServer()) as server:
        server.granted = rights
        config = {
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
            "clusters": [{"name": "c", "cluster": {"server": server.base}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        backend = KubernetesBackend(Settings(namespaces=namespaces, image="i:1"), str(path))
        (await backend.api()).server_version = (1, 34)
        try:
            yield Program(server, backend)
        finally:
            await backend.close()


async def calls_of(verb, tmp_path, rights):
    async with program_with(tmp_path, rights) as program:
        await VERBS[verb](program)
        asked = {review[:3] for review in program.server.reviews}
        assert asked <= {row.right for row in TABLE}, "what the program asks for is in the table"
        return program.server.calls


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_needs_the_rights_of_its_rows_and_no_others(verb, tmp_path):
    rows = [row for row in TABLE if verb in row.uses and not row.reason]
    expected = {row.right for row in rows}
    calls = {call[:3] for rights in (None, granted(*RESEARCHER)) for call in await calls_of(verb, tmp_path, rights)}
    of_lists = {row.right for row in TABLE if "view" in row.uses} if verb != "view" else set()
    assert calls - expected - of_lists == set(), "calls without a row"
    assert expected - calls == set(), "rows that no call needs"


FEW = ("view", "launch", "scale", "kill", "destroy")


@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=[] if verb in FEW else [pytest.mark.slow]) for verb in VERBS]
)
async def test_the_roles_are_enough_for_every_verb_in_all_namespaces(verb, tmp_path):
    """Those in one namespace are what the test above runs with."""
    async with program_with(tmp_path, granted(*RESEARCHER, RoleScope.CLUSTER), ()) as program:
        await VERBS[verb](program)


@pytest.mark.parametrize("verb", ["view", "describe", "events", "logs", "leaks"])
async def test_the_role_of_a_viewer_is_enough_to_see(verb, tmp_path):
    async with program_with(tmp_path, granted(RoleScope.VIEWER)) as program:
        await VERBS[verb](program)
        assert {call[0] for call in program.server.calls} <= {"get", "list", "watch"}


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [((RoleScope.VIEWER,), "you may see runs and their logs"), (RESEARCHER, "all that runs need in ml")],
)
async def test_a_check_warns_of_no_right_that_the_role_is_not_to_give(parts, sentence, tmp_path):
    async with program_with(tmp_path, granted(*parts, RoleScope.CLUSTER)) as program:
        findings = await program.backend.doctor()
    about = [finding for finding in findings if "rights" in finding.subject]
    assert [finding.severity for finding in about] == [Severity.OK]
    assert sentence in about[0].sentence
    assert ("l2rtui-researcher" in about[0].hint) is (parts != RESEARCHER)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("verb", VERBS)
async def test_a_right_that_is_taken_away_is_named_or_the_verb_does_without_it(verb, tmp_path):
    everything = granted(*RESEARCHER, RoleScope.CLUSTER)
    rows = [row for row in rows_of(*RESEARCHER) if verb in row.uses and not row.reason]
    for right in dict.fromkeys(row.right for row in rows):
        # Cluster-wide lists cover those of the namespace, and the tests of the watch refuse watches.
        if (*right, False) in everything or right.verb == "watch":
            continue
        async with program_with(tmp_path, everything - {(*right, True)}) as program:
            error = ""
            try:
                await VERBS[verb](program)
            except L2RError as refusal:
                error = str(refusal)
            if any(row.without for row in rows if row.right == right):
                assert error == "", f"{verb} can do without the right to {right}"
                continue
            text = "\n".join([error, *program.sentences])
            assert right.verb in text, f"{verb} without the right to {right} says: {text}"
            assert right.resource in text, f"{verb} without the right to {right} says: {text}"


@pytest.mark.parametrize(
    ("missing", "role"),
    [
        (("list", "pods", ""), "Role l2rtui-viewer"),
        (("get", "pods/log", ""), "Role l2rtui-viewer"),
        (("create", "jobs", "batch"), "Role l2rtui-researcher"),
        (("get", "pods/exec", ""), "Role l2rtui-researcher"),
        (("list", "nodes", ""), "ClusterRole l2rtui-ledger"),
    ],
)
def test_the_least_role_that_has_a_missing_right_is_named(missing, role):
    assert advice(MissingRight(*missing)) == f"Ask an administrator for the {role} in manifests/rbac.yaml."


@pytest.mark.parametrize("missing", [("list", "secrets", ""), ("list", "widgets", "example.org")])
def test_a_right_that_no_role_has_names_none(missing):
    assert "Role" not in advice(MissingRight(*missing))


async def test_the_manifest_is_what_the_table_says():
    text = (Path(__file__).parents[5] / "manifests" / "rbac.yaml").read_text()
    assert text == rbac.manifest(), "`make rbac` writes it anew"


@pytest.mark.parametrize(("setting", "namespace"), [("", "l2rtui-claims"), ("gpu-claims", "gpu-claims")])
def test_the_rights_to_claim_are_in_the_namespace_that_the_settings_name(setting, namespace):
    made, role, binding = yaml.safe_load_all(rbac.claims_manifest("ann", namespace=setting))
    assert made["metadata"]["name"] == namespace
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == namespace
    assert binding["subjects"][0]["name"] == "ann"
