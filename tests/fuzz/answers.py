"""Decoders of files and answers of other programs: registries, plugins, Engines, simulators, settings, journals."""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import safetensors.numpy

from l2rtui import config
from l2rtui.backends.common.train_settings import settings_findings
from l2rtui.backends.docker import describe as docker_describe
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import destroy, run_object
from l2rtui.backends.kubernetes.api import oidc
from l2rtui.backends.kubernetes.api.credentials import ExecSource
from l2rtui.backends.kubernetes.api.errors import RequestInfo, response_error
from l2rtui.backends.kubernetes.api.kubeconfig import ExecPlugin, Oidc
from l2rtui.backends.kubernetes.api.structs import NodeStruct, ObjectMeta
from l2rtui.backends.kubernetes.state import node_devices, views
from l2rtui.backends.local import outside
from l2rtui.backends.local.paths import StateFolder
from l2rtui.backends.local.supervision import log_file, supervised_pod
from l2rtui.backends.local.supervision.log_file import LogWriter, final_lines
from l2rtui.cloud.aws import eks_login as aws_kubeconfig
from l2rtui.cloud.aws import stacks
from l2rtui.cloud.images import credentials
from l2rtui.cloud.images.registry import Registry
from l2rtui.domain.history import HistoryEntry, HistoryRecord, LaunchFacts
from l2rtui.domain.imageref import parse_image
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.errors import L2RError
from l2rtui.services import filters, owners, simulators
from l2rtui.services.history import journal
from l2rtui.services.history.store import HistoryStore
from l2rtui.services.spec import import_kubernetes
from l2rtui.ui.home import pane_sizes
from l2rtui.ui.widgets import log_ring
from l2rtui.ui.widgets.record_table import RecordTable
from runtime.base import addresses, bounded_json, docker_client
from runtime.base.checkpoint_manifest import encode_manifest
from runtime.base.docker_client import EngineError
from runtime.base.errors import SetupError
from runtime.jobs.parameter_server.rank_context import PsSettings
from runtime.jobs.steps.run import StepMarkers
from runtime.jobs.supervise.supervisor import PodSupervisor
from runtime.rendezvous.shared_values import EtcdValues
from runtime.rl.checkpoints import counters
from runtime.rl.checkpoints.checkpoint_files import Checkpoints
from runtime.rl.datasets.episode_files import DatasetFacts, Episode, JournalFile, JournalWriter
from runtime.rl.roles.run_watch import WatchState
from runtime.rl.spaces import ActionSpace, ObsSpace
from runtime.tracks import maps
from tests.fuzz.target import Target, file_of, folder


def _texts(*documents: object) -> Callable[[], list[bytes]]:
    return lambda: [
        document if isinstance(document, bytes) else json.dumps(document).encode() for document in documents
    ]


@contextlib.contextmanager
def _variables(**variables: str) -> Iterator[None]:
    with patch.dict(os.environ, variables):
        yield


def _in_state(name: str, read: Callable[[], object]) -> Callable[[bytes], None]:
    """Return a target that reads a file of the user's state folder."""

    def run(data: bytes) -> None:
        path = folder() / "state" / "l2rtui" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        with _variables(XDG_STATE_HOME=str(folder() / "state")):
            read()

    return run


