"""Decoders of outside data, each with correct inputs and its allowed exceptions: sentences, or its protocol's
errors.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from l2rtui.backends.common.log_merge import LineSplitter
from l2rtui.backends.docker.logs import LogFrameDecoder
from l2rtui.backends.kubernetes.api import kubeconfig
from l2rtui.backends.kubernetes.api.decode import (
    UNDECODABLE,
    Decoder,
    LineBuffer,
    ListPage,
    UndecodedObject,
    Upsert,
)
from l2rtui.backends.kubernetes.api.structs import (
    ConfigMapStruct,
    ControllerStruct,
    EventStruct,
    NodeMetricsStruct,
    NodeStruct,
    PodStruct,
)
from l2rtui.backends.kubernetes.state import dcgm
from l2rtui.backends.kubernetes.state.joiner import Joiner
from l2rtui.backends.kubernetes.state.node_devices import SlotRule
from l2rtui.backends.kubernetes.storage import volume_files
from l2rtui.backends.kubernetes.streams import channels
from l2rtui.backends.kubernetes.streams.logs import StampParser
from l2rtui.cloud.aws.cluster_spec import load_cluster
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError
from l2rtui.services import pod_records
from l2rtui.services.metrics import Series
from l2rtui.services.spec import spec_file
from runtime.base.addresses import EndpointError, parse
from runtime.base.checkpoint_manifest import ManifestError, decode_manifest, encode_manifest
from runtime.base.docker_client import take_frames
from runtime.base.errors import FailedError
from runtime.base.metrics import parse_record
from runtime.base.signals import Stop
from runtime.exchange.inference.wire import (
    NoQuestionError,
    Shapes,
    encode_answer,
    encode_question,
    proof_of,
    read_answer,
    read_question,
)
from runtime.exchange.protocol import framing, messages
from runtime.jobs.fetch.unpack import unpack
from runtime.rendezvous.round_state import RendezvousNode, RoundState, StateError, decode_state, joined
from runtime.rendezvous.shared_values import MemoryValues, answer
from runtime.sim.wire import protocol, rpc_methods
from tests.fakes.abuse import headers
from tests.fuzz.answers import ANSWERS
from tests.fuzz.stored import STORED
from tests.fuzz.target import Target, file_of, folder

ROOT = Path(__file__).parents[2]


# --- records and logs ---------------------------------------------------------------------------------------
_RECORDS = (
    {
        "l2r": "learner",
        "time": 1.0,
        "updates": 3,
        "env_steps": 128,
        "policy_version": 2,
        "workers": 2,
        "return": -3.5,
    }
    | {"segments": {"sent": 4}, "loss": {"actor": 1.0}, "env_steps_per_second": 12.5, "store": 9, "gpu_percent": 4},
    {
        "l2r": "worker",
        "time": 2.0,
        "env_steps_per_second": 5.0,
        "simulator_state": "ready",
        "simulator_restarts": 1,
    },
    {"l2r": "elastic", "time": 2.0, "state": "training", "nodes": 2, "rank": 0, "world_size": 4, "round": 1},
    {"l2r": "fetch", "time": 2.0, "source": "https://h/x", "state": "running", "bytes": 5, "total_bytes": 9},
)


def _record_seeds() -> list[bytes]:
    return [json.dumps(record).encode() for record in _RECORDS]


def _read_record(data: bytes) -> None:
    line = data.decode("utf-8", "surrogateescape")
    parse_record(line)
    pod_records.read(line)
    series = Series("r")
    for _ in range(2):
        series.read_line(line)
    assert "\x1b" not in sanitize(line)


def _log_seeds() -> list[bytes]:
    line = b"2026-11-23T07:00:00.123456789Z text\n"
    frames = b"".join(bytes((stream, 0, 0, 0)) + len(line).to_bytes(4, "big") + line for stream in (1, 2, 1))
    return [line * 3, frames, b"2026-11-23T07:00:00+02:00 x\r\n"]


def _read_log(data: bytes) -> None:
    decoder = LogFrameDecoder()
    for start in range(0, len(data), 100):
        decoder.feed(data[start : start + 100])
    decoder.end()
    take_frames(bytearray(data))
    splitter, stamps = LineSplitter(), StampParser()
    for line in (*splitter.feed(data), splitter.flush()):
        stamps.parse(line)


# --- YAML ---------------------------------------------------------------------------------------------------
@cache
def _spec_seeds() -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "manifests").glob("*.yaml"))]


def _read_spec(data: bytes) -> None:
    spec_file.load(file_of("spec.yaml", data))


def _read_cluster(data: bytes) -> None:
    load_cluster(file_of("cluster.yaml", data))


_KUBECONFIG = b"""apiVersion: v1
kind: Config
current-context: a
clusters:
- {name: c, cluster: {server: "https://h:6443", certificate-authority-data: eHg=, tls-server-name: n}}
users:
- {name: u, user: {token: t}}
- {name: v, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: x, env: [{name: A, value: b}]}}}
- {name: w, user: {auth-provider: {name: oidc, config: {idp-issuer-url: "https://i", client-id: c}}}}
contexts:
- {name: a, context: {cluster: c, user: u, namespace: n}}
- {name: b, context: {cluster: c, user: v}}
"""


def _read_kubeconfig(data: bytes) -> None:
    path = file_of("kubeconfig", data)
    for context in ("", "a", "b"):
        try:
            kubeconfig.load_access(context, path)
        except L2RError:
            continue


# --- archives -----------------------------------------------------------------------------------------------
@cache
def _archive_seeds() -> list[bytes]:
    seeds = []
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
            for name, content in (("./a", b"x" * 600), ("folder/" + "n" * 90, b""), ("./b", b"y")):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            link = tarfile.TarInfo("./c")
            link.type, link.linkname = tarfile.LNKTYPE, "./a"
            if form is tarfile.GNU_FORMAT:
                tar.addfile(link)
        seeds += [stream.getvalue(), gzip.compress(stream.getvalue(), mtime=0)]
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", method) as zipped:
            zipped.writestr("folder/file", b"content " * 40)
            zipped.writestr("b", b"")
        seeds.append(stream.getvalue())
    return seeds


def _unpack(data: bytes) -> None:
    name = "a.zip" if data[:2] == b"PK" else "a.tar.gz"
    path = Path(file_of(name, data))
    with tempfile.TemporaryDirectory(dir=folder()) as target:
        unpack(path, Path(target) / "in", name, Stop())
        assert {item.name for item in Path(target).iterdir()} == {"in"}


def _unpack_volume(data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=folder()) as target:
        volume_files.unpack(io.BytesIO(data), {name: Path(target) / name[2:] for name in ("./a", "./b", "./c")})


def _read_listing(data: bytes) -> None:
    for line in data.split(b"\0"):
        volume_files.entry_of(line)


# --- API objects --------------------------------------------------------------------------------------------
_META = {
    "name": "p",
    "namespace": "ml",
    "uid": "u",
    "resourceVersion": "7",
    "creationTimestamp": "2026-11-23T07:00:00Z",
} | {
    "labels": {"l2rtui.io/run": "r", "l2rtui.io/run-id": "i", "l2rtui.io/set": "w", "l2rtui.io/slot": "1"},
    "annotations": {"l2rtui.io/seats": "[[0,[1]]]", "l2rtui.io/binding": "env"},
    "ownerReferences": [{"kind": "Job", "name": "j", "uid": "v", "controller": True, "apiVersion": "batch/v1"}],
}
_STRUCTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "put_pod": (
        PodStruct,
        {
            "metadata": _META,
            "spec": {
                "nodeName": "n",
                "containers": [
                    {
                        "name": "c",
                        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}],
                        "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1500m", "memory": "3Gi"}},
                    }
                ],
            },
            "status": {
                "phase": "Running",
                "startTime": "2026-11-23T07:00:00Z",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-23T07:00:00Z"}],
                "containerStatuses": [
                    {
                        "name": "c",
                        "restartCount": 1,
                        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "x"}},
                        "lastState": {"terminated": {"exitCode": 137, "finishedAt": "2026-11-23T07:00:00Z"}},
                    }
                ],
            },
        },
    ),
    "put_node": (
        NodeStruct,
        {
            "metadata": {
                **_META,
                "name": "n",
                "labels": {"nvidia.com/gpu.count": "4", "nvidia.com/gpu.memory": "24576"},
            },
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": False},
            "status": {
                "allocatable": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "4"},
                "capacity": {"cpu": "16", "memory": "64Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            },
        },
    ),
    "put_controller": (
        ControllerStruct,
        {"kind": "Job", "metadata": _META, "spec": {"parallelism": 2, "replicas": 3}, "status": {"succeeded": 1}},
    ),
    "put_run": (
        ConfigMapStruct,
        {
            "metadata": {**_META, "name": "l2r-r"},
            "data": {"spec.json": '{"kind":"job","name":"r","sets":[]}', "plan.json": "[]"},
        },
    ),
    "put_event": (
        EventStruct,
        {
            "metadata": _META,
            "involvedObject": {"kind": "Pod", "name": "p", "uid": "u"},
            "reason": "FailedScheduling",
            "message": "0/2 nodes",
            "count": 3,
            "lastTimestamp": "2026-11-23T07:00:00Z",
            "series": {"count": 2},
        },
    ),
    "put_metrics": (
        NodeMetricsStruct,
        {"metadata": {**_META, "name": "n"}, "usage": {"cpu": "12m", "memory": "1Gi"}},
    ),
}


@cache
def _object_seeds() -> list[bytes]:
    events = [
        f"{put}\n".encode() + json.dumps({"type": kind, "object": document}).encode()
        for put, (_, document) in _STRUCTS.items()
        for kind in ("ADDED", "MODIFIED", "DELETED")
    ]
    pages = [
        f"{put}\n".encode() + json.dumps({"metadata": {"resourceVersion": "5"}, "items": [document] * 2}).encode()
        for put, (_, document) in _STRUCTS.items()
    ]
    other = [
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}},
        {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}},
    ]
    return events + pages + [b"put_pod\n" + json.dumps(event).encode() for event in other]


def _read_objects(data: bytes) -> None:
    name, _, body = data.partition(b"\n")
    put = name.decode("latin-1") if name.decode("latin-1") in _STRUCTS else "put_pod"
    decoder: Decoder[Any] = Decoder(_STRUCTS[put][0])
    objects: list[Any] = []
    lines = LineBuffer()
    for line in lines.feed(body + b"\n"):
        event = decoder.event(line)
        if isinstance(event, Upsert):
            objects.append(event.item)
    try:
        page = decoder.page(body)
    except UNDECODABLE:
        pass
    else:
        parts: list[ListPage[Any]] = list(decoder.parts(page, 10))
        objects += [item for part in parts for item in part.items]
    decoder.continue_token(body)
    joiner = Joiner(SlotRule(), lambda: 1_800_000_000.0)
    joiner.set_visibility(run_namespaces=["ml"], is_use_known=True, is_derived=True)
    for item in objects:
        if isinstance(item, UndecodedObject):
            joiner.set_undecoded_pods([item])
        else:
            getattr(joiner, put)(None, item)
        joiner.changes()


def _exit_code(data: bytes) -> None:
    channels.exit_code(data, "sh")


def _status_seeds() -> list[bytes]:
    causes = {"causes": [{"reason": "ExitCode", "message": "3"}]}
    bodies = (
        {"status": "Success"},
        {"status": "Failure", "reason": "NonZeroExitCode", "details": causes},
        {"status": "Failure", "reason": "InternalError", "message": "executable file not found"},
    )
    return [json.dumps(body).encode() for body in bodies]


def _dcgm_seeds() -> list[bytes]:
    line = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-x",device="nvidia0",Hostname="n"} 41\n'
    return [(line + line.replace("UTIL", "TEMP") + "# HELP x\n").encode()]


# --- simulators ---------------------------------------------------------------------------------------------
_CALLS = (
    *(
        rpc_methods.get_level(),
        rpc_methods.get_levels(),
        rpc_methods.get_level_vehicles(),
        rpc_methods.reset_level(),
    ),
    *(rpc_methods.get_vehicle_state(), rpc_methods.get_vehicle_params(), rpc_methods.get_sensors_params()),
    *(rpc_methods.get_sensor_params("s"), rpc_methods.get_sensor_param("s", "p"), rpc_methods.open_level("l")),
)


def _simulator_seeds() -> list[bytes]:
    results = (
        [],
        "level",
        {"0": "car"},
        0,
        {"location": [1, 2, 3], "rotation": [0, 0, 1]},
        [{"name": "x", "value": 1}],
    )
    replies = [json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode() for result in results]
    refusal = json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no"}}).encode()
    pose = protocol.pack_pose([0] * 3 + [0.5] * 27)
    image = protocol.FrameHeader(2, 2, 3, 0, 1, 5).pack() + bytes(12)
    return [*replies, refusal, protocol.Action(0.1, 0.2, 3).pack(), pose, image]


def _read_simulator(data: bytes) -> None:
    from runtime.sim.wire.controller import _decoded, _result_of
    from runtime.sim.wire.errors import SimulatorError

    for call in _CALLS:
        try:
            _result_of(call, _decoded(call, data))
        except SimulatorError:
            continue
    for unpack_message in (protocol.Action.unpack, protocol.unpack_pose, protocol.FrameHeader.unpack):
        try:
            unpack_message(data)
        except protocol.WireError:
            continue


# --- frames -------------------------------------------------------------------------------------------------
@cache
def _frame_seeds() -> list[bytes]:
    return [json.dumps(header).encode() for header in headers("t", sent=5)]


def _read_frames(data: bytes) -> None:
    framing.decode([data])
    framing.decode([data, bytes(64)])


_SHAPES = Shapes(np.dtype(np.float32), 4, 3, 8)
_PROOF = proof_of("token", "run")


@cache
def _question_seeds() -> list[bytes]:
    obs, outputs = np.ones((2, 4), np.float32), np.ones((2, 3), np.float32)
    return [encode_question(_PROOF, 7, obs), encode_answer(7, 3, outputs)]


def _read_question(data: bytes) -> None:
    for read in (
        lambda: read_question(memoryview(data), _SHAPES, _PROOF),
        lambda: read_answer(memoryview(data), _SHAPES, 2),
    ):
        try:
            read()
        except NoQuestionError:
            continue


def _state_seeds() -> list[bytes]:
    state = joined(RoundState(), RendezvousNode("a", "a", "10.0.0.1", 1000, 2), 4)
    return [msgspec.json.encode(state), b"read\0key", b"replace\0key\0\0text"]


def _read_state(data: bytes) -> None:
    answer(MemoryValues(), data.split(b"\0"))
    answer(MemoryValues(), [])
    decode_state(data.decode("utf-8", "replace"))


def _manifest_seeds() -> list[bytes]:
    return [encode_manifest("a", 3, 9, b"arrays", {"algorithm": "sac", "loss": 1.0})]


def _read_endpoint(data: bytes) -> None:
    endpoint = parse(data.decode("utf-8", "surrogateescape"))
    endpoint.is_private()


TARGETS = (
    Target("records", _record_seeds, _read_record),
    Target("logs", _log_seeds, _read_log),
    Target("specs", _spec_seeds, _read_spec, (L2RError,)),
    Target("clusters", lambda: [(ROOT / "manifests/cluster.yaml").read_bytes()], _read_cluster, (L2RError,)),
    Target("kubeconfigs", lambda: [_KUBECONFIG], _read_kubeconfig, (L2RError,)),
    Target("archives", _archive_seeds, _unpack, (FailedError,)),
    Target("volume archives", _archive_seeds, _unpack_volume, (L2RError,)),
    Target("volume listings", lambda: [b"f\t12\t1700000000.25\tname\0d\t0\t1\tx\0"], _read_listing, (L2RError,)),
    Target("objects", _object_seeds, _read_objects),
    Target("exit codes", _status_seeds, _exit_code, (L2RError,)),
    Target("figures of GPUs", _dcgm_seeds, lambda data: dcgm.parse_metrics(data.decode("utf-8", "replace"))),
    Target("simulators", _simulator_seeds, _read_simulator),
    Target("frames", _frame_seeds, _read_frames, (messages.ProtocolError,)),
    Target("questions", _question_seeds, _read_question),
    Target("rendezvous", _state_seeds, _read_state, (StateError,)),
    Target("checkpoints", _manifest_seeds, decode_manifest, (ManifestError,)),
    Target(
        "endpoints", lambda: [b"tcp://[::1]:5555", b"ipc:///tmp/x", b"tcp://h:1"], _read_endpoint, (EndpointError,)
    ),
    *STORED,
    *ANSWERS,
)
