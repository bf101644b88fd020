"""What the user may do in the namespace of runs, asked of the server before anything is tried."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.kinds import KINDS

Need = tuple[str, str, str]
"""Verb, kind and subresource."""

NEEDS: Final[Mapping[str, tuple[Need, ...]]] = MappingProxyType(
    {
        "launch": (
            ("create", "ConfigMap", ""),
            ("create", "Secret", ""),
            ("create", "Service", ""),
            ("create", "Job", ""),
            ("create", "ReplicaSet", ""),
        ),
        "kill": (("delete", "Pod", ""),),
        "scale": (("patch", "ReplicaSet", ""),),
        "destroy": (("delete", "ConfigMap", ""), ("delete", "Pod", ""), ("delete", "ReplicaSet", "")),
        "exec": (("get", "Pod", "exec"),),
        "forward": (("get", "Pod", "portforward"),),
    }
)
"""What each deed needs. A websocket is opened by GET, so that is the verb for what goes through one."""


async def denied(api: Api, namespace: str) -> dict[str, str]:
    """Why deeds are not possible, by their names; deeds that are possible are left out.

    Raises:
        ApiError: the server does not answer.
    """
    asked = list(dict.fromkeys(need for needs in NEEDS.values() for need in needs))
    answers = await asyncio.gather(
        *(api.can(verb, kind, namespace, subresource=part) for verb, kind, part in asked)
    )
    missing = {need for need, may in zip(asked, answers, strict=True) if not may}
    return {
        deed: f"in {namespace} you may not {', '.join(_named(need) for need in needs if need in missing)}"
        for deed, needs in NEEDS.items()
        if missing.intersection(needs)
    }


def _named(need: Need) -> str:
    verb, kind, part = need
    return f"{verb} {KINDS[kind].plural}{f'/{part}' if part else ''}"
