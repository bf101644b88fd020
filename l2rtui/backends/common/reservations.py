"""Reservations of the slots of one machine, stored in a file of the state folder or in memory."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from l2rtui.domain import reservations as rules
from l2rtui.domain.ledger import Ledger
from l2rtui.domain.node import Node, SlotId, SlotReservation
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.reservations import read_reservations, reservations_text
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.errors import BackendError, RefusedError
from runtime.base import bounded_json
from runtime.base.atomic_files import write_private

MOST_BYTES: Final = 1 << 20
"""Size from which a file is not read: no version of this program writes files that large."""


def refuse_unreservable(slots: Sequence[SlotId], ledger: Ledger, owner: str) -> None:
    """Refuse slots that another user holds or has reserved, or that do not exist.

    Raises:
        RefusedError: The message names the slot, and its holder.
    """
    if problem := rules.obstacle(slots, ledger, owner):
        sentence = f"{problem[0].upper()}{problem[1:]}, so nothing was reserved."
        raise RefusedError(sentence, "`l2rtui slots` shows who has what.")


class ReservationStore(ABC):
    """Reservations by node, whose texts are stored together.

    Args:
        lock: Lock that launches also hold while they take slots, so that only one of both gets a slot.
        snapshot: Returns the current state.
        owner: The user of this program.
    """

    def __init__(
        self,
        lock: Callable[[], AbstractAsyncContextManager[None]],
        snapshot: Callable[[], Awaitable[ClusterSnapshot]],
        owner: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._lock, self._snapshot, self._owner, self._clock = lock, snapshot, owner, clock

    @abstractmethod
    def read(self) -> Mapping[str, str]:
        """Return the texts by node."""

    @abstractmethod
    def write(self, texts: Mapping[str, str]) -> None:
        """Replace the stored texts. Raises BackendError."""

    def applied_to(self, node: Node) -> Node:
        """Return a node with its unexpired reservations."""
        text = self.read().get(node.name, "")
        reservations = read_reservations(text, self._clock(), self._owner) if text else ()
        return replace(node, reservations=reservations) if reservations else node

    async def reserve(self, slots: Sequence[SlotId], until: float, note: str = "") -> None:
        """Reserve slots for the user, all or none; earlier reservations of the same user on them are replaced.

        Raises:
            RefusedError: Another user has reserved or uses one of them. BackendError: Nothing can be stored.
        """
        async with self._lock():
            refuse_unreservable(slots, (await self._snapshot()).ledger, self._owner)
            self._change(slots, lambda present, own: rules.with_added(present, own, self._owner, until, note))

    async def release(self, slots: Sequence[SlotId]) -> None:
        """End the reservations of slots, regardless of who has made them. Raises BackendError."""
        async with self._lock():
            self._change(slots, rules.without)

    def _change(
        self,
        slots: Sequence[SlotId],
        edit: Callable[[tuple[SlotReservation, ...], list[SlotId]], tuple[SlotReservation, ...]],
    ) -> None:
        texts, now = dict(self.read()), self._clock()
        for node, own in rules.by_node(slots).items():
            texts[node] = reservations_text(edit(read_reservations(texts.get(node, ""), now, self._owner), own))
        self.write({node: text for node, text in texts.items() if text})


class MemoryReservations(ReservationStore):
    """Reservations that end with this program; ``changed`` is called after each change."""

    def __init__(
        self,
        changed: Callable[[], None],
        snapshot: Callable[[], Awaitable[ClusterSnapshot]],
        owner: str,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(nullcontext, snapshot, owner, clock)
        self._changed = changed
        self._texts: Mapping[str, str] = {}

    def read(self) -> Mapping[str, str]:
        """Return the texts by node."""
        return self._texts

    def write(self, texts: Mapping[str, str]) -> None:
        """Replace the texts."""
        self._texts = dict(texts)
        self._changed()


class ReservationFile(ReservationStore):
    """Reservations in a file, shared by all users of its folder."""

    def __init__(
        self,
        path: Path,
        lock: Callable[[], AbstractAsyncContextManager[None]],
        snapshot: Callable[[], Awaitable[ClusterSnapshot]],
        owner: str,
    ) -> None:
        super().__init__(lock, snapshot, owner)
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._texts: Mapping[str, str] = {}
        self._damage = ""

    def read(self) -> Mapping[str, str]:
        """Return the texts by node; empty if the file is missing or damaged, see `findings`."""
        try:
            status = self._path.stat()
        except OSError:
            self._stamp, self._texts, self._damage = None, {}, ""
            return self._texts
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp != self._stamp:
            self._stamp, self._texts = stamp, self._parsed(status.st_size)
        return self._texts

    def findings(self) -> tuple[Finding, ...]:
        """Return a warning if the file is damaged, since slots that others have reserved then look free."""
        self.read()
        if not self._damage:
            return ()
        sentence = f"{self._path} cannot be read ({self._damage}): it is not known which slots are reserved"
        return (Finding(Severity.WARNING, "reservations", sentence, "The next `l2rtui reserve` sets it aside."),)

    def _parsed(self, size: int) -> Mapping[str, str]:
        self._damage = ""
        try:
            if size > MOST_BYTES:
                raise bounded_json.UndecodableError(f"it has {size} bytes")
            texts: Mapping[str, str] = bounded_json.decode(self._path.read_bytes(), dict[str, str])
        except (OSError, ValueError) as error:
            self._damage = str(error)
            return {}
        return texts

    def write(self, texts: Mapping[str, str]) -> None:
        """Replace the whole file; a damaged file is kept under another name."""
        try:
            if self._damage:
                self._path.replace(self._path.with_name(f"{self._path.name}.damaged-{self._clock():.0f}"))
            write_private(self._path, json.dumps(texts))
        except OSError as error:
            raise BackendError(f"{self._path} was not written: {error.strerror}.") from error
