"""Why a pod is not simply running: Kubernetes' own word for it, and one sentence with the next step.

Pure: a pod, the events that are known of it, the time. The first cause wins: a pod that is being deleted is asked
about that, one without a node about the scheduler, one with a node about its containers in the order in which they
start. Text of the server is raw here; whoever shows it sanitises it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from l2rtui.backends.kubernetes.structs import (
    ContainerStatus,
    ControllerStruct,
    EventStruct,
    Meta,
    NodeStruct,
    PodStruct,
    Terminated,
    epoch,
)
from l2rtui.domain.status import exit_text

Why = tuple[str, str]
"""Reason and sentence; both empty where there is nothing to explain."""
NOTHING: Why = ("", "")

_LONGEST = 300
_SLOW_SECONDS = 60.0
"""A pod that its node has not begun to start after so long is worth a word."""
_OF_PROPAGATION = ("foregroundDeletion", "orphan")
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
          "RegistryUnavailable")  # fmt: skip
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError")
_VOLUME_EVENTS = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_NODE_EVENTS = ("FailedCreatePodSandBox", "NetworkNotReady", "NodeNotReady")
_NOT_FOUND = re.compile(r'(secret|configmap) "([^"]+)" not found', re.IGNORECASE)
_NO_KEY = re.compile(r"couldn't find key (\S+) in (Secret|ConfigMap) (\S+)")
_UNSCHEDULABLE = re.compile(r"^\d+/(\d+) nodes are available: ?(.*)$", re.DOTALL)


def explain(pod: PodStruct, events: Sequence[EventStruct], now: float, *, node: NodeStruct | None = None) -> Why:
    """Reason and sentence of one pod.

    Args:
        events: Those of this pod, in any order.
        now: Seconds since the epoch.
        node: The pod's node, where it is known.
    """
    trouble = node_trouble(node) if node is not None else ""
    if pod.metadata.deletion_timestamp is not None:
        cause = stuck(pod.metadata, f"its node {node.metadata.name} {trouble}" if node and trouble else "", now)
        return "Terminating", cause + _next_of_stuck(cause)
    if pod.status.phase in ("Failed", "Succeeded"):
        return _over(pod)
    if not pod.spec.node_name:
        return _unplaced(pod, events)
    if trouble and node is not None:
        return "NodeLost", (
            f"its node {node.metadata.name} {trouble}; nobody can tell whether it runs. "
            "Wait for the node, or kill the pod."
        )
    for status in (*pod.init_statuses, *pod.statuses):
        if (why := _container(pod, status, events)) != NOTHING:
            return why
    return _starting(pod, events, now)


def explain_controller(controller: ControllerStruct, events: Sequence[EventStruct]) -> Why:
    """Why a controller has fewer pods than it wants: pods that were never made have no state to ask about."""
    failed = _newest(events, ("FailedCreate",))
    condition = controller.condition("ReplicaFailure")
    text = (failed.message if failed else None) or (condition.message if condition else None) or ""
    if not text:
        return NOTHING
    if "exceeded quota" in text:
        return (
            "FailedCreate",
            f"the namespace's quota is used up: {_quota(text)}. Free some, or ask for a larger quota.",
        )
    if "is forbidden" in text and "PodSecurity" in text:
        return (
            "FailedCreate",
            f"the namespace's Pod Security refuses it: {_short(text)}. Loosen the spec or the namespace.",
        )
    if "is forbidden" in text:
        return "FailedCreate", f"the cluster refuses to make its pods: {_short(text)}. Change the spec."
    return "FailedCreate", f"its pods cannot be made: {_short(text)}. `l2rtui events` shows more."


def needs_log(why: Why) -> bool:
    """Whether the last line of the log of the process before would complete the sentence."""
    return why[0] == "CrashLoopBackOff"


def with_log(why: Why, line: str) -> Why:
    """The same, with the last line that the process has written."""
    text = line.strip()
    return (why[0], f"{why[1]} Its last words: {_short(text)}") if text else why


def node_trouble(node: NodeStruct) -> str:
    """Say why a node cannot be relied on: ``is NotReady``; empty when it can."""
    for ready in node.status.conditions or ():
        if ready.type == "Ready":
            break
    else:
        return ""
    if ready.status == "True":
        return ""
    words = "is NotReady" if ready.status == "False" else "does not answer (Ready is Unknown)"
    return f"{words}: {ready.message}" if ready.message else words


def own_finalizers(meta: Meta) -> tuple[str, ...]:
    """Finalizers other than those by which a deletion waits for what the object owns."""
    return tuple(one for one in meta.finalizers or () if one not in _OF_PROPAGATION)


def stuck(meta: Meta, trouble: str, now: float) -> str:
    """Why an object whose deletion has begun is still there.

    Args:
        trouble: What is wrong with the node of a pod; empty for nothing.
        now: Seconds since the epoch.
    """
    if finalizers := own_finalizers(meta):
        return f"the finalizer {', '.join(finalizers)} holds it"
    if trouble:
        return trouble
    # A deletion timestamp lies in the future by the grace.
    left = epoch(meta.deletion_timestamp) - now
    if left > 0:
        return f"grace {left:.0f} s left"
    if "foregroundDeletion" in (meta.finalizers or ()):
        return "waits for what it owns"
    grace = meta.deletion_grace_period_seconds
    return f"is still Terminating {-left:.0f} s after its grace" if grace else "is still Terminating"


# --- no node yet -------------------------------------------------------------------------------------------------
def _unplaced(pod: PodStruct, events: Sequence[EventStruct]) -> Why:
    condition = pod.condition("PodScheduled")
    if pod.spec.scheduling_gates:
        return "SchedulingGated", "something else must release it before it is scheduled (a queue such as Kueue)"
    failed = _newest(events, ("FailedScheduling",))
    text = (condition.message if condition and condition.status == "False" else None) or (
        failed.message if failed else None
    )
    if not text:
        return NOTHING
    reason = (condition.reason if condition else None) or "Unschedulable"
    selector = pod.spec.node_selector or {}
    host = selector.get("kubernetes.io/hostname", "")
    return reason, _unschedulable(text, host)


def _unschedulable(text: str, host: str) -> str:
    """The scheduler's sentence in words; a pinned pod is asked about its own node alone."""
    match = _UNSCHEDULABLE.match(text)
    parts = [part.strip().rstrip(".") for part in match[2].split(", ")] if match else [text.rstrip(".")]
    mismatches = ("didn't match", "node(s) did not match", "didn't satisfy")
    causes = [part for part in parts if not any(word in part for word in mismatches)]
    hints = {
        "Insufficient": "Wait until something ends there, ask for less, or choose another node.",
        "taint": "Add a toleration to the spec, or choose another node.",
        "unschedulable": "Uncordon it, or choose another node.",
        "persistentvolumeclaim": "Make the claim, or correct its name in the spec.",
        "volume": "See to its claim: `l2rtui check`.",
    }
    if host and match and not causes:
        return f"no node has the hostname {host} that it is pinned to. Choose another node."
    found = [_count_away(part) if host else part for part in (causes or parts)]
    hint = next((hint for word, hint in hints.items() if any(word in part for part in found)), "")
    where = f"{host} does not take it: " if host else "no node takes it: "
    return f"{where}{_short(', '.join(found))}." + (f" {hint}" if hint else "")


