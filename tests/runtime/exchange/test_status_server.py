"""The learner's answers over HTTP: correct, bounded, and without effect on training."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.base import contract
from runtime.exchange.status_server import StatusServer, prometheus
from tests.fakes.faults import free_port
from tests.runtime.conftest import RunUnderTest

pytestmark = pytest.mark.process

STATUS: dict[str, Any] = {
    "run": "r",
    "workers": 1,
    "policy_version": 3,
    "inflight_transitions": 64,
    "store": 9,
    "strangers": 0,
    "device": "cuda:0 NVIDIA H100 80GB HBM3",
    "gpu_percent": 41.0,
    "gpu_memory_bytes": 3 << 30,
    "env_steps": 128,
    "policy_lag": [0, 0.5, 2],
    "segments": {"sent": 5, "accepted": 4},
    "peers": [
        {"pod": 'w"0\n}', "role": "worker", "env_steps_per_second": 1.5, "policy_lag": 1, "outstanding": 2}
        | {"heard_seconds": 0.1}
    ],
}


@pytest.fixture
def port(no_leaks: None) -> Iterator[int]:
    number = free_port()
    server = StatusServer(("127.0.0.1", number), lambda: STATUS)
    yield number
    server.close()


def get(port: int, path: str) -> tuple[int, str]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as stream:
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = http.client.HTTPResponse(stream)
        answer.begin()
        return answer.status, answer.read().decode()


def test_status_is_json_and_metrics_are_prometheus_text(port: int) -> None:
    assert (get(port, "/status")[0], json.loads(get(port, "/status")[1])) == (200, STATUS)
    code, text = get(port, "/metrics")
    assert code == 200
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) l2r_\w+ .+|l2r_\w+\{(\w+="([^"\\]|\\.)*",?)+\} [\d.]+', line), line
    assert 'l2r_segments_total{run="r",outcome="accepted"} 4' in text
    assert 'pod="w\\"0\\n}"' in text
    assert 'l2r_gpu_percent{run="r"} 41.0\n' in text
    assert "l2r_gpu_reserved_bytes" not in text, "an unknown figure is left out"
    assert "".join(prometheus(STATUS)) == text
    assert get(port, "/etc/passwd")[0] == 404


def test_whoever_is_slow_or_talks_nonsense_holds_up_nobody_for_long(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)) as noise:
        noise.sendall(b"\x00\xff" * 100_000)
        assert get(port, "/status")[0] == 200


def test_a_request_that_comes_byte_by_byte_is_ended(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 30) as drip:
        with contextlib.suppress(OSError):
            for byte in b"GET /status HTTP/1.1\r\n" + b"x: y\r\n" * 1000:
                drip.sendall(bytes([byte]))
                # A read that times out means that the server is still waiting; an empty one, that it closed the
                # connection.
                drip.settimeout(0.2)
                with contextlib.suppress(TimeoutError):
                    assert drip.recv(1) == b"", "it answers nobody who has not asked"
                    break
            else:
                pytest.fail("the connection stayed open")
        assert get(port, "/status")[0] == 200


@pytest.mark.slow
def test_a_learner_says_who_is_connected_and_how_far_behind(
    run: RunUnderTest, wait_until: Callable[..., Any]
) -> None:
    run.endpoint = f"tcp://127.0.0.1:{free_port()}"
    status = free_port()
    learner = run.start("learner", **{contract.ENV_STATUS: f"127.0.0.1:{status}"})
    workers = [run.start("worker", index) for index in range(2)]

    def ask() -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{status}/status", timeout=60) as answer:
            return dict(json.load(answer))

    wait_until(lambda: learner.last("learner").get("updates", 0) > 0, "updates", log=learner)
    wait_until(lambda: all(peer["env_steps_per_second"] > 0 for peer in ask()["peers"]), "rates", log=learner)
    answer = ask()
    assert {peer["pod"] for peer in answer["peers"]} == {"w-0", "w-1"}
    segments = answer["segments"]
    assert segments["sent"] == sum(segments[name] for name in ("accepted", "stale", "misfit", "lost", "missing"))
    assert answer["env_steps"] == 32 * segments["accepted"]
    assert workers[0].end() == contract.EXIT_DONE
    wait_until(lambda: [peer["pod"] for peer in ask()["peers"]] == ["w-1"], "the goodbye")
    for process in (workers[1], learner):
        assert process.end() == contract.EXIT_DONE


def test_a_learner_whose_endpoint_is_a_folder_answers_in_it(
    run: RunUnderTest, wait_until: Callable[..., Any]
) -> None:
    learner = run.start("learner")
    path = Path(run.endpoint.removeprefix("ipc://")) / "status.sock"
    wait_until(path.exists, "the socket", log=learner)
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(str(path))
        stream.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert b"l2r_workers" in b"".join(iter(lambda: stream.recv(65536), b""))
    assert learner.end() == contract.EXIT_DONE
    assert not path.exists()
