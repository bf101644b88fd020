"""Declarative CloudFormation stacks: the current state is read first, and only differences are changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from l2rtui.cloud.aws.clients import Cloud, CloudError
from l2rtui.cloud.aws.templates import OWNER_TAG, Template
from l2rtui.cloud.aws.waiters import ClusterChange
from l2rtui.errors import BackendError, RefusedError
from runtime.base import bounded_json

_STATE = "StackStatus"
_COMPLETE = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")
_BROKEN = ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "DELETE_FAILED", "REVIEW_IN_PROGRESS")
"""A stack in one of these states can only be removed."""


async def find_stack(cloud: Cloud, name: str) -> dict[str, Any] | None:
    """Return a stack by its name; None if it does not exist."""
    try:
        stacks = (await cloud.call("cloudformation", "describe_stacks", StackName=name)).get("Stacks") or []
    except CloudError as error:
        # CloudFormation has no error code for a missing stack.
        if error.code == "ValidationError" and "exist" in error.message:
            return None
        raise
    # CloudFormation keeps deleted stacks for 90 days; such a stack must never count as existing.
    alive = [stack for stack in stacks if stack["StackStatus"] != "DELETE_COMPLETE"]
    return alive[0] if alive else None


async def stack_outputs(cloud: Cloud, name: str) -> dict[str, str]:
    """Return the outputs of a stack; empty if it is missing or incomplete."""
    stack = await find_stack(cloud, name)
    if stack is None or stack["StackStatus"] not in _COMPLETE:
        return {}
    return {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs") or ()}


async def ensure_stack(change: ClusterChange, name: str, template: Template, tags: Mapping[str, str]) -> None:
    """Create a stack or update it to this template, and wait; continue with one that is in progress.

    Raises:
        BackendError: CloudFormation gave up; the message has its first reason.
        RefusedError: A stack of this name belongs to someone else.
    """
    cloud = change.cloud
    stack = await find_stack(cloud, name)
    _require_ours(stack, name, tags[OWNER_TAG])
    if stack is not None and stack["StackStatus"].endswith("_IN_PROGRESS"):
        await _settle(change, name)
        stack = await find_stack(cloud, name)
    if stack is not None and stack["StackStatus"] in _BROKEN:
        change.say(name, "remains of an earlier attempt are removed first")
        await delete_stack(change, name, tags[OWNER_TAG])
        stack = None
    request = {
        "StackName": name,
        "TemplateBody": json.dumps(template),
        "Capabilities": ["CAPABILITY_IAM"],
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    if stack is None:
        await cloud.call("cloudformation", "create_stack", OnFailure="ROLLBACK", **request)
        change.say(name, "asked for")
    # Compared here: update_stack answers "No updates are to be performed" with a plain ValidationError.
    elif await _template_of(cloud, name) == template:
        change.say(name, "is there", is_change=False)
        return
    else:
        await cloud.call("cloudformation", "update_stack", **request)
        change.say(name, "is brought up to date")
    await _settle(change, name)
    stack = await find_stack(cloud, name)
    state = stack["StackStatus"] if stack else "gone"
    # UPDATE_ROLLBACK_COMPLETE is complete and usable, but the update itself has failed.
    if state not in _COMPLETE or "ROLLBACK" in state:
        reason = await _reason(cloud, name)
        raise BackendError(
            f"The stack {name} is {state}: {reason}.", "Correct that and run the same command again."
        )
    change.say(name, "is there")


async def delete_stack(change: ClusterChange, name: str, owner: str) -> None:
    """Remove a stack and everything in it, and wait; a missing one is not an error.

    Raises:
        BackendError: Something in it cannot be removed; the message has CloudFormation's reason.
    """
    cloud = change.cloud
    stack = await find_stack(cloud, name)
    if stack is None:
        return
    _require_ours(stack, name, owner)
    if stack["StackStatus"] != "DELETE_IN_PROGRESS":
        if stack["StackStatus"].endswith("_IN_PROGRESS"):
            await _settle(change, name)
        await cloud.call("cloudformation", "delete_stack", StackName=name)
        change.say(name, "is being removed")
    try:
        await change.wait_for_state(name, partial(find_stack, cloud, name), ("",), ("DELETE_FAILED",), key=_STATE)
    except BackendError as error:
        raise BackendError(
            f"{error.message} {await _reason(cloud, name)}.".replace("..", "."),
            "Remove what it names, then run the same command again.",
        ) from error
    change.say(name, "removed")


async def _settle(change: ClusterChange, name: str) -> None:
    """Wait until no operation on the stack is in progress."""
    ends = (*_COMPLETE, *_BROKEN, "UPDATE_FAILED", "UPDATE_ROLLBACK_FAILED", "")
    await change.wait_for_state(name, partial(find_stack, change.cloud, name), ends, key=_STATE)


async def _template_of(cloud: Cloud, name: str) -> Template:
    body = (await cloud.call("cloudformation", "get_template", StackName=name)).get("TemplateBody")
    template = bounded_json.loads(body) if isinstance(body, str) else body
    # boto3 returns JSON templates as objects, others as text.
    if template is not None and not isinstance(template, dict):
        raise BackendError(f"CloudFormation answers with a template of {name} that is no object.")
    return dict(template or {})


async def _reason(cloud: Cloud, name: str) -> str:
    """Return the first failure of the last attempt: later ones are consequences."""
    try:
        events = await cloud.list_all("cloudformation", "describe_stack_events", "StackEvents", StackName=name)
    except CloudError:
        return "no reason is given"
    failed = [event for event in events if str(event.get("ResourceStatus", "")).endswith("_FAILED")]
    if not failed:
        return "no reason is given"
    first = failed[-1]  # events are sorted newest first
    return f"{first.get('LogicalResourceId')}: {first.get('ResourceStatusReason', '')}".rstrip(". ")


def _require_ours(stack: Mapping[str, Any] | None, name: str, owner: str) -> None:
    if stack is None:
        return
    tags = {tag["Key"]: tag["Value"] for tag in stack.get("Tags") or ()}
    if tags.get(OWNER_TAG) != owner:
        raise RefusedError(
            f"There is a stack {name} that l2rtui has not made.", "Choose another name for the cluster."
        )
