"""Limit of descriptors: what remains for files when connections have taken all others."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.base import descriptors
from runtime.base.atomic_files import write_atomic


@contextlib.contextmanager
def exhausted(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Leave no descriptor free below the soft limit, and eight above it; yield the limit."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    soft = max(taken[0], *map(int, os.listdir("/dev/fd"))) + 1  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))
    monkeypatch.setattr(descriptors, "_ceiling", soft + 8)
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield soft
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_file_is_written_with_the_reserve_when_no_descriptor_is_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with exhausted(monkeypatch) as limit:
        write_atomic(tmp_path / "x", b"data")
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        assert descriptors.usage() == (limit, limit)
    assert (tmp_path / "x").read_bytes() == b"data"


def test_scarcity_is_reported_once_and_stays_in_records_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = descriptors.DescriptorWatch()
    assert watch.record_fields() == {}
    with exhausted(monkeypatch) as limit:
        assert [watch.measure(float(second)) for second in range(3)] == [True, False, False]
    assert watch.is_scarce
    assert watch.record_fields() == {"descriptors_used": limit, "descriptors_limit": limit}
    assert (watch.is_due(2.5), watch.is_due(3.0)) == (False, True)
    assert watch.measure(3.0) is False
    assert watch.record_fields()
    watch.measure(20.0)
    assert watch.record_fields() == {}
