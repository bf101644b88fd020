"""Elastic jobs that meet over etcd: the machine that runs a cluster has one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import psutil
import pytest

from runtime.jobs.elastic.plan import ADDRESS_FILE
from runtime.jobs.elastic.rendezvous_session import state_key
from runtime.jobs.elastic.round_state import FINISHED, RoundState
from runtime.jobs.elastic.shared_values import EtcdValues
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
        address = Path(folder, "meeting", ADDRESS_FILE)
        wait_for(lambda: "rendezvous etcd-v2 at" in host.text(), "the etcd", host)
        name, _, port = address.read_text().strip().rpartition(":")
        values = EtcdValues(name, int(port))
        (etcd,) = psutil.Process(host.process.pid).children()
        etcd.suspend()
        with pytest.raises(TimeoutError):  # it ends after the host's own first
            values.read(state_key("slow"))
        etcd.resume()
        wait_for(lambda: values.read(state_key("slow")) == "", "its answer", host)
        assert host.process.poll() is None
        assert values.replace(state_key("slow"), "", msgspec.json.encode(RoundState(end=FINISHED)).decode())
        assert host.code() == 0
        assert "the training has finished" in host.text()
