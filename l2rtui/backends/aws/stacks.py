"""Stacks of CloudFormation as wishes: what is there is found first, and only what differs is changed."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from l2rtui.backends.aws.clients import Cloud, CloudError
from l2rtui.backends.aws.templates import OWNER_TAG, Template
from l2rtui.backends.aws.waiting import Progress, Waits, until
from l2rtui.errors import BackendError, RefusedError

_WHOLE = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")
_USELESS = ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "DELETE_FAILED", "REVIEW_IN_PROGRESS")
"""A stack in one of these states can only be removed."""


async def find_stack(cloud: Cloud, name: str) -> dict[str, Any] | None:
    """A stack by its name; None when there is none."""
    try:
        found = (await cloud.ask("cloudformation", "describe_stacks", StackName=name)).get("Stacks") or []
    except CloudError as error:
        if error.code == "ValidationError" and "exist" in error.message:
            return None
        raise
    alive = [one for one in found if one["StackStatus"] != "DELETE_COMPLETE"]
    return alive[0] if alive else None


async def stack_outputs(cloud: Cloud, name: str) -> dict[str, str]:
    """What a stack tells of itself; empty when it is not there or not whole."""
    found = await find_stack(cloud, name)
    if found is None or found["StackStatus"] not in _WHOLE:
        return {}
    return {one["OutputKey"]: one["OutputValue"] for one in found.get("Outputs") or ()}


async def ensure_stack(
    cloud: Cloud, name: str, template: Template, tags: Mapping[str, str], waits: Waits
) -> AsyncGenerator[Progress, None]:
    """Make a stack, or bring it to this template; go on with one that is half made.

    Raises:
        BackendError: CloudFormation gave up; the sentence holds its first reason.
        RefusedError: a stack of this name belongs to somebody else.
    """
    found = await find_stack(cloud, name)
    _require_ours(found, name, tags[OWNER_TAG])
    if found is not None and found["StackStatus"].endswith("_IN_PROGRESS"):
        async for step in _settled(cloud, name, waits):
            yield step
        found = await find_stack(cloud, name)
    if found is not None and found["StackStatus"] in _USELESS:
        yield Progress(name, "what an earlier attempt left of it is removed first", is_change=True)
        async for step in delete_stack(cloud, name, tags[OWNER_TAG], waits):
            yield step
        found = None
    words = {
        "StackName": name,
        "TemplateBody": json.dumps(template),
        "Capabilities": ["CAPABILITY_IAM"],
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    if found is None:
        await cloud.ask("cloudformation", "create_stack", OnFailure="ROLLBACK", **words)
        yield Progress(name, "asked for", is_change=True)
    elif await _template_of(cloud, name) == template:
        yield Progress(name, "is there")
        return
    else:
        await cloud.ask("cloudformation", "update_stack", **words)
        yield Progress(name, "is brought up to date", is_change=True)
    async for step in _settled(cloud, name, waits):
        yield step
    found = await find_stack(cloud, name)
    state = found["StackStatus"] if found else "gone"
    if state not in _WHOLE or "ROLLBACK" in state:
        reason = await _reason(cloud, name)
        raise BackendError(
            f"The stack {name} is {state}: {reason}.", "Correct that and run the same command again."
        )
    yield Progress(name, "is there", is_change=True)


async def delete_stack(cloud: Cloud, name: str, owner: str, waits: Waits) -> AsyncGenerator[Progress, None]:
    """Remove a stack and all that is in it; nothing happens when it is not there.

    Raises:
        BackendError: something in it cannot be removed; the sentence holds CloudFormation's reason.
    """
    found = await find_stack(cloud, name)
    if found is None:
        return
    _require_ours(found, name, owner)
    if found["StackStatus"] != "DELETE_IN_PROGRESS":
        if found["StackStatus"].endswith("_IN_PROGRESS"):
            async for step in _settled(cloud, name, waits):
                yield step
        await cloud.ask("cloudformation", "delete_stack", StackName=name)
        yield Progress(name, "is being removed", is_change=True)

    async def state() -> str:
        now = await find_stack(cloud, name)
        return now["StackStatus"] if now else ""

    try:
        async for step in until(name, state, ("",), ("DELETE_FAILED",), waits):
            yield step
    except BackendError as error:
        raise BackendError(
            f"{error.message} {await _reason(cloud, name)}.".replace("..", "."),
            "Remove what it names, then run the same command again.",
        ) from error
    yield Progress(name, "removed", is_change=True)


async def _settled(cloud: Cloud, name: str, waits: Waits) -> AsyncGenerator[Progress, None]:
    async def state() -> str:
        now = await find_stack(cloud, name)
        return now["StackStatus"] if now else ""

    ends = (*_WHOLE, *_USELESS, "UPDATE_FAILED", "UPDATE_ROLLBACK_FAILED", "")
    async for step in until(name, state, ends, (), waits):
        yield step


async def _template_of(cloud: Cloud, name: str) -> Template:
    body = (await cloud.ask("cloudformation", "get_template", StackName=name)).get("TemplateBody")
    found = json.loads(body) if isinstance(body, str) else body
    return dict(found or {})


async def _reason(cloud: Cloud, name: str) -> str:
    """The first failure of the last attempt: those after it are only its echo."""
    try:
        events = await cloud.all("cloudformation", "describe_stack_events", "StackEvents", StackName=name)
    except CloudError:
        return "no reason is given"
    failed = [one for one in events if str(one.get("ResourceStatus", "")).endswith("_FAILED")]
    if not failed:
        return "no reason is given"
    first = failed[-1]
    return f"{first.get('LogicalResourceId')}: {first.get('ResourceStatusReason', '')}".rstrip(". ")


def _require_ours(found: Mapping[str, Any] | None, name: str, owner: str) -> None:
    if found is None:
        return
    tags = {one["Key"]: one["Value"] for one in found.get("Tags") or ()}
    if tags.get(OWNER_TAG) != owner:
        raise RefusedError(
            f"There is a stack {name} that l2rtui has not made.", "Choose another name for the cluster."
        )
