"""A thousand connections of attackers, including ones to the app in a browser: no service ends, moves or leaks
data.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from runtime.base import contract
from runtime.exchange.transport import curve_keys
from runtime.exchange.transport.request_reply import RequestSocket
from runtime.rendezvous.round_state import decode_state
from runtime.rendezvous.shared_values import LARGEST_BYTES, RemoteValues, keys_of
from tests.fakes.attackers import Attackers, each, is_root, recording, report
from tests.fakes.faults import free_port
from tests.runtime.conftest import RunUnderTest
from tests.runtime.jobs.elastic_jobs import ROUND_PROGRAM, Job, part, together
from tests.runtime.programs import Programs, wait_for
from tests.tiers import starts_processes

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900 + 3 * each(0))]
TOKEN = "only processes of the run have this"
KEY = "l2r/elastic/test-1"
GROWTH_BYTES = 100 * 2**20


@pytest.fixture
@starts_processes
def programs():
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder, Programs(Path(folder)) as started:
        yield started


def test_nobody_ends_or_moves_an_elastic_job(programs):
    (programs.folder / "round.py").write_text(ROUND_PROGRAM)
    token = programs.folder / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    port = free_port()
    programs.variables[contract.ENV_TOKEN_FILE] = str(token)
    programs.variables[contract.ENV_ENDPOINT] = f"tcp://127.0.0.1:{port}"
    job = Job(programs, "c10d", str(programs.folder / "round.py"), str(programs.folder), "0")
    node = job.node()
    wait_for(together(node), "a round", node, job.rendezvous)
    before = part(node)["time"]
    # A valid session that writes the end of the job, to another job's key: replaying it must have no effect.
    with recording(port) as (relay, sent), RemoteValues(socket_at(relay)) as values:
        assert values.replace("l2r/elastic/recorded", "", '{"end":"finished"}')
        assert values.replace("l2r/elastic/recorded", '{"end":"finished"}', "")
    resident = psutil.Process(job.rendezvous.process.pid).memory_info().rss
    attackers = Attackers(port, bytes(sent))
    attackers.attack(each(40))
    if is_root():
        result = attackers.attack_as_another_user(each(10), [str(token)], [])
        assert result["read"] == []
    assert sum(attackers.done.values()) >= 6 * each(40)
    with RemoteValues(socket_at(port)) as values:
        assert values.read("l2r/elastic/recorded") == "", "a replay wrote"
        state = decode_state(values.read(KEY))
    assert (state.round, state.end, [member.name for member in state.members]) == (0, "", [state.members[0].name])
    assert (part(node)["state"], part(node)["time"]) == ("training", before)
    for secret in (TOKEN, "members", state.members[0].id):
        assert secret.encode() not in attackers.answers
    assert psutil.Process(job.rendezvous.process.pid).memory_info().rss < resident + GROWTH_BYTES
    (programs.folder / "over").touch()
    assert (node.code(), job.rendezvous.code()) == (contract.EXIT_DONE, contract.EXIT_DONE)
    assert "Traceback" not in job.rendezvous.text() + node.text()
    report("rendezvous", attackers.done)


def socket_at(port: int) -> RequestSocket:
    return RequestSocket(f"tcp://127.0.0.1:{port}", LARGEST_BYTES, keys_of(TOKEN)[1])


def test_nobody_ends_a_learner_or_trains_with_it(run: RunUnderTest, wait_until: Callable[..., Any]):
    port = free_port()
    run.endpoint = f"tcp://127.0.0.1:{port}"
    token, keys = run.folder / "token", run.folder / "keys"
    keys.mkdir(mode=0o700)
    for path, content in ((token, TOKEN.encode()), *((keys / k, v) for k, v in curve_keys.make_files().items())):
        path.write_bytes(content)
        path.chmod(0o600)
    variables = {contract.ENV_TOKEN_FILE: str(token), contract.ENV_KEYS: str(keys)}
    learner, worker = run.start("learner", **variables), run.start("worker", **variables)
    wait_until(lambda: learner.last("learner").get("updates", 0) > 0, "updates", seconds=240.0, log=learner)
    with recording(port) as (relay, sent):
        listen_in(relay, keys)
    process = psutil.Process(learner.process.pid)
    resident, before = process.memory_info().rss, learner.last("learner")
    trap = run.folder / "executed"
    attackers = [Attackers(number, bytes(sent), str(trap)) for number in (port, port + 1, port + 2)]
    for attacker, number in zip(attackers, (27, 14, 42), strict=True):
        attacker.attack(each(number))
        if is_root():
            result = attacker.attack_as_another_user(each(10), [str(token), *map(str, keys.iterdir())], [])
            assert result["read"] == []
    wait_until(lambda: learner.last("learner")["updates"] > before["updates"], "more updates", log=learner)
    assert sum(sum(attacker.done.values()) for attacker in attackers) >= 6 * (each(27) + each(14) + each(42))
    after = learner.last("learner")
    assert after["malformed"] == before["malformed"], "of no stranger a message is even looked at"
    status = wait_until(lambda: read_status(port + 2), "an answer of the status server", log=learner)
    assert len(status["peers"]) == 1
    secrets = [TOKEN, *(path.read_text().strip() for path in keys.iterdir() if path.suffix == ".key")]
    said = json.dumps(status) + "".join(attacker.answers.decode("latin-1") for attacker in attackers)
    assert not [secret for secret in secrets if secret in said]
    assert process.memory_info().rss < resident + GROWTH_BYTES
    assert not trap.exists()
    assert worker.end() == learner.end() == contract.EXIT_DONE
    assert "Traceback" not in learner.text()
    for name, attacker in zip(("exchange: data", "exchange: model", "status"), attackers, strict=True):
        report(name, attacker.done)


def read_status(port: int) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=120) as answer:
            return json.load(answer)
    except OSError:  # the last attackers still occupy it
        return {}


def listen_in(relay: int, keys: Path) -> None:
    """Act as a valid peer that sends a message through a relay."""
    import zmq

    mine = curve_keys.read_peer(keys)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.SNDTIMEO, 60_000)
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        dealer.setsockopt(zmq.CURVE_SERVERKEY, mine.server)
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, mine.public)
        dealer.setsockopt(zmq.CURVE_SECRETKEY, mine.secret)
        monitor = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        dealer.connect(f"tcp://127.0.0.1:{relay}")
        assert monitor.poll(60_000), "the rightful peer was not let in"
        dealer.disable_monitor()
        monitor.close()


@pytest.mark.skipif(not is_root(), reason="only root can become another user")
def test_another_user_of_the_machine_reaches_no_socket_of_a_run(run: RunUnderTest, wait_until: Callable[..., Any]):
    learner = run.start("learner")
    sockets = [
        Path(run.endpoint.removeprefix("ipc://")) / name for name in ("data.sock", "model.sock", "status.sock")
    ]
    wait_until(lambda: all(path.exists() for path in sockets), "its sockets", seconds=240.0, log=learner)
    run.folder.chmod(0o755)  # the folder of the sockets protects itself, whatever the permissions of its parents
    attacker = Attackers(free_port(), b"")
    result = attacker.attack_as_another_user(0, [], list(map(str, sockets)))
    assert result["joined"] == []
    assert learner.end() == contract.EXIT_DONE