def _count_away(part: str) -> str:
    return re.sub(r"^\d+ (node\(s\) )?", "", part)


# --- containers --------------------------------------------------------------------------------------------------
def _container(pod: PodStruct, status: ContainerStatus, events: Sequence[EventStruct]) -> Why:
    state = status.state
    waiting = state.waiting if state else None
    if waiting is None:
        return NOTHING
    reason, message = waiting.reason or "", waiting.message or ""
    name = _name(pod, status)
    if reason in _IMAGE:
        return reason, _image(status, reason, message, events, name)
    if reason in _CONFIG:
        return reason, _config(reason, message, name)
    last = status.last_state.terminated if status.last_state else None
    if reason == "CrashLoopBackOff":
        return reason, _crash(last, status.restart_count or 0, name)
    if last is not None and last.reason == "OOMKilled":
        return "OOMKilled", f"{name}{_oom()}"
    return NOTHING


def _image(status: ContainerStatus, reason: str, message: str, events: Sequence[EventStruct], name: str) -> str:
    image = status.image or "its image"
    if reason == "InvalidImageName":
        return f"{name}{image} is no name of an image. Correct `image` in the spec."
    if reason == "ErrImageNeverPull":
        return f"{name}{image} is not on the node, and the spec forbids to pull it. Load it there, or allow that."
    told = _newest(events, ("Failed",), "pull")
    text = message if "Back-off" not in message and message else (told.message if told else None) or message
    low = text.lower()
    if any(word in low for word in ("unauthorized", "authentication required", "denied", "no basic auth")):
        return f"{name}the registry does not give {image} to us. Name a pull secret in the spec (`pull_secrets`)."
    if any(word in low for word in ("not found", "manifest unknown", "does not exist")):
        return f"{name}there is no image {image}. Correct its name or tag, or push it."
    if any(word in low for word in ("no such host", "connection refused", "timeout", "i/o", "dial tcp")):
        return f"{name}the node does not reach the registry of {image}: {_short(text)}."
    return f"{name}{image} cannot be pulled: {_short(text)}."


def _config(reason: str, message: str, name: str) -> str:
    if match := _NOT_FOUND.search(message):
        return f"{name}there is no {match[1].lower()} {match[2]}. Create it, or correct its name in the spec."
    if match := _NO_KEY.search(message):
        return f"{name}the {match[2].lower()} {match[3]} has no key {match[1]}. Add it, or correct the spec."
    if reason == "CreateContainerConfigError":
        return f"{name}its settings cannot be used: {_short(message)}."
    if "executable file not found" in message or "no such file or directory" in message:
        return f"{name}its command is not in the image: {_short(message)}. Correct `command` in the spec."
    return f"{name}it cannot be started: {_short(message)}."


