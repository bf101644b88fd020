"""Shareable view: context, filters, order and selection of the app as one line, and the parser of such a line.

``l2rtui:view?backend=kubernetes&context=blue&pane=pods&filter.pods=status%3DFailed&sort.pods=-restarts``. A link
comes from another person, so it only names objects to show: no kubeconfig and no user to impersonate. Every field
is bounded, and a field that is not in the table below is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from l2rtui.domain.sanitize import HIDDEN

SCHEME: Final = "l2rtui:view?"
MAX_CHARS: Final = 4_096
MAX_VALUE: Final = 500
TABLES: Final = ("runs", "pods", "nodes", "events")
"""Tables with a filter and a sort order; the slots follow the filter of the nodes."""
PANES: Final = (*TABLES, "slots", "leaks", "charts")
_FLAGS: Final = ("mine", "all", "faults")
_FIELDS: Final = (
    *("backend", "context", "namespaces", "pane", "run", "select", *_FLAGS),
    *(f"{what}.{table}" for what in ("filter", "sort") for table in TABLES),
)
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class SharedView:
    """State of the home screen that another person can open.

    Attributes:
        backend, context, namespaces: Empty for the values of the person who opens it.
        pane: View with the focus, one of `PANES`. run: Name of the run under the cursor of the runs table.
        selected: Name of the row or slot under the cursor of the pane, if it differs from the run.
        is_mine, has_all_pods, faults_only: Filters that are on or off. "Mine" refers to the person who opens the
            link.
        filters: Pairs of a table and its filter. sorts: Pairs of a table and ``COLUMN`` or ``-COLUMN``.
    """

    backend: str = ""
    context: str = ""
    namespaces: tuple[str, ...] = ()
    pane: str = "runs"
    run: str = ""
    selected: str = ""
    is_mine: bool = False
    has_all_pods: bool = False
    faults_only: bool = False
    filters: tuple[tuple[str, str], ...] = ()
    sorts: tuple[tuple[str, str], ...] = ()

    @property
    def link(self) -> str:
        """The view as one line without spaces and quotes; empty fields are left out."""
        return SCHEME + urlencode([pair for pair in self._pairs() if pair[1]], quote_via=quote, safe="/:")

    def _pairs(self) -> Iterator[tuple[str, str]]:
        yield from (("backend", self.backend), ("context", self.context))
        yield from (("namespaces", ",".join(self.namespaces)), ("pane", self.pane))
        yield from (("run", self.run), ("select", self.selected))
        flags = (self.is_mine, self.has_all_pods, self.faults_only)
        yield from ((name, "1") for name, is_set in zip(_FLAGS, flags, strict=True) if is_set)
        yield from ((f"filter.{table}", text) for table, text in self.filters)
        yield from ((f"sort.{table}", column) for table, column in self.sorts)


def parse_view(text: str) -> SharedView:
    """Parse a link.

    Raises:
        ValueError: The text is not a view link, or a field is invalid; the message is a sentence.
    """
    text = text.strip()
    if len(text) > MAX_CHARS:
        raise ValueError(f"The link has {len(text)} characters, and a view has {MAX_CHARS} at most.")
    if not text.startswith(SCHEME):
        raise ValueError(f"This is not a link of a view: those links begin with {SCHEME}")
    fields = _fields(text.removeprefix(SCHEME))
    namespaces = tuple(filter(None, fields.get("namespaces", "").split(",")))
    for name in namespaces:
        if not _NAMESPACE.fullmatch(name):
            raise ValueError(f"The link names the namespace {name!r}, which is not a valid name.")
    if (pane := fields.get("pane", "runs")) not in PANES:
        raise ValueError(f"The link names the view {pane!r}; there are {', '.join(PANES)}.")
    for flag in _FLAGS:
        if fields.get(flag, "1") != "1":
            raise ValueError(f"{flag} of the link is {fields[flag]!r}; it is 1, or left out.")
    if (context := fields.get("context", "")).startswith("-"):
        raise ValueError(f"The link names the context {context!r}, which would be an option.")
    return SharedView(
        fields.get("backend", ""),
        context,
        namespaces,
        pane,
        fields.get("run", ""),
        fields.get("select", ""),
        is_mine="mine" in fields,
        has_all_pods="all" in fields,
        faults_only="faults" in fields,
        filters=_by_table(fields, "filter"),
        sorts=_by_table(fields, "sort"),
    )


def _fields(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=len(_FIELDS)
        )
    except ValueError:
        raise ValueError("The link is damaged: it has fields such as pane=pods, with & between them.") from None
    fields: dict[str, str] = {}
    for name, value in pairs:
        if name not in _FIELDS:
            raise ValueError(f"A view has no field {name[:MAX_VALUE]!r}; it has {', '.join(_FIELDS)}.")
        if name in fields:
            raise ValueError(f"The link has {name} twice.")
        if len(value) > MAX_VALUE:
            raise ValueError(f"{name} of the link has {len(value)} characters, and {MAX_VALUE} are the most.")
        if HIDDEN.search(value) or not value.isprintable():
            raise ValueError(f"{name} of the link has characters that cannot be seen.")
        fields[name] = value
    return fields


def _by_table(fields: dict[str, str], what: str) -> tuple[tuple[str, str], ...]:
    return tuple((table, text) for table in TABLES if (text := fields.get(f"{what}.{table}", "")))
