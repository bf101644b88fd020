"""Permissions of the user in the namespace of runs, checked on the server before an action is attempted.

Each check is a SelfSubjectAccessReview, which every user may create (``system:basic-user``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.rights import Right, RoleScope, needed

ACTIONS: Final = ("launch", "kill", "scale", "destroy", "exec", "forward", "reserve")
"""Actions that the app disables if a permission is missing."""
NEEDS: Final[Mapping[str, tuple[Right, ...]]] = MappingProxyType(
    {action: needed((RoleScope.RESEARCHER,), action) for action in ACTIONS}
)
"""Permissions that each action needs in addition to a viewer's."""


async def missing_rights(api: Api, rights: Sequence[Right], namespace: str | None) -> list[Right]:
    """Return the permissions that the user lacks, in their order.

    Args:
        namespace: None checks all namespaces.

    Raises:
        ApiError: The server does not respond.
    """
    permitted = await asyncio.gather(
        *(api.can(right.verb, right.kind, namespace, subresource=right.subresource) for right in rights)
    )
    return [right for right, is_permitted in zip(rights, permitted, strict=True) if not is_permitted]


async def denied(api: Api, namespace: str) -> dict[str, str]:
    """Return why actions are not permitted, by name; permitted actions are left out. Raises ApiError without a
    response.
    """
    # Several actions need the same permission: each is checked once.
    needed = list(dict.fromkeys(need for needs in NEEDS.values() for need in needs))
    missing = set(await missing_rights(api, needed, namespace))
    return {
        action: f"in {namespace} you may not {', '.join(str(need) for need in needs if need in missing)}"
        for action, needs in NEEDS.items()
        if missing.intersection(needs)
    }
