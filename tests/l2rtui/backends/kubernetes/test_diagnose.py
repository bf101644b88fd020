"""Result of the probe of the binding mode, in one sentence."""

from __future__ import annotations

import pytest

from l2rtui.backends.kubernetes.actions.diagnose import interpret_probe
from l2rtui.domain.node import Gpu
from l2rtui.domain.preflight import Severity

GPU = Gpu("n1", 3)


@pytest.mark.parametrize(
    ("log", "weight", "words", "hint"),
    [
        (
            "l2r-probe end\n",
            Severity.WARNING,
            "no GPU device appears: a pod with NVIDIA_VISIBLE_DEVICES=3 on n1",
            "--binding",
        ),
        ("l2r-probe device /dev/nvidia3\nl2r-probe end\n", Severity.OK, "sees /dev/nvidia3 alone", "zero"),
        (
            "l2r-probe device /dev/nvidia0\nl2r-probe device /dev/nvidia3\nl2r-probe smi GPU 0: A\nl2r-probe end",
            Severity.WARNING,
            "other GPUs are not hidden",
            "same",
        ),
        ("l2r-probe device /dev/nvidia1\nl2r-probe end\n", Severity.WARNING, "which is another GPU", "--binding"),
        ("something else\n", Severity.WARNING, "no answer that can be read", ""),
        ("", Severity.WARNING, "no answer that can be read", ""),
    ],
)
def test_the_probe_is_judged_honestly(log, weight, words, hint):
    found = interpret_probe(log, GPU)
    assert found.severity is weight
    assert words in found.sentence
    assert hint in found.hint
