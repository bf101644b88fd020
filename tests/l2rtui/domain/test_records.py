"""Records passed from services to screens are values: equal by content, and immutable."""

from __future__ import annotations

import pytest

from l2rtui.domain.log import CommandOutput, LogLine, LogQuery
from l2rtui.domain.simulator import Simulator
from l2rtui.domain.status import KubeEvent
from l2rtui.domain.volume import FileEntry, Volume


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (LogQuery(follow=True), "follow"),
        (LogLine(1.0, "pod", "text"), "text"),
        (CommandOutput(0, b"", b""), "code"),
        (KubeEvent(1.0, "Warning", "BackOff", "Pod p", "restarting"), "reason"),
        (Simulator(0, state="ready"), "state"),
        (Volume("results"), "phase"),
        (FileEntry("metrics.jsonl", "file", 7, 1.0), "size"),
    ],
)
def test_records_are_values(record, field):
    assert record == type(record)(*(getattr(record, name) for name in record.__struct_fields__))
    assert len({record, record}) == 1
    with pytest.raises(AttributeError):
        setattr(record, field, None)
