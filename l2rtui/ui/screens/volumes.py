"""Volumes and the files in them: look round, fetch, put, without a login to the storage.

The pod through which one looks is there while a volume is open here. A transfer has one of its own, so that it goes
on when this screen is closed; one that was cut goes on where it ended when it is asked for again.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from l2rtui.backends.storage import FileEntry, Storing, Volume, VolumeFiles, VolumeStore
from l2rtui.config import user_name
from l2rtui.domain.quantity import format_bytes
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import BackendError, L2RError
from l2rtui.services import volumes
from l2rtui.ui import twins
from l2rtui.ui.keys import Place, bindings
from l2rtui.ui.link import Link
from l2rtui.ui.screens.listing import Listing
from l2rtui.ui.text import NOTHING, Span, Tone, age
from l2rtui.ui.widgets.field import Field
from l2rtui.ui.widgets.rows import Column, Row
from l2rtui.ui.widgets.virtual_table import VirtualTable

VOLUME_COLUMNS: Final = (
    Column("name", "volume", most=40),
    Column("size", "size", most=8, right=True),
    Column("phase", "phase", most=12),
    Column("access", "access", most=12),
    Column("class", "class", most=16, rank=2),
    Column("mounted", "mounted by", most=200),
)
FILE_COLUMNS: Final = (
    Column("name", "name", most=72),
    Column("size", "size", most=10, right=True),
    Column("changed", "changed", most=8, right=True),
)
_DOWNLOAD: Final = "Download to which folder or file of this machine?   enter begin   esc back"
_UPLOAD: Final = "Upload which file or folder of this machine to here?   enter begin   esc back"


class VolumesScreen(Listing[None]):
    """The volumes first; enter goes into one, and into its folders."""

    PLACE = Place.VOLUME
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(PLACE)]
    FACES = ("enter open",)

    def __init__(self, link: Link) -> None:
        super().__init__("volumes", link, VirtualTable(VOLUME_COLUMNS, empty="Asking.", id="list"), Field("path"))
        self._list = self._table
        self._files = VirtualTable(FILE_COLUMNS, empty="Opening.", clock=link.clock, id="files")
        self._files.display = False
        self._volume = self._path = ""
        self._open: VolumeFiles | None = None
        self._left = asyncio.Event()
        self._kinds: dict[str, str] = {}
        self._is_upload = False

    def compose(self) -> ComposeResult:
        """Title, rows, how far a transfer is, the keys."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            yield self._list
            yield self._files
            yield Static(id="progress")
            yield Static(id="command")
            yield self._field
            yield Static(id="hint")

    def on_mount(self) -> None:
        """Ask which there are."""
        self._tell()
        self._list.focus()
        self.action_again()

    def on_unmount(self) -> None:
        """Let the pod of the open volume go."""
        self._left.set()

    # --- looking round -----------------------------------------------------------------------------------------
    def action_again(self) -> None:
        """Look again at what is shown."""
        work = self._look() if self._volume else self._ask()
        what = f"the files of {self._volume}" if self._volume else "the volumes"
        self._link.background.start(work, group="volumes", what=what, is_exclusive=True)

    async def _ask(self) -> None:
        try:
            found = await self._store().list()
        except L2RError as error:
            self._list.empty_text = sanitize(f"{error.message} {error.hint}".strip())
            self._list.refresh()
            return
        if self.is_attached:
            self._list.empty_text = "There are no volumes. `l2rtui volume create` makes one."
            self._list.set_rows([_volume_row(one) for one in found])
            self._list.refresh()

    async def _look(self) -> None:
        if self._open is None:
            return
        path = self._path
        found = await self._open.entries(path)
        if self.is_attached and path == self._path:
            self._kinds = {one.path: one.kind for one in found}
            self._files.empty_text = "Nothing lies here."
            self._files.set_rows([_file_row(one, self._link.clock()) for one in found])
            self._files.refresh()

    @on(VirtualTable.Chosen)
    def _chosen(self, event: VirtualTable.Chosen) -> None:
        event.stop()
        if event.table is self._list:
            self._enter(event.key)
        elif self._kinds.get(event.key) == "folder":
            self._go(posixpath.join(self._path, event.key))

    @on(VirtualTable.CursorMoved)
    def _moved(self) -> None:
        self._tell()

    def _enter(self, volume: str) -> None:
        self._volume, self._path, self._left = volume, "", asyncio.Event()
        self._show_files(is_shown=True)
        self._link.background.start(self._hold(volume, self._left), group="volume", what=f"opening {volume}")

    async def _hold(self, volume: str, left: asyncio.Event) -> None:
        """Keep a volume open until it is left."""
        try:
            async with self._store().files(volume) as files:
                if not left.is_set():
                    self._open = files
                    await self._look()
                    await left.wait()
        except L2RError:
            if not left.is_set() and self.is_attached:
                self._leave()
            raise

    def _go(self, path: str) -> None:
        self._path = path
        self._files.set_rows([])
        self._tell()
        self.action_again()

    def _leave(self) -> None:
        """Back to the volumes."""
        self._left.set()
        self._open, self._volume, self._path = None, "", ""
        self._show_files(is_shown=False)
        self.action_again()

    def _show_files(self, *, is_shown: bool) -> None:
        self._files.empty_text = "Opening."
        self._files.set_rows([])
        self._files.display, self._list.display = is_shown, not is_shown
        self._table = self._files if is_shown else self._list
        self._table.focus()
        self._tell()

    def action_up(self) -> None:
        """The folder above; above the root are the volumes."""
        if self._path:
            self._go(posixpath.dirname(self._path))
        elif self._volume:
            self._leave()

    def _tell(self) -> None:
        where = f"{self._volume}:/{self._path}" if self._volume else "Volumes"
        self.show("title", [(Span(sanitize(where), Tone.STRONG),)])
        super()._tell()

    @property
    def _asking(self) -> str:
        asked = _UPLOAD if self._is_upload else _DOWNLOAD
        return asked if self._field.display else ""

    @property
    def _twin(self) -> str:
        typed = self._field.value.strip() or "PATH"
        if self._field.display and self._is_upload:
            return twins.volume("put", typed, f"{self._volume}:{self._beside(typed)}")
        if self._field.display:
            return twins.volume("get", f"{self._volume}:{self._chosen_path}", typed)
        return twins.volume("files", f"{self._volume}:{self._path}") if self._volume else twins.volume("ls")

    # --- transfers ---------------------------------------------------------------------------------------------
    def action_download(self) -> None:
        """Ask where to."""
        if self._files.cursor_key is not None and self._volume:
            self._ask_path(".", is_upload=False)

    def action_upload(self) -> None:
        """Ask what."""
        if self._volume:
            self._ask_path("", is_upload=True)

    def _ask_path(self, value: str, *, is_upload: bool) -> None:
        self._is_upload = is_upload
        self._open_field(value)

    @on(Input.Changed)
    def _typing(self) -> None:
        self._tell()

    @property
    def _chosen_path(self) -> str:
        """What the cursor is on, from the root of the volume."""
        return posixpath.join(self._path, self._files.cursor_key or "")

    def _beside(self, typed: str) -> str:
        """Where a file or folder of this machine goes: into the folder that is shown, under its own name."""
        return posixpath.join(self._path, here(typed).name)

    @on(Input.Submitted)
    def _path_typed(self, event: Input.Submitted) -> None:
        typed = event.value.strip()
        self._close_field()
        if not typed:
            return
        path_here, volume = here(typed), self._volume
        if self._is_upload:
            path = self._beside(typed)
            self._carry(volume, self._upload(volume, path_here, path), f"uploading {path_here} to {volume}")
        elif self._files.cursor_key is not None:
            path = self._chosen_path
            self._carry(volume, self._download(volume, path, path_here), f"downloading {path} of {volume}")

    def _carry(self, volume: str, work: Coroutine[Any, Any, None], what: str) -> None:
        async def carried() -> None:
            self._progress(f"opening {volume}", is_step=True)
            try:
                with self._link.background.busy(what):
                    await work
            finally:
                self._progress("", is_step=True)

        self._link.background.start(carried(), group="transfer", what=what)

    async def _download(self, volume: str, path: str, target: Path) -> None:
        async with self._store().files(volume) as files:
            told = await volumes.download(files, path, target, self._progress)
        self._link.background.say(f"{told}, of {volume}.")

    async def _upload(self, volume: str, source: Path, path: str) -> None:
        async with self._store().files(volume) as files:
            told = await volumes.upload(files, source, path, self._progress)
        self._link.background.say(f"{volume}: {told}.")
        if self.is_attached and self._volume == volume:
            self.action_again()

    def _progress(self, text: str, *, is_step: bool) -> None:  # noqa: ARG002  (a screen shows each)
        if self.is_attached:
            self.show("progress", [(Span(sanitize(text), Tone.ACCENT),)] if text else [])

    def _store(self) -> VolumeStore:
        backend: object = self._link.backend
        if not isinstance(backend, Storing):
            raise BackendError(
                f"The {self._link.backend.name} backend has no volumes: what runs keep lies in plain folders."
            )
        return backend.volumes(user_name())


