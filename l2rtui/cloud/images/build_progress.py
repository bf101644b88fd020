"""What an Engine tells while it builds, pulls and pushes, as lines that people can follow.

The Engine answers 200 before it has done anything; whether it went well stands in the stream, and is read here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from l2rtui.domain.quantity import format_bytes

_KEPT_LINES = 15
_DONE = ("Pushed", "Layer already exists", "Mounted from", "Already exists", "Pull complete")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far something is.

    Attributes:
        is_step: Worth a line of its own where nothing can be overwritten: no mere change of numbers.
    """

    text: str
    is_step: bool


class EngineError(Exception):
    """The Engine says in its stream that it has failed; the text is its own."""


class Tracker:
    """Follows one stream.

    Attributes:
        aux: What the Engine said of the result: the image's id, or the digest of what was pushed.
        present: Layers that the registry had already.
    """

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._layers: dict[str, tuple[str, int, int]] = {}
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.aux: dict[str, Any] = {}
        self.present: set[str] = set()

    @property
    def last_lines(self) -> str:
        """The end of what a build has written."""
        return "\n".join(self._lines)

    @property
    def layers(self) -> int:
        """How many layers were spoken of."""
        return len(self._layers)

    def take(self, item: Mapping[str, Any]) -> Progress | None:
        """Take one message of the stream; None when it says nothing new.

        Raises:
            EngineError: it is a failure.
        """
        if error := item.get("error"):
            detail = item.get("errorDetail")
            raise EngineError(str((detail.get("message") if isinstance(detail, dict) else None) or error).strip())
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
            current, total = int(detail["current"]), max(int(detail.get("total") or 0), total)
        self._layers[layer] = (status, current, total)
        if status == "Layer already exists":
            self.present.add(layer)
        if status.startswith(_DONE) or status.startswith("Retrying"):
            return Progress(f"{self._verb}: {layer} {status[0].lower()}{status[1:]}", status != before)
        done = sum(state.startswith(_DONE) for state, _, _ in self._layers.values())
        moved = sum(min(now, whole) for _, now, whole in self._layers.values())
        whole = sum(total for _, _, total in self._layers.values())
        size = f", {format_bytes(moved)} of {format_bytes(whole)}" if whole else ""
        return Progress(f"{self._verb}: {done} of {len(self._layers)} layers{size}", is_step=False)
