"""Folders of the node: new ones are given to the pod's user, everything else stays unchanged."""

from __future__ import annotations

import subprocess

import pytest

from l2rtui.backends.kubernetes.actions import capacity_checks
from l2rtui.backends.kubernetes.manifests import pod_parts, render
from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts
from l2rtui.domain.containers import Mount, PodSettings, Security
from l2rtui.domain.ledger import build_ledger
from l2rtui.domain.placement import place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.workload import Kind, Program, Role, RunSpec, SetSpec

LOGS = Mount("/logs", host_path="/mnt/logs")


def planned(program=None, **settings):
    part = SetSpec("w", Role.WORKER, ("run",), slots=0, pod=PodSettings(**settings), program=program)
    spec = RunSpec(Kind.JOB, "r", "r", (part,), image="i")
    return plan_launch((spec,), place((spec,), build_ledger([], [])), {}, owner="anna", uids=["1" * 32])


def inits(plan):
    objects = render.run_objects(plan.runs[0], namespace="ml", token="t", server=ServerFacts())
    return objects[-1]["spec"]["template"]["spec"].get("initContainers", [])


def test_a_folder_of_the_node_is_prepared_before_anything_else():
    url = Program("run.py", url="https://example.com/run.py")
    prepare, fetch = inits(
        planned(url, mounts=(LOGS, Mount("/data", claim="data")), user=1234, pull_policy="Never")
    )
    assert (prepare["name"], fetch["name"]) == ("prepare", "fetch")
    assert prepare["command"][-2:] == ["1234", "/logs"]
    assert [mount["mountPath"] for mount in prepare["volumeMounts"]] == ["/logs"]
    assert prepare["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert prepare["imagePullPolicy"] == "Never"


@pytest.mark.parametrize(
    "settings",
    [
        {"mounts": (Mount("/data", claim="data"), Mount("/scratch"))},
        {"mounts": (Mount("/logs", host_path="/mnt/logs", read_only=True),)},
        {"mounts": (LOGS,), "security": Security.BASELINE},
    ],
)
def test_no_container_of_root_where_nothing_needs_it(settings):
    plan = planned(**settings)
    assert inits(plan) == []
    assert not list(capacity_checks.explain_host_folders(plan))


def test_the_plan_says_what_is_done():
    (finding,) = capacity_checks.explain_host_folders(planned(mounts=(LOGS,)))
    assert "where /mnt/logs is new or empty on a node" in finding.sentence
    assert "gives it to user 1000" in finding.sentence


@pytest.mark.process
def test_the_script_leaves_what_is_not_new(tmp_path, monkeypatch):
    # ``stat`` and ``chown`` of the test replace those of a node whose folders belong to root.
    tools, changed = tmp_path / "bin", tmp_path / "changed"
    tools.mkdir()
    (tools / "stat").write_text("#!/bin/sh\ncase $3 in *other*) echo 7;; *) echo 0;; esac\n")
    (tools / "chown").write_text(f'#!/bin/sh\necho "$@" >> {changed}\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    for name in ("new", "full", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "socket").touch()
    paths = [str(tmp_path / name) for name in ("new", "full", "other", "socket", "absent")]
    argv = ["/bin/sh", "-c", pod_parts.PREPARING_SCRIPT, "l2r-prepare", "1000", *paths]
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert changed.read_text() == f"1000:1000 {tmp_path / 'new'}\n"
    assert done.stdout == f"{tmp_path / 'new'} is new: it belongs to user 1000 now\n"
