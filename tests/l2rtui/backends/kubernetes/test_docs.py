"""API versions in the documentation, compared with those that the program requests."""

from __future__ import annotations

import re
from pathlib import Path

from l2rtui.backends.kubernetes.api.resources import KINDS


def test_the_table_of_api_versions_names_every_kind_and_no_other():
    text = Path("docs/kubernetes.md").read_text().partition("## API versions")[2]
    told = {}
    for version, kinds in re.findall(r"^\| `([a-z0-9./-]+v\d\w*|v1)`[^|]*\| ([^|]+) \|$", text, re.MULTILINE):
        names = re.sub(r"\(.*?\)|, (?:when|for) .*", "", kinds).split(",")
        told |= {name.strip(): version for name in names}
    assert told == {name: kind.api_version for name, kind in KINDS.items()}
