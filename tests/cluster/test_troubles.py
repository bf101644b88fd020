"""What header, rows, JSON, a wait and the history say 20 s after somebody or something has broken a run."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import threading
import time
from types import SimpleNamespace

import pytest

from l2rtui.backends.kubernetes.api.client import MERGE_PATCH, connect
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.backends.kubernetes.state.cluster_watch import ClusterWatch
from l2rtui.config import Settings, user_name
from l2rtui.domain.runstatus import NO_REPORTS, learning_state, run_status
from l2rtui.services.monitor import Monitor
from l2rtui.services.run_waiting import Goal, RunWaiter, WaitCondition, WaitOutcome
from l2rtui.ui.state.connection_status import ConnectionStatus, right_of
from l2rtui.ui.state.notices import RunNotifications
from tests.cluster import roles
from tests.cluster.conftest import kubectl, kubectl_json
from tests.cluster.faults import proxied

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
SAID_SECONDS = 20.0
SPEC = """
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: pair}
spec:
  replicas: 2
  selector: {matchLabels: {tier: p}}
  template:
    metadata: {labels: {tier: p}}
    spec:
      containers:
        - name: c
          image: registry.example/x:1
          command: [sleep, "3600"]
          env: [{name: NVIDIA_VISIBLE_DEVICES, value: "0"}, {name: CUDA_VISIBLE_DEVICES, value: "0"}]
"""
ON = os.environ.get("L2R_TEST_NODE", "phortx3")
SLOTS = f"{ON}/0-7"


@pytest.fixture
def run(cli, tmp_path):
    """A run of two pods on one GPU of a stand-in node."""
    path = tmp_path / "pair.yaml"
    path.write_text(SPEC)
    # The history is that of the tests' own process: `complete_ended` is what an app does there.
    cli.run("launch", "-f", str(path), "--on", SLOTS, "--yes", "--wait")
    return "pair"


class Screen:
    """What the app would show: the newest snapshot, its header and its notices."""

    def __init__(self, kubeconfig, namespace):
        self.backend = KubernetesBackend(Settings(namespaces=(namespace,)), kubeconfig)
        self.monitor = Monitor(self.backend)
        self.notices, self.shown = [], None
        self._notifications = RunNotifications(user_name())

    @property
    def snapshot(self):
        return self.monitor.snapshot

    @property
    def header(self):
        silent = self.snapshot.silent_since
        health = ConnectionStatus(
            is_connected=True,
            error=self.monitor.error,
            unanswered_seconds=time.time() - silent if silent is not None else 0.0,
        )
        return "".join(span.text for span in right_of(self.snapshot.problems, health))

    @property
    def row(self):
        """The run's status and learning; None for a run that is not there."""
        view = self.snapshot.run_named("pair")
        if view is None:
            return None
        pods = self.snapshot.pods_of("pair")
        learning = learning_state(view, pods, NO_REPORTS, time.time())
        return SimpleNamespace(status=run_status(view, pods), learning=learning, pods=pods)

    async def follow(self):
        async for snapshot in self.monitor.updates():
            self.notices += [*self._notifications.update(snapshot), *self._notifications.vanish(snapshot)]

    async def within(self, what, is_so, seconds=SAID_SECONDS):
        """Wait until the screen says it; the seconds that it took."""
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_so():
                    await asyncio.sleep(0.1)
                took = time.monotonic() - began
                print(f"{what}: {took:.1f} s; header {self.header!r}; row {self.row and self.row.status}")
                return took
        pytest.fail(f"{what}: header {self.header!r}, row {self.row}, notices {self.notices}")


@contextlib.asynccontextmanager
async def screen_of(kubeconfig, namespace):
    screen = Screen(kubeconfig, namespace)
    tasks = [asyncio.ensure_future(screen.monitor.run()), asyncio.ensure_future(screen.follow())]
    try:
        await screen.within("it runs", lambda: screen.row is not None and screen.row.status.word == "Running", 30)
        yield screen
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await screen.backend.close()


async def said(cli, **env):
    """What three verbs say: state in `runs -o json`, exit code of `wait`, state in `history`; empty for no row.

    The first has the exit code in place of a state where the list itself fails.
    """
    done = await asyncio.to_thread(cli.call, "runs", "-o", "json", **env)
    states = [item["state"] for item in json.loads(done.stdout or "[]") if item["run"] == "pair"]
    state = done.returncode or "".join(states)
    waiting = await asyncio.to_thread(cli.call, "wait", "pair", "--for=running", "--timeout", "20s", **env)
    entries = json.loads((await asyncio.to_thread(cli.call, "history", "-o", "json", **env)).stdout)
    print(f"runs: {state} {done.stderr!r}; wait: {waiting.returncode} {waiting.stderr!r}; history: {entries}")
    return state, waiting.returncode, "".join(item["state"] for item in entries if item["run"] == "pair")