def _finished(coroutine: Coroutine[Any, Any, object]) -> object:
    """Run a coroutine that awaits nothing that is not ready."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


# --- files of this user -----------------------------------------------------------------------------------------
def _read_settings(data: bytes) -> None:
    config.settings_of_file({"L2RTUI_CONFIG": file_of("config.toml", data)})


def _read_history(data: bytes) -> None:
    body = zlib.compress(data) if data[:1] == b"{" else data
    with tempfile.TemporaryDirectory(dir=folder()) as place, HistoryStore(Path(place) / "runs.db") as store:
        store.put([HistoryRecord(HistoryEntry("r", "a" * 32), LaunchFacts())])
        store._connection.execute("UPDATE bodies SET body = ?", (body,))
        store.get("a" * 32)


def _read_log(data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=folder()) as name:
        place = Path(name)
        (place / "0.taken").write_bytes(data)
        LogWriter(place, 0, 1 << 20).close()
        (place / "1.log").write_bytes(data)
        supervised_pod.cause_of(1, final_lines(place / "1.log"), has_oom_kill=False)
        log_file.read_events(place / "1.log")


def _present(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    entry, table = log_ring.LogEntry(1.0, "p", text, len(text)), RecordTable()
    with contextlib.suppress(ValueError):
        record = bounded_json.loads(text)
        if isinstance(record, dict) and isinstance(record.get("l2r"), str):
            table.learn("p", record)
    for mode in log_ring.JsonMode:
        log_ring.present(entry, mode, table)


def _read_logins(data: bytes) -> None:
    (folder() / "config.json").write_bytes(data)
    with _variables(DOCKER_CONFIG=str(folder())):
        credentials.find_login("ghcr.io")
        docker_client.find_endpoint()


def _read_context(data: bytes) -> None:
    name = "4b0a55c2a1f5ac85d7b7b1a7f1bf8e6ac0d1e4a6"
    meta = docker_client.hashlib.sha256(name.encode()).hexdigest()
    path = folder() / "contexts" / "meta" / meta / "meta.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    docker_client.find_endpoint({"DOCKER_CONFIG": str(folder()), "DOCKER_CONTEXT": name})


def _write_clusters(data: bytes) -> None:
    path = Path(file_of("eks-config", data))
    cluster = {"name": "c", "endpoint": "https://h", "certificateAuthority": {"data": "eHg="}}
    aws_kubeconfig.write_entry(path, cluster, "us-west-2")
    path.write_bytes(data)
    aws_kubeconfig.remove_entry(path, "c")


def _edit_tokens(data: bytes) -> None:
    # A kubeconfig that has been read before: the bounds of that reading hold for it.
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(ValueError, oidc.yaml.YAMLError):
        oidc._edited(text, Oidc(id_token="i", refresh_token="r", user="w"))


# --- answers ----------------------------------------------------------------------------------------------------
def _read_registry(data: bytes) -> None:
    header, _, body = data.partition(b"\n")

    async def fetch(method: str, url: str, headers: object, login: str) -> tuple[int, dict[str, str], bytes]:
        text = header.decode("latin-1")
        status = 200 if login or "token" in url else 401
        return status, {"www-authenticate": text, "link": text}, body

    registry = Registry("h", credentials.Login("u", "p"))
    with patch.object(registry, "_fetch", fetch):
        _finished(registry.tags(parse_image("h/x:1")))


def _read_engine(data: bytes) -> None:
    class Engine:
        async def stream(self, path: str, **query: object) -> Any:
            yield data

    with contextlib.suppress(L2RError, EngineError):
        _finished(docker_describe.events(Engine(), None))  # type: ignore[arg-type]
    with contextlib.suppress(ValueError):
        list(docker_client.decode_messages([data[:7], data[7:]]))
    docker_client._refusal(500, "GET", "/", data)

    class Local(outside._Engine):
        def _request(self, method: str, path: str) -> tuple[int, bytes]:
            return 200, data

    with patch.object(outside._Engine, "find", lambda: Local("")):
        outside.end_containers(StateFolder(folder()).run("r"), "u", 0.0)


def _read_plugin(data: bytes) -> None:
    source = ExecSource.__new__(ExecSource)
    source._plugin = ExecPlugin("x", install_hint="Install it.")

    async def run(name: str) -> tuple[int, bytes, bytes]:
        return 0, data, b""

    with patch.object(source, "_run", run):
        _finished(source.fetch())


def _read_refusal(data: bytes) -> None:
    response_error(RequestInfo("GET", "/api/v1/pods"), 403, data, data[:20].decode("latin-1"))


def _read_map(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    document = {"data": {labels.SPEC_KEY: text, labels.PLAN_KEY: text}, "metadata": {"name": "n"}}
    with contextlib.suppress(L2RError):
        run_object.decode_spec(document)
    run_object.planned_places(document)
    destroy.results_location(text)
    meta = ObjectMeta(annotations={labels.SEATS: text, labels.HAMI_NODE: text})
    views.read_planned_replicas(meta)
    node_devices.read_devices(NodeStruct(metadata=meta), node_devices.SlotRule())
    learner = SetSpec("learner", Role.LEARNER, ("l2r-runtime", "learner"))
    settings_findings(RunSpec(Kind.LEARNER_WORKERS, "r", "r", (learner,), train=text))


def _read_template(data: bytes) -> None:
    class Cloud:
        async def call(self, *_: str, **__: str) -> dict[str, Any]:
            return {"TemplateBody": data.decode("utf-8", "replace")}

    _finished(stacks._template_of(Cloud(), "c"))  # type: ignore[arg-type]


def _import(data: bytes) -> None:
    import_kubernetes.load_objects([("x.yaml", data)])


def _ask_simulators(data: bytes) -> None:
    async def answer(*_: object) -> str:
        return data.decode("utf-8", "replace")

    with patch.object(simulators, "_run_simulators_command", answer):
        _finished(simulators.status(None, SimpleNamespace(name="p")))  # type: ignore[arg-type]


# --- processes of a run -----------------------------------------------------------------------------------------
def _read_environment(data: bytes) -> None:
    text = data.decode("utf-8", "replace").replace("\0", "")
    for read in (
        lambda: addresses.from_environment({"L2R_PEERS": text}),
        lambda: PsSettings.from_environment({"L2R_CONFIG": text}),
    ):
        with contextlib.suppress(SetupError):
            read()


def _read_etcd(data: bytes) -> None:
    values = EtcdValues(folder())
    with patch.object(values, "_request", lambda *_: (200, data)):
        values.read("k")


def _read_run_files(data: bytes) -> None:
    place = folder() / "data"
    place.mkdir(exist_ok=True)
    for name in ("a.failed", counters.JOURNAL, "watch.json"):
        (place / name).write_bytes(data)
    StepMarkers(place, "r").has_failed("a")
    counters.read_journal(place)
    WatchState.read(place, "r")


def _kill_workers(data: bytes) -> None:
    worker = SimpleNamespace(number=0, pid=1, was_killed=False)
    supervisor = SimpleNamespace(_workers=[worker], _is_stopping=False, _end=lambda *_: None)
    with contextlib.suppress(ValueError):
        PodSupervisor._kill(supervisor, bounded_json.loads(data))  # type: ignore[arg-type]


def _read_dataset(data: bytes) -> None:
    for _ in JournalFile(Path(file_of("episodes.journal", data))).read():
        pass


def _read_checkpoint(data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=folder()) as place:
        path = Path(place) / "ckpt-1-1"
        path.with_suffix(".safetensors").write_bytes(data)
        path.with_suffix(".json").write_bytes(encode_manifest("ckpt-1-1", 1, 1, data, {}))
        Checkpoints(Path(place), 3).load()


def _read_track(data: bytes) -> None:
    maps.load_map(file_of("track.json", data))


def _dataset() -> list[bytes]:
    path = folder() / "seed.journal"
    facts = DatasetFacts("CartPole-v1", ObsSpace(4), ActionSpace(1, (2,)))
    writer = JournalWriter(path, facts)
    obs, action, reward = np.ones((3, 4), np.float32), np.zeros((2, 1), np.int32), np.ones(2, np.float32)
    writer.append(Episode(obs, action, reward, terminated=True))
    data = path.read_bytes()
    writer.remove()
    return [data]


_CENTRE = [[100 * math.cos(angle / 8), 100 * math.sin(angle / 8)] for angle in range(50)]
_TRACK = {
    "Centre": _CENTRE,
    "Inside": [[0.9 * x, 0.9 * y] for x, y in _CENTRE],
    "Outside": [[1.1 * x, 1.1 * y] for x, y in _CENTRE],
    "ReferencePoint": [51.0, 1.0, 0.0],
}

ANSWERS = (
    Target(
        "configuration",
        _texts(b'backend = "local"\nslots_per_core = 2\n[context.a]\ngrace_seconds = 3\n'),
        _read_settings,
        (L2RError,),
    ),
    Target("screen state", _texts({"theme": "x"}), _in_state("screen.json", pane_sizes.read_screen_state)),
    Target("saved filters", _texts({"a": "pods x"}), _in_state("filters.json", filters.saved_filters)),
    Target("looks at GPUs", _texts({"p": {"time": 1.0, "spans": []}}), _in_state("gpu-idle.json", owners._read)),
    Target(
        "journal of verbs",
        _texts({"time": 1.0, "verb": "kill", "target": "p", "outcome": "done"}),
        _in_state("journal.jsonl", lambda: list(journal.entries())),
    ),
    Target(
        "bodies of the history",
        lambda: [b'{"spec": "{}"}', zlib.compress(b'{"spec": "{}"}')],
        _read_history,
        (L2RError,),
    ),
    Target(
        "logs of processes",
        lambda: [
            struct.pack("<QQ", 1, 0) + b"text\n",
            b"2026-11-20T12:00:00.123456Z text\n",
            b'{"time": 1.0, "pod": "p", "reason": "Started"}\n',
        ],
        _read_log,
    ),
    Target(
        "records of a log pane",
        _texts({"l2r": "learner", "updates": 3, "return": 1.5, "loss": {"actor": 1.0}}),
        _present,
    ),
    Target(
        "logins of Docker",
        _texts({"auths": {"ghcr.io": {"auth": "dTpw"}}, "currentContext": "default"}),
        _read_logins,
        (L2RError, EngineError),
    ),
    Target(
        "contexts of Docker",
        _texts({"Endpoints": {"docker": {"Host": "unix:///x", "SkipTLSVerify": False}}}),
        _read_context,
        (EngineError,),
    ),
    Target(
        "kubeconfigs of EKS",
        _texts(b"clusters: []\nusers:\n- {name: c, user: {exec: {command: l2rtui, args: [cluster, token]}}}\n"),
        _write_clusters,
        (L2RError,),
    ),
    Target(
        "tokens in kubeconfigs",
        _texts(b"users:\n- {name: w, user: {auth-provider: {config: {id-token: a, refresh-token: b}}}}\n"),
        _edit_tokens,
    ),
    Target(
        "registries",
        lambda: [
            b'Bearer realm="https://h/token",service="s"\n{"token": "t", "tags": ["1"]}',
            b'<https://h/v2/x?n=1>; rel="next"\n{"tags": ["1"]}',
        ],
        _read_registry,
        (L2RError,),
    ),
    Target(
        "answers of Docker",
        _texts(
            {"Action": "die", "timeNano": 1, "Actor": {"Attributes": {"exitCode": "1"}}},
            [{"Id": "1", "Created": 9e9, "Image": "i", "Names": ["/a"], "Labels": {}}],
            {"Config": {"Env": []}},
            {"message": "no"},
        ),
        _read_engine,
    ),
    Target(
        "credential plugins",
        _texts({"status": {"token": "t", "expirationTimestamp": "2026-11-20T12:00:00Z"}}),
        _read_plugin,
        (L2RError,),
    ),
    Target(
        "refusals of an API server",
        _texts(
            {
                "reason": "Forbidden",
                "message": 'pods is forbidden: User "u" cannot list resource "pods" in the namespace "n"',
            }
        ),
        _read_refusal,
    ),
    Target(
        "objects of a run",
        _texts(
            [[0, [1, 2]]],
            [{"pod": "p", "slots": ["n/0.1"]}],
            [{"id": "GPU-1", "index": 0}],
            {"sets": [{"pod": {"mounts": [{"claim": "c", "path": "/l2r"}]}}]},
            {"algorithm": "sac"},
        ),
        _read_map,
    ),
    Target("templates of CloudFormation", _texts({"Resources": {}}), _read_template, (L2RError, ValueError)),
    Target(
        "imported objects",
        _texts(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": "j"},
                "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i", "command": ["x"]}]}}},
            }
        ),
        _import,
        (L2RError,),
    ),
    Target(
        "states of simulators",
        _texts({"simulators": [{"kind": "k", "state": "ready", "restarts": 1, "tail": ["x"]}]}),
        _ask_simulators,
        (L2RError,),
    ),
    Target(
        "variables of a process",
        _texts({"ps": ["tcp://127.0.0.1:4000"]}, {"batch_size": 4, "learning_rate": 0.1}),
        _read_environment,
    ),
    Target("etcd", _texts({"node": {"value": "x"}}), _read_etcd, (OSError,)),
    Target(
        "files of a run",
        _texts(
            {"run_id": "r", "used": {}, "best_return": 1.0, "is_running": True, "alerts": {"a": 1.0}},
            {"epoch": 1, "env_steps": 2, "updates": 1, "lost_updates": 0, "policy_version": 1},
        ),
        _read_run_files,
    ),
    Target("requests to a pod", _texts({"kill": [0], "grace": 1.0}), _kill_workers),
    Target("datasets", _dataset, _read_dataset, (ValueError,)),
    Target("checkpoint files", lambda: [safetensors.numpy.save({"a": np.ones(3, np.float32)})], _read_checkpoint),
    Target("tracks", _texts(_TRACK), _read_track, (maps.MapError,)),
)
