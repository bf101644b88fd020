"""Addresses of the processes of a run."""

from __future__ import annotations

import json
import os

import pytest

from runtime.base import addresses, contract


@pytest.mark.parametrize(
    ("address", "is_kept"), [("127.0.0.1", True), ("::1", True), ("10.0.0.7", False), ("run-learner-0", False)]
)
def test_ranks_of_one_machine_keep_to_loopback(monkeypatch, address, is_kept):
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    addresses.keep_to_loopback(address)
    assert [name in os.environ for name in names] == [is_kept, is_kept]
    for name in names:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("peers", "own", "number"),
    [
        (None, "learner", 1),
        ({"learner": ["tcp://a:1", "tcp://b:1"]}, "", 2),
        ({"trainer": ["tcp://a:1", "tcp://b:1"]}, "trainer", 2),
        ({"ps": ["tcp://a:1", "tcp://b:1"]}, "learner", 1),
    ],
)
def test_replicas_of_its_own_set_are_counted(peers, own, number):
    environ = {contract.ENV_SET: own} | ({contract.ENV_PEERS: json.dumps(peers)} if peers else {})
    assert addresses.num_replicas(environ, "learner") == number
