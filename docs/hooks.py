# ruff: noqa: INP001  (a hook of MkDocs, no package)
"""Hooks of MkDocs: the version in the footer, files outside `docs/` that pages link to, and weights of the search.

In the repository a page links to ``../manifests/rbac.yaml``. The site holds only files below `docs/`, so the hooks
copy this one to ``manifests/rbac.yaml`` of the site and shorten the link by one ``../``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"(?<=\]\()\.\./((?:\.\./)*)((?:manifests|screenshots)/[\w./-]+)")

WEIGHTS = {"guides": 4, "tutorials": 2, "from": 2, "explained": 3} | dict.fromkeys(
    (
        "explained/words.md",
        "architecture.md",
        "scenarios.md",
        "supply-chain.md",
        "inference.md",
        "measurements.md",
        "index.md",
    ),
    0.5,
)
"""Weight in the search by folder or page: people ask for a job to do, and these pages hold most of the words."""


def on_config(config: Any) -> Any:
    """Write the version of the tree into the footer."""
    match = re.search(r'__version__ = "([^"]+)"', (ROOT / "l2rtui/__init__.py").read_text("utf-8"))
    config.copyright = f"l2rtui {match[1]}" if match else "l2rtui"
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files outside `docs/` that pages link to; a missing one stays a broken link and fails the build."""
    pages = "".join(Path(page.abs_src_path).read_text("utf-8") for page in files.documentation_pages())
    for name in sorted({match[1] for match in OUTSIDE.findall(pages)}):
        if (ROOT / name).is_file():
            files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Weigh the page for the search, and point links to such files at their copies."""
    folder = page.file.src_uri.partition("/")[0]
    page.meta["search"] = {"boost": WEIGHTS.get(page.file.src_uri, WEIGHTS.get(folder, 1))}
    return OUTSIDE.sub(r"\1\2", markdown)
