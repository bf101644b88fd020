"""TensorBoard event files of a learner."""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.base.metrics import AppendFile


class TensorBoardCurves:
    """Event file with every number of a record as a scalar over env steps.

    The file (TFRecords of `Event` messages) is written here because tensorboardX's writer uses a thread: when a
    full disk ends that thread, adding further points blocks forever.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ImportError if tensorboardX, which defines the messages, is not installed."""
        from tensorboardX.proto.event_pb2 import Event

        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{now:.6f}.{socket.gethostname()}"  # TensorBoard reads them in this order
        self._file = AppendFile(folder / name)
        self._append(Event(wall_time=now, file_version="brain.Event:2"))

    def add(self, kind: str, fields: Mapping[str, Any], env_steps: int) -> None:
        """Add the numbers of one record."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=f"{kind}/{name}", simple_value=value)
            for name, value in fields.items()
            if isinstance(value, int | float) and math.isfinite(value)
        ]
        self._append(Event(wall_time=time.time(), step=env_steps, summary=Summary(value=values)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, event: Any) -> None:
        """Append an Event as a TFRecord: its length and its bytes, each followed by its masked CRC-32C."""
        from tensorboardX.record_writer import masked_crc32c

        parts = struct.pack("<Q", event.ByteSize()), event.SerializeToString()
        self._file.append(b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in parts))
