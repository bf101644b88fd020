"""The measurement of a GPU machine runs on a CPU too, so that it is whole when there is a card to measure."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.process]


@pytest.mark.parametrize("section", ["machine", "updates", "racing"])
def test_a_section_prints_its_rows_without_a_card(section: str) -> None:
    command = [sys.executable, "-m", "tests.bench.gpu", "--device", "cpu", "--tiny", "--sections", section]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line and not line.startswith("##")]
    assert len(rows) >= 2
    assert all(re.search(r"  \S+.* [\d.,]+", row) or row.startswith(("cpu", "Linux")) for row in rows), done.stdout
    assert "left out" not in done.stdout
