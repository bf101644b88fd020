"""Memory of a learner's data, and its place."""

from __future__ import annotations

import pytest

from runtime.base.replay_memory import choose_place, data_memory, margin_rows, memory_of_settings, size_text

GIB = 2**30
PICTURE = 84 * 84 * 4


def test_a_replay_of_pictures_holds_each_observation_once() -> None:
    memory = memory_of_settings({}, PICTURE, 8)
    assert 500_000 * PICTURE < memory.replay_bytes < 1.15 * 500_000 * PICTURE
    assert memory.rollout_bytes == 0
    assert memory.batch_bytes == 2 * 256 * (2 * PICTURE + 8 + 14)


def test_a_short_run_touches_only_what_it_fills() -> None:
    memory = memory_of_settings({"total_env_steps": 10_000}, PICTURE, 8)
    assert memory.filled_bytes < memory.replay_bytes / 40
    assert memory.replay_bytes == memory_of_settings({}, PICTURE, 8).replay_bytes


def test_rollouts_are_counted_for_methods_that_have_them() -> None:
    memory = memory_of_settings({"algorithm": "ppo", "ppo": {"batch_steps": 4_096}}, PICTURE, 4)
    assert memory.replay_bytes == memory.batch_bytes == 0
    assert 3 * 4_096 * PICTURE < memory.rollout_bytes < 3.2 * 4_096 * PICTURE
    assert memory_of_settings({"algorithm": "impala"}, 100, 4).rollout_bytes
    assert memory_of_settings({"algorithm": "impala", "impala": {"sends_gradients": True}}, 100, 4).host_bytes == 0
    assert memory_of_settings({"algorithm": "impala", "impala": {"sends_gradients": True}}, 100, 4).host_bytes == 0


@pytest.mark.parametrize(
    ("setting", "device_free", "host_free", "place"),
    [
        ("auto", 80 * GIB, 64 * GIB, "device"),
        ("auto", 16 * GIB, 64 * GIB, "host"),
        ("auto", None, 64 * GIB, "host"),
        ("auto", 16 * GIB, None, "host"),
        ("host", 80 * GIB, 64 * GIB, "host"),
        ("device", 80 * GIB, 8 * GIB, "device"),
        ("device", None, 64 * GIB, "host"),
    ],
)
def test_the_data_lives_on_the_card_if_it_fits_and_else_on_the_host(setting, device_free, host_free, place) -> None:
    assert choose_place(setting, memory_of_settings({}, PICTURE, 8), device_free, host_free) == place


@pytest.mark.parametrize(
    ("setting", "device_free", "host_free", "sentence"),
    [
        ("auto", 8 * GIB, 10 * GIB, r"take 14.* GiB and the card has 8.0 GiB free and the host 10.0 GiB, .*lower"),
        ("auto", None, 10 * GIB, r"take 14.* GiB and the host 10.0 GiB; lower replay_capacity"),
        ("device", 8 * GIB, 64 * GIB, r"the card has 8.0 GiB free, of .*or set replay_device to auto"),
        ("host", 80 * GIB, 10 * GIB, r"and the host 10.0 GiB; lower"),
    ],
)
def test_what_fits_nowhere_is_refused_with_the_bytes_and_the_setting(setting, device_free, host_free, sentence):
    with pytest.raises(ValueError, match=sentence):
        choose_place(setting, memory_of_settings({}, PICTURE, 8), device_free, host_free)


def test_an_update_is_counted_by_the_layers_of_its_networks() -> None:
    """By hand: 16 rows of 20x20x3 through one convolution of 4 channels, side 8 and stride 4, and a layer of 10."""
    pictures, weights = [(20, 20, 3)], 8 * 8 * 3 * 4 + (4 * 4 * 4 + 2) * 10
    settings = {"convolutions": [[4, 8, 4]], "hidden": [10], "sac": {"batch_size": 16}}
    memory = memory_of_settings(settings, 8 + 1_200, 8, pictures)
    row = 3.5 * (1_200 + 64) + 6 * (66 + 10)
    assert memory.update_bytes == 4 * 16 * row + 4 * 16 * weights
    assert memory_of_settings({**settings, "precision": "bfloat16"}, 1_208, 8, pictures).update_bytes == (
        2 * 16 * row + 4 * 16 * weights
    )
    assert memory.reserve_bytes == 4 * GIB
    large = memory_of_settings({"sac": {"batch_size": 16_384}}, PICTURE, 8, [(84, 84, 4)])
    assert large.reserve_bytes == GIB + large.update_bytes > 10 * GIB
    assert choose_place("auto", large, large.device_bytes + large.reserve_bytes, None) == "device"
    assert choose_place("auto", large, large.device_bytes + large.reserve_bytes - 1, None) == "host"


def test_passes_and_minibatches_of_on_policy_methods_count_as_they_are() -> None:
    def counted(**method: object) -> int:
        return memory_of_settings({"algorithm": "ppo", "hidden": [10], "ppo": method}, 80, 4).update_bytes

    by_gradient, by_value, weights = 6 * 30, 30, 4 * 16 * 200
    assert counted() == 4 * (256 * by_gradient + 2_048 * by_value) + weights
    assert counted(minibatch_size=64, batch_steps=512) == 4 * (64 * by_gradient + 512 * by_value) + weights
    impala = memory_of_settings({"algorithm": "impala", "hidden": [10]}, 80, 4).update_bytes
    assert impala == 4 * 1_024 * by_gradient + weights
    assert memory_of_settings({"algorithm": "impala", "impala": {"sends_gradients": True}}, 80, 4).update_bytes == 0


def test_priorities_are_part_of_a_replay() -> None:
    even, weighted = ({"replay_capacity": 1_000, "sac": {"prioritised": value}} for value in (False, True))
    assert memory_of_settings(weighted, 80, 4).replay_bytes - memory_of_settings(even, 80, 4).replay_bytes == 24_000


def test_rollouts_that_fit_nowhere_name_their_setting() -> None:
    with pytest.raises(ValueError, match=r"rollouts and batches take .* lower batch_steps"):
        choose_place("auto", data_memory(observation_bytes=10**6, action_bytes=4, batch_steps=10**5), None, GIB)


def test_sizes_for_people() -> None:
    assert size_text(26 * GIB) == "26.0 GiB"
    assert size_text(1) == "1 MiB"
    assert margin_rows(10, 100) == 10
    assert margin_rows(10**6, 2**20) == 64
