"""The store in which ranks meet listens on the node's own address; nothing of a job listens on all interfaces."""

from __future__ import annotations

import json
import tempfile
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from torch.distributed import DistNetworkError, TCPStore

from runtime.base import contract
from runtime.rendezvous.handler import TrainingStore
from tests.runtime.jobs.elastic_jobs import Job
from tests.runtime.programs import Programs, wait_for

SUM_PROGRAM = """
import datetime, json, os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
dist.all_reduce(ones := torch.ones(1))
port = int(os.environ["MASTER_PORT"])
print(json.dumps({"sum": ones.item(), "address": os.environ["MASTER_ADDR"], "port": port}), flush=True)
while not (Path(sys.argv[1]) / "over").exists():
    time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
"""
"""Sums over all ranks, prints the result, and waits for a file."""


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    connections = (item for each in (process, *process.children(recursive=True)) for item in each.net_connections())
    return {tuple(item.laddr) for item in connections if item.status == psutil.CONN_LISTEN}


@pytest.fixture(scope="module", autouse=True)
def first_store():
    """Torch keeps a pipe of the first store of a process open."""
    with TrainingStore("127.0.0.1") as store:
        store.open()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_store_serves_its_own_address_and_ends(address):
    own = psutil.Process()
    with TrainingStore(address) as store:
        store.open()
        assert (address, store.port) in listening(own)
        client = TCPStore(address, store.port, is_master=False, timeout=timedelta(seconds=30))
        client.set("key", "value")
        assert client.get("key") == b"value"
        other = "127.0.0.2" if address == "127.0.0.1" else "127.0.0.1"
        with pytest.raises(DistNetworkError):
            TCPStore(other, store.port, is_master=False, timeout=timedelta(seconds=1))
    assert (address, store.port) not in listening(own)


def test_a_node_behind_a_translated_address_listens_on_all_interfaces():
    with TrainingStore("192.0.2.1") as store:  # a documentation address, of no real interface
        assert store.port > 0


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_nodes_train_and_nothing_of_them_listens_on_all_interfaces():
    with tempfile.TemporaryDirectory(prefix="l2r-") as name, Programs(Path(name)) as programs:
        (programs.folder / "sum.py").write_text(SUM_PROGRAM)
        job = Job(programs, "c10d", str(programs.folder / "sum.py"), name, nodes="2:2")
        nodes = [job.node(), job.node()]
        lines = [wait_for(lambda node=node: _said(node), "the sum", *nodes) for node in nodes]
        assert [line["sum"] for line in lines] == [2.0, 2.0]
        (store,) = {(line["address"], line["port"]) for line in lines}
        ports = {where for node in nodes for where in listening(psutil.Process(node.process.pid))}
        assert store in ports
        assert {address for address, _ in ports} <= {"127.0.0.1", "::1"}
        (programs.folder / "over").touch()
        assert [node.code() for node in nodes] == [contract.EXIT_DONE] * 2
        assert not any("Traceback" in program.text() for program in programs.started)


def _said(node):
    return next((json.loads(line) for line in node.text().splitlines() if line.startswith('{"sum"')), None)
