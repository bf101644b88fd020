"""Elastic jobs that meet over etcd: a machine that runs a cluster has one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import psutil
import pytest

from runtime.base.addresses import parse
from runtime.exchange.transport.request_reply import RequestSocket
from runtime.rendezvous.plan import node_address
from runtime.rendezvous.round_state import FINISHED, RoundState, state_key
from runtime.rendezvous.shared_values import LARGEST_BYTES, RemoteValues
from tests.runtime.jobs.elastic_jobs import come_and_go
from tests.runtime.programs import Programs, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def test_nodes_that_meet_over_etcd_come_and_go_and_in_the_end_all_have_finished():
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder, Programs(Path(folder)) as programs:
        come_and_go(programs, "etcd-v2")


def test_an_etcd_that_is_slow_for_a_while_is_waited_for():
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder, Programs(Path(folder)) as programs:
        variables = {"L2R_ENDPOINT": f"ipc://{folder}/meeting", "L2R_RUN_ID": "slow", "L2R_DIR": folder}
        host = programs.start("rendezvous", "--backend", "etcd-v2", **variables)
        wait_for(lambda: "rendezvous etcd-v2 at" in host.text(), "the etcd", host)
        values = RemoteValues(RequestSocket(node_address(parse(variables["L2R_ENDPOINT"])), LARGEST_BYTES, None))
        (etcd,) = psutil.Process(host.process.pid).children()
        etcd.suspend()
        with pytest.raises(OSError, match=r"does not answer|timed out"):
            values.read(state_key("slow"))
        etcd.resume()
        wait_for(lambda: reads_nothing(values), "its answer", host)
        assert host.process.poll() is None
        assert values.replace(state_key("slow"), "", msgspec.json.encode(RoundState(end=FINISHED)).decode())
        assert host.code() == 0
        assert "the training has finished" in host.text()
        values.close()


def reads_nothing(values: RemoteValues) -> bool:
    try:
        return values.read(state_key("slow")) == ""
    except OSError:
        return False
