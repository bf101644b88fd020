"""Measurements of GPUs, as JSON and in wide tables."""

from __future__ import annotations

import io

import pytest

from l2rtui.cli.output import Output
from l2rtui.domain.ledger import build_ledger
from l2rtui.domain.metrics import RunMetrics
from l2rtui.domain.node import Gpu, GpuUse, Node
from l2rtui.tables import cluster, operations
from l2rtui.tables.documents import metrics_document, node_document, slot_document
from tests.fakes.nvml import GIB

NODE = Node(
    "n", (Gpu("n", 0, slots=1), Gpu("n", 1, slots=1)), gpu_use=(GpuUse(1, 87.4, 12 << 30, 80 << 30, 301.5, 64.0),)
)


def wide(view, documents):
    stream = io.StringIO()
    Output("wide", stream).show_all(view, documents)
    return stream.getvalue().splitlines()


def test_figures_stand_beside_the_gpu_that_they_are_of():
    gpus = node_document(NODE, build_ledger([NODE], []))["gpus"]
    told = [(one["use_percent"], one["memory_used_bytes"], one["memory_bytes"]) for one in gpus]
    assert told == [(None, None, None), (87.4, 12 << 30, 80 << 30)]
    told = [(one["power_watts"], one["temperature_celsius"]) for one in gpus]
    assert told == [(None, None), (301.5, 64.0)]
    slots = build_ledger([NODE], []).slots.values()
    assert [slot_document(one, NODE)["gpu_use_percent"] for one in slots] == [None, 87.4]


@pytest.mark.parametrize(("node", "shown"), [(NODE, "- 87"), (Node("n", NODE.gpus), "-"), (Node("n"), "-")])
def test_the_wide_table_of_nodes_has_a_figure_for_each_gpu(node, shown):
    head, row = wide(cluster.NODES, [node_document(node, build_ledger([node], []))])
    assert row[head.index("GPU%") : head.index("GPU MEMORY")].strip() == shown
    assert row[head.index("GPU MEMORY") : head.index(" IP ")].strip() == shown.replace("87", "12Gi")


def test_the_wide_table_of_slots_has_the_figure_of_the_gpu():
    slots = build_ledger([NODE], []).slots.values()
    lines = wide(cluster.SLOTS, [slot_document(one, NODE) for one in slots])
    assert [line.split()[-2:] for line in lines] == [["GPU", "MEMORY"], ["-", "-"], ["87", "12Gi"]]


def test_metrics_have_the_figures_of_the_learners_device_and_unknown_ones_are_null():
    known = RunMetrics(
        "r", device="cuda:0 H100", gpu_percent=41.0, gpu_memory_bytes=3e9, gpu_reserved_bytes=float(GIB)
    )
    document = metrics_document(known, known.time)
    assert (document["device"], document["gpu_percent"]) == ("cuda:0 H100", 41.0)
    assert (document["gpu_memory_bytes"], document["gpu_reserved_bytes"]) == (3_000_000_000, GIB)
    head, row = wide(operations.METRICS, [document])
    assert [row[head.index(name) :].split()[0] for name in ("GPU%", "RESERVED")] == ["41", "1Gi"]
    older = metrics_document(RunMetrics("r"), 1.0)
    assert {older[name] for name in ("device", "gpu_percent", "gpu_memory_bytes", "gpu_reserved_bytes")} == {None}


@pytest.mark.parametrize(
    ("age_seconds", "interval_seconds", "is_learning", "is_live"),
    [
        (0.0, 2.0, True, True),
        (15.0, 2.0, True, True),
        (16.0, 2.0, True, False),
        (80.0, 30.0, True, True),
        (100.0, 30.0, True, False),
        (0.0, 2.0, False, False),
    ],
)
def test_a_rate_that_is_not_of_this_moment_is_no_rate_and_the_record_has_an_age(
    age_seconds, interval_seconds, is_learning, is_live
):
    record = RunMetrics("r", time=1e9, interval_seconds=interval_seconds, env_steps_per_second=1017.0)
    document = metrics_document(record, 1e9 + age_seconds, is_learning=is_learning)
    assert (document["age_seconds"], document["is_live"]) == (age_seconds, is_live)
    assert document["env_steps_per_second"] == 1017.0
    head, row = wide(operations.METRICS, [document])
    cells = dict(zip(head.split(), row.split(), strict=False))
    assert cells["STEPS/S"] == ("1017" if is_live else "-")
    assert cells["AGE"] == cluster.format_age(age_seconds)


def test_return_is_the_number_that_the_app_shows():
    for record in (RunMetrics("r", mean_return=242.4, eval_return=172.3), RunMetrics("r", mean_return=242.4)):
        document = metrics_document(record, 0.0)
        assert document["return"] == record.reported_return
        head, row = wide(operations.METRICS, [document])
        assert dict(zip(head.split(), row.split(), strict=False))["RETURN"] == f"{record.reported_return:.4g}"
