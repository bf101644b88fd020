"""Progress lines from an Engine's message stream of a build, pull or push.

The Engine sends status 200 before it starts the work; success or failure is a message in the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from l2rtui.domain.quantity import format_bytes

_TAIL_LINES = 15
_STEP_BYTES = 256 << 20
"""Where lines cannot be overwritten, one line for so many bytes: a layer of gigabytes takes many minutes."""
_DONE = ("Pushed", "Layer already exists", "Mounted from", "Already exists", "Pull complete")


class Progress(Struct, frozen=True):
    """One line of progress."""

    text: str
    is_step: bool
    """A new step, for logs where lines cannot be overwritten; False for changed byte counts."""


class BuildStage(Struct, frozen=True):
    """One image to build: source tree, its Dockerfile, name of the result, and settings of the builder."""

    folder: str
    dockerfile: str
    tag: str
    args: Mapping[str, str]
    labels: Mapping[str, str]
    network: str = ""


class BuildFailedError(Exception):
    """Failure of a build or push, with the text of the builder or Engine."""


class StreamTracker:
    """State of one message stream."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._layers: dict[str, tuple[str, int, int]] = {}
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._steps = 0
        self.aux: dict[str, Any] = {}
        """The result: the image's id, or the digest of a pushed image."""
        self.present: set[str] = set()
        """Layers that the registry already has."""

    @property
    def last_lines(self) -> str:
        """Last lines of a build's output."""
        return "\n".join(self._lines)

    @property
    def layers(self) -> int:
        """Number of layers in the stream."""
        return len(self._layers)

    def add_message(self, item: Mapping[str, Any]) -> Progress | None:
        """Add one message of the stream; return its progress, None without news. Raises BuildFailedError."""
        if error := item.get("error"):
            detail = item.get("errorDetail")
            message = detail.get("message") if isinstance(detail, dict) else None
            raise BuildFailedError(str(message or error).strip())
        if isinstance(aux := item.get("aux"), dict):
            self.aux |= aux
        if text := str(item.get("stream") or "").strip():
            self._lines += text.splitlines()
            return Progress(text.splitlines()[-1], text.startswith("Step "))
        if (status := str(item.get("status") or "")) and (layer := str(item.get("id") or "")):
            return self._layer(layer, status, item.get("progressDetail"))
        return None

    def _layer(self, layer: str, status: str, detail: Any) -> Progress:
        before, current, total = self._layers.get(layer, ("", 0, 0))
        if isinstance(detail, dict) and "current" in detail:
            # Some messages of a layer omit its size, so the largest so far counts.
            current, total = int(detail["current"]), max(int(detail.get("total") or 0), total)
        self._layers[layer] = (status, current, total)
        if status == "Layer already exists":
            self.present.add(layer)
        if status.startswith(_DONE) or status.startswith("Retrying"):
            return Progress(f"{self._verb}: {layer} {status[0].lower()}{status[1:]}", status != before)
        done = sum(state.startswith(_DONE) for state, _, _ in self._layers.values())
        # A layer may end up larger than its announced size, compressed or not.
        moved = sum(min(sent, size) for _, sent, size in self._layers.values())
        all_bytes = sum(total for _, _, total in self._layers.values())
        size = f", {format_bytes(moved)} of {format_bytes(all_bytes)}" if all_bytes else ""
        last, self._steps = self._steps, max(self._steps, moved // _STEP_BYTES)
        return Progress(f"{self._verb}: {done} of {len(self._layers)} layers{size}", self._steps > last)
