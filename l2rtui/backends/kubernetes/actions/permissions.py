"""Permissions of the user in the namespace of runs, asked of the server before anything is tried.

Each is a SelfSubjectAccessReview, which every user may create (``system:basic-user``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.resources import KINDS

Right = tuple[str, str, str]
"""Verb, kind and subresource."""

NEEDS: Final[Mapping[str, tuple[Right, ...]]] = MappingProxyType(
    {
        "launch": tuple(("create", kind, "") for kind in ("ConfigMap", "Secret", "Service", "Job", "ReplicaSet")),
        "kill": (("delete", "Pod", ""),),
        "scale": (("patch", "ReplicaSet", ""),),
        "destroy": (("delete", "ConfigMap", ""), ("delete", "Pod", ""), ("delete", "ReplicaSet", "")),
        "exec": (("get", "Pod", "exec"),),
        "forward": (("get", "Pod", "portforward"),),
    }
)
"""Rights that each action needs. A websocket is opened by GET, so the verb of exec and port-forward is ``get``."""


async def missing_rights(api: Api, rights: Sequence[Right], namespace: str | None) -> list[Right]:
    """Return the rights that the user lacks, in their order.

    Args:
        namespace: None asks for all of them.

    Raises:
        ApiError: the server does not answer.
    """
    permitted = await asyncio.gather(
        *(api.can(verb, kind, namespace, subresource=part) for verb, kind, part in rights)
    )
    return [right for right, is_permitted in zip(rights, permitted, strict=True) if not is_permitted]


def right_name(right: Right) -> str:
    """Return a right as people write it: ``create pods``, ``get pods/exec``."""
    verb, kind, part = right
    return f"{verb} {KINDS[kind].plural}{f'/{part}' if part else ''}"


async def denied(api: Api, namespace: str) -> dict[str, str]:
    """Return why actions are not permitted, by name, without the permitted; ApiError without an answer."""
    # Several actions need the same right: each is asked once.
    needed = list(dict.fromkeys(need for needs in NEEDS.values() for need in needs))
    missing = set(await missing_rights(api, needed, namespace))
    return {
        action: f"in {namespace} you may not {', '.join(right_name(need) for need in needs if need in missing)}"
        for action, needs in NEEDS.items()
        if missing.intersection(needs)
    }
