"""Policy store: versions, encodings, checksums, and weights in shared memory."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from runtime.exchange.policy_store import BF2, F4, LARGE_BYTES, PolicyStore, checksum, load, to_bf2
from runtime.exchange.protocol.messages import Current, Get, Refused, SharedWeights, Weights
from runtime.exchange.transport import shared_memory
from runtime.exchange.transport.shared_memory import SHARED_WEIGHTS_BYTES, SharedMemoryError, SharedWeightsReader


def loaded(codec: str, raw: memoryview, floats: int) -> NDArray[np.float32]:
    weights = np.ones(floats, dtype=np.float32)
    load(codec, raw, weights)
    return weights


def test_weights_are_given_to_whoever_has_older_ones() -> None:
    store = PolicyStore(epoch=5, token="t")
    assert store.answer_get(Get("t", 0, 0, F4, "")) == (Current(5, 0), None)
    arena = np.arange(4, dtype=np.float32)
    store.publish(3, arena)
    message, raw = store.answer_get(Get("t", 5, 2, BF2, ""))
    assert message == Weights(5, 3, F4, 4, checksum(arena.data.cast("B")))
    assert raw is not None
    assert bytes(raw) == arena.tobytes()
    assert store.answer_get(Get("t", 5, 3, F4, "")) == (Current(5, 3), None)


def test_a_higher_version_of_a_learner_that_is_gone_is_not_newer() -> None:
    store = PolicyStore(epoch=6, token="")
    store.publish(10, np.zeros(1, dtype=np.float32))
    assert isinstance(store.answer_get(Get("", 5, 99, F4, ""))[0], Weights)


def test_weights_are_not_for_strangers() -> None:
    store = PolicyStore(epoch=6, token="t")
    store.publish(1, np.zeros(1, dtype=np.float32))
    assert isinstance(store.answer_get(Get("guess", 0, 0, F4, ""))[0], Refused)


def test_a_large_policy_comes_as_half_the_bytes_to_whoever_asks_for_that() -> None:
    store = PolicyStore(epoch=6, token="")
    arena = np.random.default_rng(1).standard_normal(LARGE_BYTES // 4).astype(np.float32)
    store.publish(1, arena)
    for codec, size, error in ((F4, LARGE_BYTES, 0.0), (BF2, LARGE_BYTES // 2, 2.0**-8)):
        message, raw = store.answer_get(Get("", 0, 0, codec, ""))
        assert isinstance(message, Weights)
        assert raw is not None
        raw = memoryview(raw)
        assert (message.codec, raw.nbytes) == (codec, size)
        assert message.checksum == checksum(raw)
        back = loaded(codec, raw, message.floats)
        assert np.all(np.abs(back - arena) <= error * np.abs(arena))


@pytest.mark.skipif(sys.platform != "linux", reason="needs sealed memory files")
def test_peers_on_the_learner_s_host_copy_the_newest_weights_from_its_memory() -> None:
    store = PolicyStore(epoch=6, token="")
    arenas = [np.full(SHARED_WEIGHTS_BYTES // 4, version, dtype=np.float32) for version in range(1, 9)]
    store.publish(1, arenas[0])
    here = Get("", 0, 0, BF2, shared_memory.host_identity())
    assert isinstance(store.answer_get(replace(here, place="elsewhere"))[0], Weights)
    shared, raw = store.answer_get(here)
    assert isinstance(shared, SharedWeights)
    assert (shared.policy_version, shared.floats, raw) == (1, SHARED_WEIGHTS_BYTES // 4, None)
    reader, mine = (
        SharedWeightsReader(shared, SHARED_WEIGHTS_BYTES // 4),
        np.zeros(SHARED_WEIGHTS_BYTES // 4, dtype=np.float32),
    )
    assert reader.read(mine) == 1
    for version in range(2, 9):
        store.publish(version, arenas[version - 1])
        again, _ = store.answer_get(replace(here, epoch=6, have=version - 1))
        assert again == replace(shared, policy_version=version)
    assert reader.read(mine) == 8
    assert (mine == 8).all()
    with pytest.raises(SharedMemoryError, match="another process"):
        SharedWeightsReader(replace(shared, nonce="f" * 32), SHARED_WEIGHTS_BYTES // 4)
    with pytest.raises(SharedMemoryError, match="for a policy of 7"):
        SharedWeightsReader(shared, 7)
    store.close()
    assert reader.read(mine) == 8, "the mapping outlives the learner"
    reader.close()
    assert isinstance(store.answer_get(here)[0], Weights), "a store without shared memory sends them"


@pytest.mark.skipif(sys.platform != "linux", reason="needs sealed memory files")
def test_who_reads_while_the_learner_writes_gets_one_version_whole() -> None:
    store = PolicyStore(epoch=6, token="")
    size, last = 1_000_000, 60
    store.publish(1, np.full(size, 1, dtype=np.float32))
    shared, _ = store.answer_get(Get("", 0, 0, F4, shared_memory.host_identity()))
    assert isinstance(shared, SharedWeights)
    reader, mine, versions = SharedWeightsReader(shared, size), np.zeros(size, dtype=np.float32), [0]

    def write() -> None:
        for version in range(2, last + 1):
            store.answer_get(Get("", 0, 0, F4, shared_memory.host_identity()))
            store.publish(version, np.full(size, version, dtype=np.float32))

    writer = threading.Thread(target=write)
    writer.start()
    while versions[-1] < last:
        version = reader.read(mine)
        assert (mine == version).all()
        assert version >= versions[-1]
        versions.append(version)
    writer.join()
    reader.close()
    store.close()


BF2_MAX = 2.0**127 * (1 + 127 / 128)
"""Larger numbers are rounded to infinity."""


@given(st.lists(st.floats(-BF2_MAX, BF2_MAX, width=32), min_size=1, max_size=40))
def test_bfloat16_is_torch_s_own(values: list[float]) -> None:
    import torch

    arena = np.array(values, dtype=np.float32)
    ours = loaded(BF2, to_bf2(arena).data.cast("B"), len(arena))
    assert np.array_equal(ours, torch.from_numpy(arena).to(torch.bfloat16).float().numpy())


def test_a_checksum_is_the_sum_of_the_words_whatever_the_length() -> None:
    assert checksum(memoryview(b"")) == "0" * 16
    assert checksum(memoryview(bytes([1] + [0] * 7 + [2]))) == f"{3:016x}"
    assert checksum(memoryview(b"\xff" * 16)) == f"{2**64 - 2:016x}"


@pytest.mark.parametrize(("codec", "size", "floats"), [(F4, 4, 2), (BF2, 4, 1), ("zip", 4, 1), (F4, 0, 0)])
def test_weights_of_another_size_or_codec_are_refused(codec: str, size: int, floats: int) -> None:
    with pytest.raises(ValueError, match="are not"):
        loaded(codec, memoryview(bytes(size)), floats)


@pytest.mark.parametrize("codec", [F4, BF2])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_weights_that_are_not_finite_leave_the_old_ones(codec: str, bad: float) -> None:
    encoded = np.zeros(100_000, dtype=np.float32)
    encoded[-1] = bad
    mine = np.ones_like(encoded)
    with pytest.raises(ValueError, match="not finite"):
        load(codec, (to_bf2(encoded) if codec == BF2 else encoded).data.cast("B"), mine)
    assert (mine == 1.0).all()


def test_a_version_never_names_two_policies() -> None:
    store = PolicyStore(epoch=6, token="", version=7)
    with pytest.raises(ValueError, match="does not follow"):
        store.publish(7, np.zeros(1, dtype=np.float32))
