"""CPU slots in addition to GPUs in JSON and tables: programs that read the GPUs need no change."""

from __future__ import annotations

import io

from l2rtui.cli.output import Output
from l2rtui.domain.ledger import DeviceUsage, Holder, build_ledger
from l2rtui.domain.node import CPU, Gpu, Node
from l2rtui.tables import cluster
from l2rtui.tables.documents import node_document, slot_document

NODE = Node("n", (Gpu("n", 0, slots=2),), cpu=Gpu("n", CPU, slots=3, is_cpu=True))
ALONE = Node("n", (Gpu("n", 0, slots=3, is_cpu=True),))


def ledger(node, *slots):
    return build_ledger(
        [node],
        [
            Holder(f"u{number}", f"p{number}", "n", "me", "r", "w", (DeviceUsage(*slot),))
            for number, slot in enumerate(slots)
        ],
    )


def lines(view, documents):
    stream = io.StringIO()
    Output("table", stream).show_all(view, documents)
    return [line.split() for line in stream.getvalue().splitlines()]


def test_slots_of_the_cpu_are_rows_of_their_own_kind():
    slots = ledger(NODE, (CPU, 1)).slots.values()
    rows = [slot_document(slot, NODE) for slot in slots]
    assert [(row["id"], row["kind"], row["gpu"], row["device"]) for row in rows] == [
        ("n/0.0", "gpu", 0, "GPU0"),
        ("n/0.1", "gpu", 0, "GPU0"),
        ("n/cpu.0", "cpu", None, "cpu"),
        ("n/cpu.1", "cpu", None, "cpu"),
        ("n/cpu.2", "cpu", None, "cpu"),
    ]
    assert [row["pod"] for row in rows] == [None, None, None, "p0", None]


def test_the_cpu_of_a_node_without_gpus_keeps_its_index():
    (first, *_) = (slot_document(slot, ALONE) for slot in ledger(ALONE).slots.values())
    assert (first["id"], first["kind"], first["gpu"]) == ("n/0.0", "cpu", 0)


def test_a_node_counts_the_slots_of_its_gpus_and_of_its_cpu_apart():
    row = node_document(NODE, ledger(NODE, (CPU, 0), (0, 0)))
    assert (row["slots"], row["free"], row["cpu_slots"], row["cpu_free"]) == (2, 1, 3, 2)
    assert [gpu["device"] for gpu in row["gpus"]] == ["GPU0"]
    alone = node_document(ALONE, ledger(ALONE, (0, 0)))
    assert (alone["slots"], alone["free"], alone["cpu_slots"], alone["cpu_free"]) == (3, 2, 3, 2)
    head, both, other = lines(cluster.NODES, [row, alone])
    assert head[-4:] == ["CPU", "SLOTS", "PODS", "AGE"]
    assert (both[-3], other[-3]) == ("2/3", "-")


def test_a_slot_names_all_pods_that_share_it():
    (first, *_) = ledger(NODE, (0, 0), (0, 0), (0, 0)).slots.values()
    row = slot_document(first, NODE)
    assert (row["pod"], row["pods"]) == ("p0", ["p0", "p1", "p2"])
    assert lines(cluster.SLOTS, [row])[1][-3:-1] == ["p0", "+2"]