async def lost_in_history(cli):
    """Wait until the history has the end of the run: it believes that a run of the last 30 s is being launched."""
    async with asyncio.timeout(60):
        while [item["state"] for item in await asyncio.to_thread(cli.json, "history")] != ["lost"]:
            await asyncio.sleep(1)


async def waited(screen, condition):
    """Verdict of a wait that begins now; it gives a young run the time of a launch to make its controllers."""
    view = screen.snapshot.run_named("pair")
    waiter = RunWaiter(screen.backend, [view], Goal(condition), settle_seconds=0.0)
    async with asyncio.timeout(60), contextlib.aclosing(waiter.verdicts()) as verdicts:
        async for verdict in verdicts:
            if verdict[view.uid].outcome is not WaitOutcome.WAITING:
                return verdict[view.uid]
    raise AssertionError


async def test_a_controller_that_somebody_deleted_is_said_and_a_wait_ends(cli, run, kubeconfig, namespace):
    async with screen_of(kubeconfig, namespace) as screen:
        kubectl("-n", namespace, "delete", "rs", "pair-w")
        await screen.within("lost", lambda: screen.row.status.word == "Lost")
        assert "its ReplicaSet pair-w was deleted" in screen.row.status.sentence
        assert screen.row.learning.state == "failed"
        assert (await waited(screen, WaitCondition.RUNNING)).outcome is WaitOutcome.OUT_OF_REACH
    done = await asyncio.to_thread(cli.call, "wait", "pair", "--for=running", "--timeout", "60s")
    assert done.returncode == 5, done.stderr
    assert await said(cli) == ("Lost", 5, "running")
    cli.run("scale", "pair/w", "2")
    slots = {slot for pod in cli.json("pods") if pod["run"] == "pair" for slot in [pod["node"]]}
    assert slots == {ON}, "it comes back where the plan had it"


async def test_a_set_that_kubectl_scaled_is_said_and_scale_puts_it_right(cli, run, kubeconfig, namespace):
    async with screen_of(kubeconfig, namespace) as screen:
        for replicas in ("0", "4"):
            kubectl("-n", namespace, "scale", "rs", "pair-w", f"--replicas={replicas}")
            await screen.within("scaled", lambda: screen.row.status.word == "Scaled")
            assert f"changed its set w to {replicas} of 2 pods" in screen.row.status.sentence
            await asyncio.to_thread(cli.run, "scale", "pair/w", "2", "--yes")
            await screen.within("right", lambda: screen.row.status.sentence == "2/2 running")
    assert len(kubectl_json("-n", namespace, "get", "pods")["items"]) == 2


async def test_a_pod_that_somebody_set_apart_is_a_leak_and_goes_with_its_run(cli, run, namespace):
    name = kubectl_json("-n", namespace, "get", "pods")["items"][0]["metadata"]["name"]
    kubectl("-n", namespace, "label", "pod", name, "l2rtui.io/run-id-")
    assert name in cli.run("leaks", code=4)
    cli.run("destroy", "pair", "--yes")
    assert kubectl_json("-n", namespace, "get", "pods")["items"] == []


async def test_a_run_whose_config_map_was_deleted_leaves_a_notice_and_an_entry(cli, run, kubeconfig, namespace):
    async with screen_of(kubeconfig, namespace) as screen:
        kubectl("-n", namespace, "delete", "cm", "l2r-pair")
        await screen.within("gone", lambda: screen.row is None and screen.notices)
        assert screen.notices == ["pair was deleted without l2rtui: its ConfigMap was deleted"]
    await lost_in_history(cli)
    assert await said(cli) == ("", 1, "lost")


async def test_a_namespace_that_was_deleted_is_said(cli, run, kubeconfig, namespace):
    async with screen_of(kubeconfig, namespace) as screen:
        kubectl("delete", "namespace", namespace, "--wait=false")
        await screen.within("named", lambda: f"namespace {namespace}" in screen.header)
        await screen.within("noticed", lambda: bool(screen.notices), 60)
        assert screen.notices[0].startswith("pair was deleted without l2rtui")
    done = await asyncio.to_thread(cli.call, "runs")
    assert f"namespace {namespace}" in done.stderr
    await lost_in_history(cli)
    assert await said(cli) == ("", 1, "lost")


