"""Elastic jobs that meet over etcd: the machine that runs a cluster has one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.runtime.elastic_jobs import come_and_go
from tests.runtime.programs import Programs

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def test_nodes_that_meet_over_etcd_come_and_go_and_in_the_end_all_have_finished():
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder, Programs(Path(folder)) as programs:
        come_and_go(programs, "etcd-v2")
