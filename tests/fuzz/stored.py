"""Decoders of stored data: specs on objects of a cluster, files of state, the history, recordings, settings."""

from __future__ import annotations

import base64
import contextlib
import functools
import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from l2rtui.backends.common import stored_spec
from l2rtui.backends.common.reservations import ReservationFile
from l2rtui.backends.docker import views as docker_labels
from l2rtui.backends.docker import views as docker_views
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import slot_leases
from l2rtui.backends.kubernetes.api import oidc
from l2rtui.backends.kubernetes.api.errors import ApiError, RequestInfo
from l2rtui.backends.kubernetes.api.http import decode_json
from l2rtui.backends.local import secret_files, state_files
from l2rtui.backends.local.state_files import RunRecord, RunStatus
from l2rtui.backends.queue_store import QueueFile, QueueStore
from l2rtui.backends.recorded import recording
from l2rtui.cloud.aws import prices
from l2rtui.domain.sweeps import Trial
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.errors import L2RError
from l2rtui.services.curves import curve_record
from l2rtui.services.history import place as travelling
from l2rtui.services.history.launch_facts import hidden_fields
from runtime.base import alert_rules, limits, training
from runtime.base.bounded_json import UndecodableError
from runtime.base.metrics import parse_record
from tests.fuzz.target import Target, file_of, folder

SPEC = RunSpec(
    Kind.JOB,
    "r",
    "r",
    (SetSpec("w", Role.WORKER, ("sleep", "1"), replicas=2, template='{"spec": {}}'),),
    train='{"algorithm": "sac"}',
    trial=Trial(1, '{"train.lr": 0.1}'),
)


def _encoded(*values: object) -> Callable[[], list[bytes]]:
    return lambda: [msgspec.json.encode(value) for value in values]


def _read_spec(data: bytes) -> None:
    spec = stored_spec.decode(data)
    json.loads(spec.train)
    if spec.trial is not None:
        spec.trial.document()
    hidden_fields(data.decode())


def _read_labels(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    network = {"Name": "n", "Labels": {docker_labels.RECORD: text, docker_labels.RUN: "r"}}
    container = {"Name": "/c", "Config": {"Labels": {docker_labels.POD: text}}}
    for read in (lambda: docker_views.spec_of(network), lambda: docker_views.plan_of(container)):
        with contextlib.suppress(L2RError):
            read()


def _read_annotations(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    item = {"metadata": {"annotations": {labels.CLAIMS: text, labels.SEATS: text}}}
    slot_leases.claims_of(item)
    slot_leases.seats_of(item)


def _read_recording(data: bytes) -> None:
    path = Path(file_of("recording.jsonl", data))
    recording.read_header(path)
    for entry in recording.entries(path):
        if isinstance(entry, recording.ChangesEntry):
            entry.changes()


def _read_queue(data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=folder()) as place:
        (Path(place) / "queue.json").write_bytes(data)
        QueueStore(Path(place)).read()


def _read_reservations(data: bytes) -> None:
    path = Path(file_of("reservations.json", data))
    ReservationFile(path, contextlib.nullcontext, None, "me").read()  # type: ignore[arg-type]  # it asks neither


def _read_state(kind: type, data: bytes) -> None:
    state_files.read(Path(file_of("state.json", data)), kind)


def _read_answer(data: bytes) -> None:
    claims = base64.urlsafe_b64encode(data).decode().rstrip("=")
    oidc.token_expiry(f"a.{claims}.c")
    decode_json(RequestInfo("GET", "/api"), data)


def _read_curve(data: bytes) -> None:
    record = parse_record(data.decode("utf-8", "replace"))
    if record is not None:
        curve_record(record)


def _read_history(data: bytes) -> None:
    travelling.decode(gzip.compress(data))


def _read_secret(data: bytes) -> None:
    secret_files.read(Path(file_of("secret.json", data)))


def _read_settings(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for parse in (training.parse, alert_rules.parse_rules, limits.Limits.parse):
        with contextlib.suppress(ValueError):
            parse(text)


def _offer_seeds() -> list[bytes]:
    price = {"unit": "Hrs", "beginRange": "0", "endRange": "Inf", "pricePerUnit": {"USD": "55.04"}}
    offer = {"publicationDate": "2026-11-20T22:11:03Z", "product": {"productFamily": "Compute Instance"}}
    return [json.dumps({**offer, "terms": {"OnDemand": {"a": {"priceDimensions": {"b": price}}}}}).encode()]


def _read_offer(data: bytes) -> None:
    prices.parse_offers([data.decode("utf-8", "replace")], "us-west-2", "p5.48xlarge")


_RECORDING = (
    recording.header_line(1.0, "local", "here") + b'["line", 1.0, "u", "text", 2.0]\n["end", 3.0, "over"]\n'
)
_SECRET = b'{"kind": "opaque", "values": {"KEY": "x"}}'

STORED = (
    Target("stored specs", _encoded(SPEC), _read_spec, (UndecodableError,)),
    Target("labels of Docker", _encoded(SPEC), _read_labels),
    Target("annotations", lambda: [b'{"1": {"run": "r"}}', b"[[0, [1, 2]]]"], _read_annotations),
    Target(
        "history",
        lambda: [b'{"entry": {}, "launch": {"spec": "{}"}}'],
        _read_history,
    ),
    Target("recordings", lambda: [_RECORDING], _read_recording, (L2RError,)),
    Target("queues", _encoded(QueueFile()), _read_queue, (L2RError,)),
    Target("reservations", lambda: [b'{"node": "[]"}'], _read_reservations),
    Target("records of runs", lambda: [b'{"format": 1}'], functools.partial(_read_state, RunRecord), (ValueError,)),
    Target("states of runs", lambda: [b'{"format": 1}'], functools.partial(_read_state, RunStatus), (ValueError,)),
    Target("secrets", lambda: [_SECRET], _read_secret, (L2RError,)),
    Target("answers", lambda: [b'{"exp": 12, "id_token": "x"}'], _read_answer, (ApiError,)),
    Target("curves", lambda: [b'{"l2r": "learner", "updates": 1, "return": -1.0}'], _read_curve),
    Target("settings", lambda: [b'{"algorithm": "sac", "seed": 3}', b"[]"], _read_settings),
    Target("prices", _offer_seeds, _read_offer, (ValueError,)),
)
