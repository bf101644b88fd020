"""Decoders of outside data with a small budget: no traceback for any input."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import guidance
from tests.fuzz.mutation import mutated, nested
from tests.fuzz.targets import TARGETS, Target


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_correct_input_is_accepted(target: Target):
    for seed in target.seeds():
        target(seed)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_input_of_the_corpus_is_a_value_or_a_sentence(target: Target):
    for data in guidance.stored(target.name):
        target(data)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(number=st.integers(0, 2**32))
def test_whatever_comes_is_a_value_or_a_sentence(target: Target, number: int):
    rng = random.Random(number)
    target(mutated(rng, target.seeds()))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_deeply_nested_text_is_an_error_like_any_other(target: Target):
    rng, seeds = random.Random(1), target.seeds()
    for text in [text for seed in seeds for text in nested(rng, seed, 100 // len(seeds) or 1)]:
        target(text)
