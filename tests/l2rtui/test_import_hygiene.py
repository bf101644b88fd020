"""Costs and dependencies of imports, in fresh interpreters: the command line starts quickly, on any machine."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest
from aiohttp import web

from l2rtui.domain.history import HistoryEntry, HistoryRecord, LaunchFacts, RunOutcome
from l2rtui.services.history.store import HistoryStore
from tests.l2rtui.backends.kubernetes.api_server import Server, serving

pytestmark = pytest.mark.process

HEAVY = ("textual", "rich", "torch", "zmq", "numpy", "kubernetes", "boto3", "docker", "yaml", "psutil", "pynvml")
BLOCK = """
import sys
for name in {names!r}:
    sys.modules[name] = None  # importing it now raises ImportError
"""


def python(code: str, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, check=False)


def imported(code: str) -> list[str]:
    done = python(f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))")
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "module", ["l2rtui", "l2rtui.__main__", "l2rtui.cli", "l2rtui.cli.main", "l2rtui.cli.parser"]
)
def test_the_command_line_imports_nothing_heavy(module):
    loaded = imported(f"import {module}")
    assert not {*HEAVY, "asyncio", "msgspec", "dataclasses"} & set(loaded)


@pytest.mark.parametrize("verb", ["nodes", "slots", "pods", "runs", "leaks", "check"])
def test_verbs_that_look_do_not_pay_for_spec_files_or_the_app(verb):
    loaded = imported(f"from l2rtui.cli.main import main; main(['{verb}', '--backend', 'demo', '-o', 'name'])")
    assert not set(HEAVY) & set(loaded)


@pytest.mark.parametrize("words", [["history"], ["diff", "race-s0", "race-s1"]])
def test_verbs_that_look_back_make_no_backend_where_no_run_is_open(tmp_path, monkeypatch, words):
    for name in ("XDG_STATE_HOME", "HOME", "KUBECONFIG"):
        monkeypatch.setenv(name, str(tmp_path) if name != "KUBECONFIG" else "")
    with HistoryStore() as store:
        for seed, state in enumerate((RunOutcome.DONE, RunOutcome.FAILED)):
            entry = HistoryEntry(f"race-s{seed}", f"{seed:032x}", "race", seed, state, 1e9)
            store.put([HistoryRecord(entry, LaunchFacts())])
    done = python(
        f"from l2rtui.cli.main import main; assert main({words!r}) == 0\n"
        "import json, sys; print(json.dumps(sorted(sys.modules)))"
    )
    assert done.returncode == 0, done.stderr
    *lines, modules = done.stdout.splitlines()
    assert any("race-s1" in line for line in lines)
    loaded = set(json.loads(modules))
    assert not {*HEAVY, "l2rtui.backends.base", "l2rtui.domain.plan", "importlib.metadata"} & loaded


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["launch", "--help"], ["slots", "--help"]])
def test_help_and_version_work_with_everything_else_missing(words):
    names = (*HEAVY, "asyncio", "msgspec")
    done = python(
        f"{BLOCK.format(names=names)}\nfrom l2rtui.__main__ import main\nsys.argv[1:] = {words}\nsys.exit(main())"
    )
    assert done.returncode == 0, done.stderr
    assert "l2rtui" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("verb", "needs"), [("pods", set()), ("nodes", set()), ("slots", set()), ("runs", {"l2rtui.domain.runstatus"})]
)
async def test_lists_of_a_cluster_import_no_session_no_specs_and_nothing_that_acts(tmp_path, verb, needs):
    async def answer(request):
        if request.method == "POST":  # a review: everything is allowed
            return web.json_response({"status": {"allowed": True}})
        pod = {"metadata": {"name": "p", "namespace": "ml"}, "spec": {"containers": []}}
        return web.json_response(
            {"metadata": {"resourceVersion": "1"}, "items": [pod] if request.path.endswith("/pods") else []}
        )

    config = tmp_path / "config"
    command = f"from l2rtui.cli.main import main; main([{verb!r}, '-o', 'name', '--kubeconfig', {str(config)!r}])"
    async with serving(Server(on_request=answer)) as server:
        cluster = {"name": "k", "cluster": {"server": server.base}}
        context = {"name": "c", "context": {"cluster": "k"}}
        config.write_text(json.dumps({"current-context": "c", "contexts": [context], "clusters": [cluster]}))
        code = f"{command}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
        env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
        done = await asyncio.to_thread(python, code, env=env)
    assert done.returncode == 0, done.stderr
    *listed, modules = done.stdout.splitlines()
    assert listed == (["p"] if verb == "pods" else [])
    loaded = set(json.loads(modules))
    assert needs <= loaded
    acting = [f"l2rtui.backends.kubernetes.{room}." for room in ("actions", "manifests", "storage", "streams")]
    unused = ("kubernetes", "aiohttp", "pydantic", "importlib.metadata", "email.", "l2rtui.services.monitor")
    rules = [f"l2rtui.domain.{name}" for name in ("plan", "placement", "preflight", "receipt", "queue")]
    assert [name for name in loaded if name.startswith((*acting, *unused, *rules))] == []
    assert "l2rtui.domain.workload" not in loaded or verb == "runs"


def test_what_the_session_of_the_kubernetes_library_leaves_out_is_whole_for_others(tmp_path):
    code = """
