"""Hooks of the build: the commit that a wheel is built from, and addresses of README.md that work anywhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_TARGET = re.compile(r"(?P<image>!?)\[(?P<text>[^]]*)\]\((?P<path>[^)#:]+)(?P<anchor>#[^)]*)?\)")


class Readme(MetadataHookInterface):
    """README.md with absolute addresses: pictures and links of a package index have no source tree around them."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme of the metadata."""
        text = Path(self.root, "README.md").read_text("utf-8")
        source = metadata["urls"]["Source"]

        def absolute(match: re.Match[str]) -> str:
            kind = "raw" if match["image"] else "blob"
            anchor = match["anchor"] or ""
            return f"{match['image']}[{match['text']}]({source}/{kind}/v{self._version()}/{match['path']}{anchor})"

        metadata["readme"] = {"content-type": "text/markdown", "text": _TARGET.sub(absolute, text)}

    def _version(self) -> str:
        match = re.search(r'__version__ = "(.+)"', Path(self.root, "l2rtui/__init__.py").read_text("utf-8"))
        return match[1] if match else "0"


class Commit(BuildHookInterface[Any]):
    """A file ``l2rtui/COMMIT``, which ``l2rtui --version`` prints; none outside of git."""

    PLUGIN_NAME = "custom"
    _folder = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file; an editable install reads git itself, and the tree of a source archive has the file."""
        root = Path(self.root)
        if version == "editable" or (root / "l2rtui" / "COMMIT").exists():
            return
        argv = ["git", "-C", self.root, "rev-parse", "HEAD"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
        except OSError:  # no git
            return
        if done.returncode == 0 and (root / ".git").exists():  # a tree without git may lie in another repository
            self._folder = tempfile.mkdtemp()
            path = Path(self._folder, "COMMIT")
            path.write_text(done.stdout, "utf-8")
            build_data["force_include"][str(path)] = "l2rtui/COMMIT"

    def finalize(self, *_: object) -> None:
        """Remove the file: the artefact has it."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