def here(typed: str) -> Path:
    """A path of this machine, from its root."""
    # pathlib's own raise for a user that there is not, and for links in a circle: typing comes across both.
    return Path(os.path.abspath(os.path.expanduser(typed)))  # noqa: PTH100, PTH111


def _volume_row(one: Volume) -> Row:
    is_bound = one.phase == "Bound"
    mounted = ", ".join(one.mounted_by) or one.reason
    cells = (
        Span(sanitize(one.name), Tone.STRONG),
        Span(format_bytes(one.size_bytes)),
        Span(sanitize(one.phase) or NOTHING, Tone.OK if is_bound else Tone.WARN),
        Span(sanitize(",".join(one.modes)) or NOTHING),
        Span(sanitize(one.storage_class) or NOTHING, Tone.DIM),
        Span(sanitize(mounted) or NOTHING, Tone.DIM if is_bound else Tone.WARN),
    )
    sort = (one.name, one.size_bytes, one.phase, ",".join(one.modes), one.storage_class, mounted)
    return Row(one.name, cells, sort, is_fault=not is_bound)


def _file_row(one: FileEntry, now: float) -> Row:
    is_folder = one.kind == "folder"
    cells = (
        Span(sanitize(one.path) + ("/" if is_folder else ""), Tone.STRONG if is_folder else Tone.PLAIN),
        Span(NOTHING if is_folder else format_bytes(one.size)),
        Span(age(max(0.0, now - one.changed)), Tone.DIM),
    )
    return Row(one.path, cells, ((not is_folder, one.path), one.size, one.changed))
