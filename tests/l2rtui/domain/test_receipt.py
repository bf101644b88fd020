"""The receipt of a destroy in one sentence."""

from __future__ import annotations

from l2rtui.domain.receipt import Leftover, Receipt


def test_an_empty_receipt_counts_the_objects_that_were_removed():
    assert Receipt("racing", 7, (), 1.25).sentence == "nothing left of racing (7 objects, 0 leaks, 1.2 s)"


def test_a_run_that_was_only_queued_is_out_of_the_queue():
    sentence = Receipt("racing", 1, (), 0.1, was_queued=True).sentence
    assert sentence == "racing was queued: it is out of the queue, and was never launched"


def test_every_leftover_is_named_with_its_reason():
    left = (Leftover("Pod", "racing-w-0", "its node is gone"), Leftover("Lease", "phortx1-0-0", "forbidden"))
    sentence = Receipt("racing", 7, left, 1.0).sentence
    assert sentence == "2 left of racing: Pod racing-w-0 (its node is gone), Lease phortx1-0-0 (forbidden)"


def test_objects_of_unknown_owner_are_listed_up_to_five():
    possible = tuple(Leftover("Container", f"c{number}", "started meanwhile") for number in range(7))
    sentence = Receipt("racing", 7, (), 1.0, possible=possible).sentence
    assert sentence.startswith(
        "nothing left of racing (7 objects, 0 leaks, 1.0 s); perhaps of racing: Container c0 ("
    )
    assert sentence.endswith("Container c4 (started meanwhile), 2 more")