def _crash(last: Terminated | None, restarts: int, name: str) -> str:
    times = f"{restarts} restart{'' if restarts == 1 else 's'}"
    if last is None:
        return f"{name}it ends again and again ({times}). See `l2rtui logs --previous`."
    if last.reason == "OOMKilled":
        return f"{name}{_oom()} ({times})"
    how = exit_text(last.exit_code if last.exit_code is not None else 0)
    words = (last.message or "").strip().splitlines()
    told = f" Its last words: {_short(words[-1])}" if words else ""
    return f"{name}it ends again and again, last with {how} ({times}). See `l2rtui logs --previous`.{told}"


def _oom() -> str:
    return (
        "it took more memory than its limit and was killed. Give it more `memory` in the spec, or let it use less."
    )


def _name(pod: PodStruct, status: ContainerStatus) -> str:
    """Which container it is, where there are several."""
    several = len(pod.spec.containers or ()) + len(pod.spec.init_containers or ()) > 1
    return f"container {status.name}: " if several else ""


# --- others ------------------------------------------------------------------------------------------------------
def _starting(pod: PodStruct, events: Sequence[EventStruct], now: float) -> Why:
    """Placed, and no container says what is wrong."""
    if pod.status.phase != "Pending":
        return NOTHING
    if (mount := _newest(events, _VOLUME_EVENTS)) is not None:
        text = mount.message or ""
        if match := _NOT_FOUND.search(text):
            said = f"there is no {match[1].lower()} {match[2]} to mount. Create it, or correct the spec."
        elif "persistentvolumeclaim" in text:
            said = f"its claim cannot be mounted: {_short(text)}. Make the claim, or correct its name in the spec."
        else:
            said = f"a volume cannot be mounted: {_short(text)}."
        return mount.reason or "FailedMount", said
    if (sandbox := _newest(events, _NODE_EVENTS)) is not None:
        text = _short(sandbox.message or "")
        return (
            sandbox.reason or "",
            f"its node cannot set it up: {text}. Choose another node, or tell its administrator.",
        )
    began = epoch(pod.status.start_time or pod.metadata.creation_timestamp)
    waited = now - began if began else 0.0
    if waited > _SLOW_SECONDS:
        pulling = _newest(events, ("Pulling",))
        done = _newest(events, ("Pulled", "Failed"))
        if pulling is not None and (done is None or done.last_seen < pulling.last_seen):
            return "ContainerCreating", f"its image is being pulled for {now - pulling.last_seen:.0f} s"
        return "ContainerCreating", f"its node has not started it for {waited:.0f} s. `l2rtui events` shows more."
    return NOTHING


def _over(pod: PodStruct) -> Why:
    reason, message = pod.status.reason or "", pod.status.message or ""
    if reason == "Evicted":
        return (
            reason,
            f"its node had too little left and put it out: {_short(message)}. Ask for what it needs, or free some.",
        )
    if reason == "DeadlineExceeded":
        return reason, "it ran longer than its activeDeadlineSeconds allows. Raise them, or let it do less."
    if reason in ("NodeLost", "NodeShutdown", "Shutdown", "Terminated"):
        return reason, f"its node went away: {_short(message) or pod.spec.node_name or 'nobody knows which'}."
    for status in (*pod.init_statuses, *pod.statuses):
        ending = status.state.terminated if status.state else None
        if ending is not None and ending.reason == "OOMKilled":
            return "OOMKilled", f"{_name(pod, status)}{_oom()}"
        if ending is not None and ending.exit_code:
            words = (ending.message or "").strip().splitlines()
            told = f" Its last words: {_short(words[-1])}" if words else ""
            return (
                ending.reason or "Error",
                f"{_name(pod, status)}it ended with {exit_text(ending.exit_code)}.{told}",
            )
    return (reason, _short(message)) if reason or message else NOTHING


def _next_of_stuck(why: str) -> str:
    if "finalizer" in why:
        return ". Whoever set it must let go, or somebody removes it by `kubectl edit`."
    if "node" in why:
        return ". Bring the node back, or destroy with --force: the process may live on."
    return ""


def _quota(text: str) -> str:
    match = re.search(
        r"exceeded quota: ([^,]+), requested: ([^,]+.*?), used: (.*?), limited: (.*)$", text, re.DOTALL
    )
    if not match:
        return _short(text)
    return f"{match[1]} allows {match[4]}, {match[3]} is used, {match[2]} is wanted"


def _newest(events: Iterable[EventStruct], reasons: Sequence[str], word: str = "") -> EventStruct | None:
    found = [one for one in events if one.reason in reasons and word in (one.message or "").lower()]
    return max(found, key=lambda one: one.last_seen, default=None)


def _short(text: str) -> str:
    """One line of bounded length, without the dot at its end."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def by_pod(events: Iterable[EventStruct]) -> Mapping[str, tuple[EventStruct, ...]]:
    """Events by the uid of what they are about."""
    found: dict[str, list[EventStruct]] = {}
    for one in events:
        if one.involved_object.uid:
            found.setdefault(one.involved_object.uid, []).append(one)
    return {uid: tuple(every) for uid, every in found.items()}