import gc, ssl
load = ssl.SSLContext.set_default_verify_paths
from l2rtui.backends.registry import make_backend
from l2rtui.config import Settings
from l2rtui.backends.kubernetes.api.library_import import import_session, imported_session
counts = []
for _ in range(2):
    make_backend("kubernetes", Settings())
    assert imported_session() is None or counts
    assert import_session().LibrarySession and imported_session()
    counts.append(gc.get_freeze_count())
    rubbish = [[] for _ in range(1000)]  # is not frozen by the second
assert gc.isenabled()
assert counts[0] > 10_000, counts
assert counts[1] <= counts[0], counts
assert ssl.SSLContext.set_default_verify_paths is load
from aiohttp import connector
assert connector._SSL_CONTEXT_VERIFIED.verify_mode is ssl.CERT_REQUIRED  # and it trusts nobody
assert connector._SSL_CONTEXT_VERIFIED.cert_store_stats()["x509_ca"] == 0
assert ssl.create_default_context().cert_store_stats() == ours
import pydantic, dateutil.parser
assert pydantic.SecretStr("s").get_secret_value() == "s" and dateutil.parser.parse("2026-01-02").day == 2
from kubernetes.aio.client.models.v1_pod import V1Pod
assert V1Pod.from_dict({"kind": "Pod"}).kind == "Pod"
"""
    before = "import ssl; ours = ssl.create_default_context().cert_store_stats()"
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path), "KUBECONFIG": ""}
    done = python(f"{before}\n{code}", env=env)
    assert done.returncode == 0, done.stderr


def test_this_machine_needs_nothing_of_kubernetes(tmp_path):
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path), "KUBECONFIG": ""}
    code = BLOCK.format(names=("kubernetes", "aiohttp", "python_socks"))
    verb = "from l2rtui.cli.main import main\nsys.exit(main(['runs', '--backend', 'local', '-o', 'name']))"
    done = python(f"{code}\n{verb}", env=env)
    assert done.returncode == 0, done.stderr


def test_the_app_imports_without_the_runtime_and_the_cloud():
    code = BLOCK.format(names=("torch", "zmq", "boto3", "numpy", "docker", "kubernetes"))
    done = python(f"{code}\nimport l2rtui.ui.app")
    assert done.returncode == 0, done.stderr


def test_the_first_frame_needs_nothing_of_the_cluster():
    loaded = set(imported("import l2rtui.ui.bootstrap, l2rtui.ui.app"))
    assert "l2rtui.ui.home.splash" in loaded
    later = {
        "l2rtui.ui.home.screen",
        "l2rtui.domain.snapshot",
        "l2rtui.backends.base",
        "yaml",
        "msgspec",
        "psutil",
    }
    assert not later & loaded


def test_the_launch_contract_needs_the_standard_library_alone():
    before = set(imported("pass"))
    fresh = {name.partition(".")[0] for name in set(imported("import runtime.base.contract")) - before}
    assert fresh - {"runtime"} <= set(sys.stdlib_module_names)


def test_the_ground_floor_needs_the_standard_library_and_msgspec_alone():
    before = set(imported("pass"))
    code = (
        "import importlib, pkgutil, runtime.base\n"
        "for module in pkgutil.iter_modules(runtime.base.__path__):\n"
        "    importlib.import_module(f'runtime.base.{module.name}')"
    )
    fresh = {name.partition(".")[0] for name in set(imported(code)) - before}
    # msgspec imports typing_extensions if it is installed.
    assert fresh - {"runtime", "msgspec", "typing_extensions"} <= set(sys.stdlib_module_names)


def test_the_domain_needs_the_standard_library_msgspec_and_the_base_of_the_runtime_alone():
    before = set(imported("pass"))
    modules = "change, ledger, node, placement, plan, preflight, quantity, sanitize, snapshot, status, workload"
    fresh = set(imported(f"from l2rtui.domain import {modules}")) - before
    needed = {name.partition(".")[0] for name in fresh} - {"l2rtui", "runtime", "msgspec", "typing_extensions"}
    assert needed <= set(sys.stdlib_module_names)
    # Rules that a run applies itself and that screens show: limits, alerts, trends.
    assert all(name.startswith("runtime.base") for name in fresh if name.startswith("runtime."))


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["launch", "--help"]])
def test_help_and_version_cost_little(words):
    """CPU time of the whole process, interpreter included, compared with an interpreter that does nothing."""

    def cpu_seconds(argv: list[str]) -> float:
        before = os.times()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    nothing = min(cpu_seconds([sys.executable, "-c", ""]) for _ in range(5))
    ours = min(cpu_seconds([sys.executable, "-m", "l2rtui", *words]) for _ in range(5))
    assert ours < max(0.12, 8 * nothing)


def test_the_first_frame_does_not_pay_for_training_settings():
    loaded = imported("import l2rtui.ui.app, l2rtui.services.launcher, l2rtui.services.spec.spec_file")
    assert not {"runtime.base.setting", "runtime.base.methods", "runtime.base.training"} & set(loaded)