async def test_a_token_that_was_revoked_is_a_state_of_the_header(cli, run, kubeconfig, namespace, tmp_path):
    account = roles.service_account(namespace, tmp_path)
    async with screen_of(account, namespace) as screen:
        kubectl("-n", namespace, "delete", "serviceaccount", roles.ACCOUNT)
        # The server itself takes a token for good for 10 s after it has checked it.
        await screen.within("refused", lambda: "login refused since" in screen.header, SAID_SECONDS + 10)
        for reflector in _reflectors(screen):
            reflector.reopen()
        await screen.within("unseen", lambda: screen.row.status.word in ("Unseen", "Unknown"), 30)
        assert "login is refused" in screen.row.status.sentence
        assert screen.row.learning.state == "unknown"
        assert {pod.reason for pod in screen.row.pods} == {"Unseen"}
    assert await said(cli, KUBECONFIG=account) == (1, 1, "running")


def _reflectors(screen):
    """The open watches, which the server would end after some minutes."""
    watches = [item for item in gc.get_objects() if isinstance(item, ClusterWatch)]
    return [reflector for watch in watches for reflector in watch._reflectors]


async def test_pods_of_a_silent_node_are_unknown(cli, run, kubeconfig, namespace):
    async with screen_of(kubeconfig, namespace) as screen:
        with silent_node():
            await screen.within("unknown", lambda: screen.row.status.word == "Unknown")
            assert f"its node {ON} does not answer" in screen.row.status.sentence
            assert screen.row.learning.state == "unknown"
            assert await said(cli) == ("Unknown", 124, "running")
        await screen.within("back", lambda: screen.row.status.word == "Running")


@contextlib.contextmanager
def silent_node():
    """Let a stand-in node say what a node's life-cycle controller says of one that is silent."""
    status(ON, "Unknown")
    try:
        yield
    finally:
        status(ON, "True")


def status(node, ready):
    conditions = kubectl_json("get", "node", node)["status"]["conditions"]
    others = [item for item in conditions if item["type"] != "Ready"]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    changed = {
        "type": "Ready",
        "status": ready,
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting",
    }
    changed |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
    _patch_status(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [*others, changed]}})


def _patch_status(path, body):
    """Patch a subresource, which kubectl 1.20 cannot."""

    async def patch():
        api = await connect()
        try:
            await api.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        finally:
            await api.close()

    # In a loop of its own: the test's has a watch that must go on.
    thread = threading.Thread(target=lambda: asyncio.run(patch()))
    thread.start()
    thread.join()


async def test_an_evicted_pod_with_a_successor_does_not_degrade_its_run(cli, run, kubeconfig, namespace):
    async with screen_of(kubeconfig, namespace) as screen:
        name = screen.row.pods[0].name
        body = {
            "status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory"}
        }
        _patch_status(f"/api/v1/namespaces/{namespace}/pods/{name}/status", body)
        await screen.within("three pods", lambda: len(screen.row.pods) == 3)
        await screen.within("running", lambda: screen.row.status.word == "Running")
        assert {pod.reason for pod in screen.row.pods} >= {"Evicted"}
        assert await said(cli) == ("Running", 0, "running")


async def test_a_quota_that_refuses_a_pod_is_said(cli, run, kubeconfig, namespace):
    kubectl("-n", namespace, "create", "quota", "q", "--hard=pods=2")
    async with screen_of(kubeconfig, namespace) as screen:
        await asyncio.to_thread(cli.run, "scale", "pair/w", "3")
        await screen.within("refused", lambda: screen.row.status.word == "FailedCreate")
        assert "allows pods=2" in screen.row.status.sentence
        assert await said(cli) == ("FailedCreate", 124, "running")


async def test_a_frozen_server_is_said(cli, run, kubeconfig, namespace, tmp_path):
    async with proxied(kubeconfig, tmp_path) as (proxy, config), screen_of(config, namespace) as screen:
        proxy.freeze()
        took = await screen.within("no answer", lambda: "no answer for" in screen.header)
        assert took < 15
        assert screen.row.status.word == "Running", "what was seen stays; the header says its age"
        assert await said(cli, KUBECONFIG=config) == (1, 1, "running")
        proxy.thaw()
        await screen.within("live", lambda: "live" in screen.header, 30)
