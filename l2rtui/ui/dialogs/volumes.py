"""Dialog of volumes and their files: browse, download, upload, without a login to the storage.

A helper pod serves the open volume while it is open here. Each transfer has its own pod, so it continues after the
dialog is closed. An interrupted transfer resumes where it ended when it is started again.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from textual import on
from textual.widgets import Input

from l2rtui.backends.base import VolumeFiles, VolumeStore
from l2rtui.domain.quantity import age, format_bytes
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.volume import FileEntry, Volume
from l2rtui.errors import BackendError, L2RError
from l2rtui.services import volumes
from l2rtui.tables.resources import FILES, VOLUMES, is_bound, is_folder
from l2rtui.ui.dialogs.list_dialog import ListDialog
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import NOTHING, Line, Span, TextStyle
from l2rtui.ui.widgets.prompt_input import PromptInput
from l2rtui.ui.widgets.table_model import Row, columns_of, row_of
from l2rtui.ui.widgets.virtual_table import VirtualTable

_DOWNLOAD: Final = "Download to which folder or file of this machine?   enter begin   esc back"
_UPLOAD: Final = "Upload which file or folder of this machine to here?   enter begin   esc back"
_OF_FILES: Final = frozenset(("up", "download", "upload"))
"""Actions that need an open volume."""


class VolumesScreen(ListDialog[None]):
    """Volumes; enter opens a volume or a folder."""

    KEY_CONTEXT = KeyContext.VOLUME
    BINDINGS = bindings(KEY_CONTEXT)
    ROW_HINTS = ("enter open",)
    ROW_ACTIONS = frozenset(("download",))

    def __init__(self, ctx: AppContext) -> None:
        super().__init__("volumes", ctx, columns_of(VOLUMES), PromptInput("path"), table_id="list")
        self._list = self._table
        self._files = VirtualTable(columns_of(FILES), empty="Opening.", clock=ctx.clock, id="files")
        self._files.display = False
        self._volume = self._path = ""
        self._open: VolumeFiles | None = None
        self._left = asyncio.Event()
        self._kinds: dict[str, str] = {}

    def _is_offered(self, action: str) -> bool:
        return super()._is_offered(action) and (bool(self._volume) or action not in _OF_FILES)

    def _tables(self) -> tuple[VirtualTable, ...]:
        return self._list, self._files

    def on_unmount(self) -> None:
        """Release the pod that serves the open volume."""
        self._left.set()

    # --- browsing -----------------------------------------------------------------------------------------
    @property
    def _title(self) -> Line:
        location = f"{self._volume}:/{self._path}" if self._volume else "Volumes"
        return (Span(sanitize(location), TextStyle.STRONG),)

    @property
    def _subject(self) -> str:
        return f"the files of {self._volume}" if self._volume else "the volumes"

    async def _load(self) -> None:
        await (self._load_files() if self._volume else self._load_volumes())

    async def _load_volumes(self) -> None:
        try:
            listed = await self._store().list()
        except L2RError as error:
            if not self._volume:
                self._show_error(error)
            return
        if self.is_open and not self._volume:  # otherwise a volume was opened, and its files are listed
            empty = "There are no volumes. `l2rtui volume create` makes one."
            self._show_rows([_volume_row(volume) for volume in listed], empty=empty)

    async def _load_files(self) -> None:
        if self._open is None:
            return
        location = self._volume, self._path
        entries = await self._open.entries(self._path)
        # The answer to an earlier request must not replace the rows shown since.
        if self.is_open and location == (self._volume, self._path):
            self._kinds = {entry.path: entry.kind for entry in entries}
            self._show_rows([_file_row(entry, self._ctx.clock()) for entry in entries], empty="Nothing lies here.")

    @on(VirtualTable.Chosen)
    def _chosen(self, event: VirtualTable.Chosen) -> None:
        event.stop()
        if event.table is self._list:
            self._enter(event.key)
        elif self._kinds.get(event.key) == "folder":
            self._go(posixpath.join(self._path, event.key))

    def _enter(self, volume: str) -> None:
        # A new event for each volume: the session of the previous one may still be closing and watches its own
        # event.
        self._volume, self._path, self._left = volume, "", asyncio.Event()
        self._show_files(is_shown=True)
        self._ctx.background.start(self._hold(volume, self._left), group="volume", what=f"opening {volume}")

    async def _hold(self, volume: str, left: asyncio.Event) -> None:
        """Keep a volume open until the user leaves it."""
        try:
            async with self._store().files(volume) as files:
                if not left.is_set():
                    self._open = files
                    await self._load_files()
                    await left.wait()
        except L2RError:
            # An error after leaving concerns the removal of the pod: it is reported, but the list stays as it is.
            if not left.is_set() and self.is_open:
                self._leave()
            raise

    def _go(self, path: str) -> None:
        self._path = path
        self._files.set_rows([])
        self._update_texts()
        self.action_again()

    def _leave(self) -> None:
        """Return to the list of volumes."""
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
        self._update_texts()

    def action_up(self) -> None:
        """Go to the parent folder; from the root to the volumes."""
        if self._path:
            self._go(posixpath.dirname(self._path))
        elif self._volume:
            self._leave()

    @property
    def _command_line(self) -> str:
        typed = self._field.value.strip() or "PATH"
        if self._prompt == _UPLOAD:
            return self._ctx.command_line(("volume", "put", typed, f"{self._volume}:{self._upload_target(typed)}"))
        if self._prompt == _DOWNLOAD:
            return self._ctx.command_line(("volume", "get", f"{self._volume}:{self._chosen_path}", typed))
        listing = ("files", f"{self._volume}:{self._path}") if self._volume else ("ls",)
        return self._ctx.command_line(("volume", *listing))

    # --- transfers ---------------------------------------------------------------------------------------------
    def action_download(self) -> None:
        """Ask for the path to download to."""
        if self._files.cursor_key is not None and self._volume:
            self._ask(_DOWNLOAD, ".")

    def action_upload(self) -> None:
        """Ask for the file or folder to upload."""
        if self._volume:
            self._ask(_UPLOAD)

    @property
    def _chosen_path(self) -> str:
        """Path under the cursor, from the root of the volume."""
        return posixpath.join(self._path, self._files.cursor_key or "")

    def _upload_target(self, typed: str) -> str:
        """Target of an upload: the displayed folder, under the file's name."""
        return posixpath.join(self._path, local_path(typed).name)

    @on(Input.Submitted)
    def _path_typed(self, event: Input.Submitted) -> None:
        typed, is_upload = event.value.strip(), self._prompt == _UPLOAD
        self._close_field()
        if not typed:
            return
        path_here, volume = local_path(typed), self._volume
        if is_upload:
            path = self._upload_target(typed)
            self._carry(volume, self._upload(volume, path_here, path), f"uploading {path_here} to {volume}")
        elif self._files.cursor_key is not None:
            path = self._chosen_path
            self._carry(volume, self._download(volume, path, path_here), f"downloading {path} of {volume}")

    def _carry(self, volume: str, work: Coroutine[Any, Any, None], what: str) -> None:
        # In a separate session: leaving the volume or closing the dialog must not interrupt the transfer.
        async def carried() -> None:
            self._show_progress(f"opening {volume}")
            try:
                with self._ctx.background.busy(what):
                    await work
            finally:
                self._show_progress("")

        self._ctx.background.start(carried(), group="transfer", what=what)

    async def _download(self, volume: str, path: str, target: Path) -> None:
        async with self._store().files(volume) as files:
            result = await volumes.download(files, path, target, self._show_progress)
        self._ctx.background.say(f"{result}, of {volume}.")

    async def _upload(self, volume: str, source: Path, path: str) -> None:
        async with self._store().files(volume) as files:
            result = await volumes.upload(files, source, path, self._show_progress)
        self._ctx.background.say(f"{volume}: {result}.")
        if self.is_open and self._volume == volume:
            self.action_again()

    def _store(self) -> VolumeStore:
        backend = self._ctx.backend
        if backend.volumes is None:
            raise BackendError(
                f"The {backend.name} backend has no volumes: runs keep their files in plain folders."
            )
        return backend.volumes


def local_path(typed: str) -> Path:
    """Return an absolute path on this machine."""
    # pathlib raises for an unknown ~user and for circular links, both of which occur while a path is typed.
    return Path(os.path.abspath(os.path.expanduser(typed)))  # noqa: PTH100, PTH111


def _volume_row(volume: Volume) -> Row:
    return row_of(VOLUMES, volume.name, volume, is_fault=not is_bound(volume))


def _file_row(entry: FileEntry, now: float) -> Row:
    path, size = sanitize(entry.path), NOTHING if is_folder(entry) else format_bytes(entry.size)
    return row_of(
        FILES,
        entry.path,
        entry,
        # Folders come first.
        name=(
            Span(f"{path}/", TextStyle.STRONG) if is_folder(entry) else Span(path),
            (not is_folder(entry), entry.path),
        ),
        size=(Span(size), entry.size),
        changed=(Span(age(max(0.0, now - entry.changed)), TextStyle.DIM), entry.changed),
    )
