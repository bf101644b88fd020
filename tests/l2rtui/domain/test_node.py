"""Slots and GPUs: notation and lookup."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2rtui.domain.node import CPU, Gpu, GpuShare, GpuUse, Node, SlotId, device_index, device_name


@pytest.mark.parametrize("text", ["phortx1/3.2", "n/0.0", "a.b-c/10.31", "NODE/1.1", "n/cpu.7"])
def test_a_slot_is_written_as_it_is_read(text):
    assert str(SlotId.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "n", "n/1", "n/1.", "n/.1", "/1.1", "n/a.b", "n/1.1 ", "n//1.1", "-n/1.1", "n/-1.0"]
)
def test_what_is_no_slot_is_refused_with_the_right_form(text):
    with pytest.raises(ValueError, match=r"write node/gpu\.slot"):
        SlotId.parse(text)


@given(st.text())
def test_any_text_is_a_slot_or_a_value_error(text):
    try:
        assert SlotId.parse(str(SlotId.parse(text))) == SlotId.parse(text)
    except ValueError:
        pass  # the sentence is tested above


def test_slots_are_ordered_by_node_gpu_and_number():
    slots = [SlotId("b", 0, 0), SlotId("a", 10, 0), SlotId("a", 2, 1), SlotId("a", 2, 0)]
    assert sorted(slots) == [SlotId("a", 2, 0), SlotId("a", 2, 1), SlotId("a", 10, 0), SlotId("b", 0, 0)]


def test_a_gpu_has_its_slots_and_a_label():
    assert Gpu("n", 3, slots=2).slot_ids() == (SlotId("n", 3, 0), SlotId("n", 3, 1))
    assert Gpu("n", 3).label == "GPU3"
    assert Gpu("n", 0, is_cpu=True).label == "cpu"


def test_a_device_is_written_as_it_is_read():
    assert [device_name(index) for index in (0, 11, CPU)] == ["0", "11", "cpu"]
    assert [device_index(text) for text in ("0", "11", "cpu", "", "-1", "x")] == [0, 11, CPU, None, None, None]


def test_the_cpu_stands_beside_the_gpus():
    cpu = Gpu("n", CPU, slots=2, is_cpu=True)
    node = Node("n", (Gpu("n", 0),), cpu=cpu)
    assert node.gpus == (Gpu("n", 0),)
    assert node.devices == (Gpu("n", 0), cpu)
    assert node.gpu(CPU) is cpu
    assert [str(slot) for slot in cpu.slot_ids()] == ["n/cpu.0", "n/cpu.1"]


def test_a_node_finds_its_gpu_by_index():
    node = Node("n", (Gpu("n", 1), Gpu("n", 4)))
    assert node.gpu(4) is node.gpus[1]
    assert node.gpu(0) is None


def test_a_node_tells_what_is_in_use_of_a_gpu_where_it_is_measured():
    node = Node("n", (Gpu("n", 0), Gpu("n", 1)), gpu_use=(GpuUse(1, 87.0, 1 << 30),))
    assert node.use(1) is node.gpu_use[0]
    assert node.use(0) is None


def test_the_part_of_a_pod_is_known_or_not():
    share = GpuShare("u1", 30.0, 4 << 30)
    use = GpuUse(0, 50.0, shares=(GpuShare("u0"), share))
    assert use.share("u1") is share
    assert use.share("u2") is None


def test_the_memory_of_a_gpu_is_that_of_its_labels_or_of_a_measurement():
    labelled, measured, neither = Gpu("n", 0, memory_bytes=80 << 30), Gpu("n", 1), Gpu("n", 2)
    node = Node("n", (labelled, measured, neither), gpu_use=(GpuUse(0), GpuUse(1, memory_bytes=40 << 30)))
    assert [node.gpu_memory_bytes(gpu) for gpu in node.gpus] == [80 << 30, 40 << 30, 0]
