"""Reason why a pod is not simply running: Kubernetes' own word, and one sentence with the next step.

Pure: the input is a pod, its events and the time. The first cause wins: deletion, then missing scheduling, then the
node, then the containers in the order in which they start. Server text is raw here; screens sanitise it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.structs import (
    ContainerStatus,
    ControllerStruct,
    EventStruct,
    NodeStruct,
    ObjectMeta,
    PodStruct,
    Terminated,
    epoch,
)
from l2rtui.domain.log import last_words
from l2rtui.domain.status import exit_text

PodReason = tuple[str, str]
"""Reason and sentence; both empty if there is nothing to explain."""
NO_REASON: PodReason = ("", "")

_LONGEST = 300
_SLOW_SECONDS = 60.0
"""Time after which a pod that its node has not started yet gets a reason."""
_OF_PROPAGATION = ("foregroundDeletion", "orphan")
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
          "RegistryUnavailable")  # fmt: skip
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError")
_VOLUME_EVENTS = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_NODE_EVENTS = ("FailedCreatePodSandBox", "NetworkNotReady", "NodeNotReady")
_PROGRESS_EVENTS = ("SuccessfulAttachVolume", "Pulling", "Pulled", "Failed", "Created", "Started")
"""Events after which an earlier failure of a volume or of the sandbox is resolved."""
_GOOD_EVENTS = (*_PROGRESS_EVENTS, "SuccessfulCreate")
_PLAIN_WAITS = ("ContainerCreating", "PodInitializing", "")
"""Reasons for waiting that indicate no problem; any other is Kubernetes' own, with its own message."""
_OWN_LIMIT = (
    r'Usage of EmptyDir volume "(?P<volume>[^"]+)" exceeds the limit "?(?P<size>[^"\s]+?)"?[.\s]*$'
    r'|[Ee]phemeral.*? storage (?:usage exceeds the total )?limit(?: of containers)? "?(?P<total>[^"\s]+?)"?[.\s]*$'
)
_ARCHITECTURE = (
    "no match for platform",
    "no matching manifest for",
    "exec format error",
    "does not match the specified platform",
)
_NOT_FOUND = r'(?i)(secret|configmap) "([^"]+)" not found'
_NO_KEY = r"couldn't find key (\S+) in (Secret|ConfigMap) (\S+)"
_GANG_PHRASES = ("pod group", "podgroup", "PodGroup", "enough sibling pods")
"""Phrases in conditions of Volcano and coscheduling that say that the group lacks pods or capacity."""
_EVICTIONS = ("DisruptionTarget", "TerminationTarget")
"""Conditions of a pod that is being evicted: Kubernetes' own (1.26 and later), and Kueue's."""
_OWN_ENDS = ("DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet")
"""Reasons of such conditions whose cause is the node; the pod's own reason says more."""
_PREEMPTION = r"(?s)\s*preemption: .*$"
"""The scheduler's note on pods that it might preempt: it repeats the number of nodes, and hides the cause."""
_UNSCHEDULABLE = r"(?s)^\d+/(\d+) nodes are available: ?(.*)$"


NODE_LOST: Final = "NodeLost"
"""Reason of a pod whose node no longer reports."""


def explain(
    pod: PodStruct,
    events: Sequence[EventStruct],
    now: float,
    *,
    node: NodeStruct | None = None,
    is_node_gone: bool = False,
) -> PodReason:
    """Return the reason and sentence of one pod.

    Args:
        events: Events of this pod, in any order.
        now: Seconds since the epoch.
        node: The pod's node, if it is known. is_node_gone: It is known that this node no longer exists.
    """
    trouble = f"its node {node.metadata.name} {text}" if node and (text := node_trouble(node)) else ""
    if is_node_gone:
        trouble = f"its node {pod.spec.node_name} was removed from the cluster"
    reason, message = _explain(pod, events, now, trouble, is_node_gone=is_node_gone)
    return reason, message + _unwritable(pod, message) if "ermission denied" in message else message


def _explain(
    pod: PodStruct, events: Sequence[EventStruct], now: float, trouble: str, *, is_node_gone: bool
) -> PodReason:
    if pod.status.phase != "Succeeded" and (evicted := _evicted(pod, events)) != NO_REASON:
        return evicted
    if pod.metadata.deletion_timestamp is not None:
        cause = deletion_blocker(pod.metadata, trouble, now)
        return "Terminating", cause + _next_of_stuck(cause)
    if pod.status.phase in ("Failed", "Succeeded"):
        return _over(pod)
    if not pod.spec.node_name:
        return _unplaced(pod, events)
    if trouble:
        remedy = (
            "Destroy the run, and launch it elsewhere" if is_node_gone else "Wait for the node, or kill the pod"
        )
        return NODE_LOST, f"{trouble}; whether the pod runs is unknown. {remedy}."
    inits, statuses = pod.init_statuses, pod.statuses
    for status in (*inits, *statuses) if inits else statuses:
        if (why := _container(pod, status, events)) != NO_REASON:
            return why
    if len(statuses) > 1 and (why := _ended_beside_others(pod)) != NO_REASON:
        return why
    if (why := _between_processes(pod)) != NO_REASON:
        return why
    return _starting(pod, events, now) if pod.status.phase == "Pending" else ("", _previous_end(statuses))


def _previous_end(statuses: Sequence[ContainerStatus]) -> str:
    """Return how the previous process of a running pod failed, in its own last words; empty if it did not."""
    for status in statuses:
        last = status.previous_end
        if last is not None and last.exit_code:
            return _oom() if last.reason == "OOMKilled" else _last_line(last)
    return ""


_PATH: Final = r"/[\w./-]+"


def _unwritable(pod: PodStruct, message: str) -> str:
    """Return a sentence on the claim whose folder refuses a pod's user; empty for any other refusal."""
    claims = {
        volume.name: volume.persistent_volume_claim.claim_name
        for volume in pod.spec.volumes or ()
        if volume.persistent_volume_claim is not None
    }
    mounts = [
        (mount.mount_path.rstrip("/"), claims[mount.name])
        for container in pod.spec.containers or ()
        for mount in container.volume_mounts or ()
        if mount.name in claims
    ]
    paths = re.findall(_PATH, message)
    refused = [
        (path, claim)
        for path, claim in mounts
        if any(text == path or text.startswith(f"{path}/") for text in paths)
    ]
    if not refused:
        return ""
    path, claim = max(refused, key=lambda item: len(item[0]))
    user = pod.spec.security_context.run_as_user if pod.spec.security_context is not None else None
    whom = f"User {user}" if user is not None else "Its user"
    owner = f"{user}:{user}" if user is not None else "that user"
    remedy = f"as root on its volume, chown it to {owner}, or set pod.user"
    return f" {whom} may not write to {path} of the claim {claim}: {remedy}."


def explain_controller(controller: ControllerStruct, events: Sequence[EventStruct]) -> PodReason:
    """Return why a controller has fewer pods than desired: pods that were never created have no status."""
    newest = _newest(events, ("FailedCreate", "SuccessfulCreate"))
    failed = newest if newest is not None and newest.reason == "FailedCreate" else None
    condition = controller.condition("ReplicaFailure")
    text = (failed.message if failed else None) or (condition.message if condition else None) or ""
    if text:
        return "FailedCreate", _refused_creation(text)
    suspended = controller.condition("Suspended")
    if suspended is not None and suspended.status == "True":
        return (
            "Suspended",
            "its Job is suspended, as by a queue that has not admitted it. Its description says more.",
        )
    return NO_REASON


def _refused_creation(text: str) -> str:
    if "exceeded quota" in text:
        return f"the namespace's quota is used up: {_quota(text)}. Free some, or ask for a larger quota."
    if "is forbidden" in text and "PodSecurity" in text:
        return f"the namespace's Pod Security refuses it: {_short(text)}. Loosen the spec or the namespace."
    if "is forbidden" in text:
        return f"the cluster refuses to make its pods: {_short(text)}. Change the spec."
    return f"its pods cannot be made: {_short(text)}. `l2rtui events` shows more."


def needs_previous_log(why: PodReason) -> bool:
    """Return True if the last log line of the previous process would complete the sentence."""
    return why[0] == "CrashLoopBackOff"


def with_log(why: PodReason, line: str) -> PodReason:
    """Append the last line that the process has written."""
    return why[0], f"{why[1]}{_words(_short(line.strip()))}"


def node_trouble(node: NodeStruct) -> str:
    """Describe the problem of a node: ``is NotReady``; empty if it is ready."""
    for ready in node.status.conditions or ():  # no generator: called for every pod
        if ready.type == "Ready":
            break
    else:
        return ""
    if ready.status == "True":
        return ""
    trouble = "is NotReady" if ready.status == "False" else "does not answer (Ready is Unknown)"
    return f"{trouble}: {_short(ready.message)}" if ready.message else trouble


def own_finalizers(meta: ObjectMeta) -> tuple[str, ...]:
    """Return the finalizers except those of deletion propagation."""
    return tuple(finalizer for finalizer in meta.finalizers or () if finalizer not in _OF_PROPAGATION)


def deletion_blocker(meta: ObjectMeta, trouble: str, now: float) -> str:
    """Describe what delays the deletion of an object.

    Args:
        trouble: Problem of the pod's node; empty for none.
        now: Seconds since the epoch.
    """
    if finalizers := own_finalizers(meta):
        return f"the finalizer {', '.join(finalizers)} holds it"
    if trouble:
        return trouble
    # The deletion timestamp of a pod is the end of its grace period, not its start.
    left = epoch(meta.deletion_timestamp) - now
    if left > 0:
        return f"grace {left:.0f} s left"
    if "foregroundDeletion" in (meta.finalizers or ()):
        return "waits for the objects that it owns"
    grace = meta.deletion_grace_period_seconds
    return f"is still Terminating {-left:.0f} s after its grace" if grace else "is still Terminating"


# --- no node yet -------------------------------------------------------------------------------------------------
def _unplaced(pod: PodStruct, events: Sequence[EventStruct]) -> PodReason:
    # The condition is the current state; until the scheduler has written it, the event is the only source.
    condition = pod.condition("PodScheduled")
    if pod.spec.scheduling_gates:
        return "SchedulingGated", _gated(pod)
    failed = _newest(events, ("FailedScheduling",))
    present = condition.message if condition and condition.status == "False" else None
    text = present or (failed.message if failed else None)
    if not text:
        return NO_REASON
    reason = (condition.reason if condition else None) or "Unschedulable"
    if any(phrase in text for phrase in _GANG_PHRASES):
        return reason, f"its run starts as a whole, and not all of its pods can: {_short(text)}."
    selector = pod.spec.node_selector or {}
    host = selector.get("kubernetes.io/hostname", "")
    return reason, _unschedulable(text, host)


def _gated(pod: PodStruct) -> str:
    names = [gate.name for gate in pod.spec.scheduling_gates or ()]
    if labels.KUEUE_GATE in names:
        queue = pod.metadata.label(labels.KUEUE_QUEUE)
        return f"the queue {queue} of Kueue has not admitted its run yet. Its description says what is missing."
    by = f": {', '.join(filter(None, names))}" if any(names) else ""
    return f"something else must release it before it is scheduled{by}."


def _unschedulable(text: str, host: str) -> str:
    """Rephrase the scheduler's sentence; for a pinned pod only the cause at its own node matters."""
    text = re.sub(_PREEMPTION, "", text)
    match = re.match(_UNSCHEDULABLE, text)
    parts = [part.strip().rstrip(".") for part in match[2].split(", ")] if match else [text.rstrip(".")]
    mismatches = ("didn't match", "node(s) did not match", "didn't satisfy")
    # A pinned pod does not match the selector of every other node: that part hides the cause.
    causes = [part for part in parts if not any(word in part for word in mismatches)]
    # A claim that is unbound exists: it waits for its volume. The first word that occurs counts.
    hints = {
        "insufficient": "Wait until something ends there, ask for less, or choose another node.",
        "taint": "Add a toleration to the spec, or choose another node.",
        "unschedulable": "Uncordon it, or choose another node.",
        "unbound": "Its claim exists and waits for a volume: `l2rtui volume ls` says why.",
        "persistentvolumeclaim": "Make the claim, or correct its name in the spec.",
        "volume": "See to its claim: `l2rtui check`.",
    }
    if host and match and not causes:
        return f"no node has the hostname {host} that it is pinned to. Choose another node."
    texts = [_count_away(part) if host else part for part in (causes or parts)]
    if host and texts == ["were unschedulable"]:
        return f"{host} is cordoned. Uncordon it, or choose another node."
    hint = next((hint for word, hint in hints.items() if any(word in part.lower() for part in texts)), "")
    where = f"{host} does not take it: " if host else "no node takes it: "
    return f"{where}{_short(', '.join(texts))}." + (f" {hint}" if hint else "")


def _count_away(part: str) -> str:
    return re.sub(r"^\d+ (node\(s\) )?", "", part)


# --- containers --------------------------------------------------------------------------------------------------
def _container(pod: PodStruct, status: ContainerStatus, events: Sequence[EventStruct]) -> PodReason:
    state = status.state
    waiting = state.waiting if state else None
    if waiting is None:
        return NO_REASON
    reason, message = waiting.reason or "", waiting.message or ""
    name = _name(pod, status)
    if reason in _IMAGE:
        return reason, _image(status, reason, message, events, name)
    if reason in _CONFIG:
        return reason, _config(reason, message, name)
    last = status.previous_end
    if reason == "CrashLoopBackOff":
        return reason, _crash(last, status.restart_count or 0, name)
    if last is not None and last.reason == "OOMKilled":
        return "OOMKilled", f"{name}{_oom()}"
    if reason not in _PLAIN_WAITS:
        return reason, f"{name}{_short(message) or 'its node gives no message'}."
    return NO_REASON


def _ended_beside_others(pod: PodStruct) -> PodReason:
    """Explain a running pod in which one container has permanently ended while another keeps the pod alive."""
    if pod.status.phase != "Running":
        return NO_REASON
    policy = pod.spec.restart_policy or "Always"
    running = [status for status in pod.statuses if status.state and status.state.running]
    for status in pod.statuses:
        ending = status.state.terminated if status.state else None
        is_restarted = policy == "Always" or (policy == "OnFailure" and ending is not None and ending.exit_code)
        if ending is None or is_restarted or not running:
            continue
        others = ", ".join(other.name for other in running)
        ready = sum(bool(other.ready) for other in pod.statuses)
        how = _oom() if ending.reason == "OOMKilled" else f"it ended with {exit_text(ending.exit_code or 0)}"
        sentence = (
            f"container {status.name}: {how.rstrip('.')} while {others} runs on ({ready}/{len(pod.statuses)} ready)"
        )
        reason = ending.reason or ("Error" if ending.exit_code else "Completed")
        return reason, f"{sentence}. Kill the pod, or end {others} with it."
    return NO_REASON


def _initializing(pod: PodStruct, now: float) -> str:
    """Describe the init container that a pod waits for, and since when; empty if it waits for none."""
    sidecars = {init.name for init in pod.spec.init_containers or () if init.restart_policy == "Always"}
    for status in pod.init_statuses:
        state = status.state
        if state is None or status.name in sidecars:
            continue
        if state.running is not None:
            since = epoch(state.running.started_at) or epoch(pod.status.start_time)
            return (
                f"init container {status.name} runs for {now - since:.0f} s" if now - since > _SLOW_SECONDS else ""
            )
        if state.terminated is not None and state.terminated.exit_code:
            how = f"init container {status.name} ended with {exit_text(state.terminated.exit_code)}"
            return f"{how}.{_last_words(state.terminated)}" if state.terminated.message else how
    return ""


def _between_processes(pod: PodStruct) -> PodReason:
    """Explain a running pod with a container that has failed, and is about to be started again."""
    policy = pod.spec.restart_policy or "Always"
    for status in pod.statuses if pod.status.phase == "Running" else ():
        ending = status.state.terminated if status.state else None
        if ending is None or not ending.exit_code or policy == "Never":
            continue
        if ending.reason == "OOMKilled":
            return "OOMKilled", f"{_name(pod, status)}{_oom()}"
        how = f"its process ended with {exit_text(ending.exit_code)}, and its node starts the next one."
        return ending.reason or "Error", f"{_name(pod, status)}{how}{_last_words(ending)}"
    return NO_REASON


def _image(status: ContainerStatus, reason: str, message: str, events: Sequence[EventStruct], name: str) -> str:
    image = status.image or "its image"
    if reason == "InvalidImageName":
        return f"{name}{image} is not an image name. Correct `image` in the spec."
    if reason == "ErrImageNeverPull":
        return f"{name}{image} is not on the node, and the spec forbids to pull it. Load it there, or allow that."
    failed = _newest(events, ("Failed",), "pull")
    # "Back-off pulling image" hides the cause, which only the previous event names.
    text = message if "Back-off" not in message and message else (failed.message if failed else None) or message
    low = text.lower()
    if any(word in low for word in _ARCHITECTURE):
        return f"{name}{_other_architecture(image)}"
    if any(word in low for word in ("unauthorized", "authentication required", "denied", "no basic auth")):
        return f"{name}the registry does not give {image} to us. Name a pull secret in the spec (`pull_secrets`)."
    if any(word in low for word in ("not found", "manifest unknown", "does not exist")):
        return f"{name}the image {image} does not exist. Correct its name or tag, or push it."
    if any(word in low for word in ("no such host", "connection refused", "timeout", "i/o", "dial tcp")):
        return f"{name}the node does not reach the registry of {image}: {_short(text)}."
    return f"{name}{image} cannot be pulled: {_short(text)}."


def _other_architecture(image: str) -> str:
    return (
        f"{image} has no build for its node's architecture. Build it for that one "
        "(`docker buildx build --platform`), or choose another node."
    )


def _config(reason: str, message: str, name: str) -> str:
    if "exec format error" in message:
        return f"{name}{_other_architecture('its image')}"
    if match := re.search(_NOT_FOUND, message):
        return f"{name}there is no {match[1].lower()} {match[2]}. Create it, or correct its name in the spec."
    if match := re.search(_NO_KEY, message):
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
    see = "See `l2rtui logs --previous`."
    return f"{name}it ends again and again, last with {how} ({times}). {see}{_last_words(last)}"


def _last_words(ended: Terminated) -> str:
    return _words(_last_line(ended))


def _words(line: str) -> str:
    """Return the last line that a process has written as a sentence; empty without one."""
    if "exec format error" in line.lower():
        return (
            f" Its last words: {line}. It is no program for its node's architecture: build the image for that one "
            "(`docker buildx build --platform`), choose another node, or begin a script with `#!/bin/sh`."
        )
    return f" Its last words: {line}" if line else ""


def _last_line(ended: Terminated) -> str:
    return _short(last_words((ended.message or "").splitlines()))


def _oom() -> str:
    return (
        "it took more memory than its limit and was killed. Give it more `memory` in the spec, or let it use less."
    )


def _name(pod: PodStruct, status: ContainerStatus) -> str:
    """Return a prefix that names the container if the pod has several."""
    several = len(pod.spec.containers or ()) + len(pod.spec.init_containers or ()) > 1
    return f"container {status.name}: " if several else ""


# --- others ------------------------------------------------------------------------------------------------------
def _starting(pod: PodStruct, events: Sequence[EventStruct], now: float) -> PodReason:
    """Explain a scheduled pod that is not running although no container reports a problem."""
    if initializing := _initializing(pod, now):
        return "PodInitializing", initializing
    # Only events: until its volumes are mounted, a pod's containers report ContainerCreating without a cause. The
    # newest counts: a claim that was missing ten minutes ago exists by the time the image is pulled.
    newest = _newest(events, (*_PROGRESS_EVENTS, *_VOLUME_EVENTS, *_NODE_EVENTS))
    if newest is not None and newest.reason in _VOLUME_EVENTS:
        text = newest.message or ""
        if match := re.search(_NOT_FOUND, text):
            sentence = f"there is no {match[1].lower()} {match[2]} to mount. Create it, or correct the spec."
        elif "persistentvolumeclaim" in text.lower():
            hint = "Make the claim, or correct its name in the spec."
            sentence = f"its claim cannot be mounted: {_short(text)}. {hint}"
        else:
            sentence = f"a volume cannot be mounted: {_short(text)}."
        return newest.reason or "FailedMount", sentence
    if newest is not None and newest.reason in _NODE_EVENTS:
        hint = "Choose another node, or tell its administrator."
        return newest.reason or "", f"its node cannot set it up: {_short(newest.message or '')}. {hint}"
    began = epoch(pod.status.start_time or pod.metadata.creation_timestamp)
    waited = now - began if began else 0.0
    if waited > _SLOW_SECONDS:
        pulling = _newest(events, ("Pulling",))
        done = _newest(events, ("Pulled", "Failed"))
        if pulling is not None and (done is None or done.last_seen < pulling.last_seen):
            return "ContainerCreating", f"its image is being pulled for {now - pulling.last_seen:.0f} s"
        return "ContainerCreating", f"its node has not started it for {waited:.0f} s. `l2rtui events` shows more."
    return NO_REASON


def _over(pod: PodStruct) -> PodReason:
    reason, message = pod.status.reason or "", pod.status.message or ""
    # Evicted pods have no container statuses: the pod's own reason comes first.
    if reason == "Evicted" and (limit := re.search(_OWN_LIMIT, message)) is not None:
        if limit["volume"]:
            sentence = (
                f"it went over its own limit of the volume {limit['volume']} ({limit['size']}). Raise its sizeLimit"
            )
            return reason, f"{sentence}, or let it write less."
        sentence = f"it went over its own limit of ephemeral storage ({limit['total']}). Raise that limit"
        return reason, f"{sentence}, or let it write less."
    if reason == "Evicted":
        hint = "Request only what it needs, or free some."
        return reason, f"its node had too little left and put it out: {_short(message)}. {hint}"
    if reason == "DeadlineExceeded":
        return reason, "it ran longer than its activeDeadlineSeconds allows. Raise them, or let it do less."
    if reason in (NODE_LOST, "NodeShutdown", "Shutdown", "Terminated"):
        return reason, f"its node went away: {_short(message) or pod.spec.node_name or 'nobody knows which'}."
    for status in (*pod.init_statuses, *pod.statuses):
        ending = status.state.terminated if status.state else None
        if ending is not None and ending.reason == "OOMKilled":
            return "OOMKilled", f"{_name(pod, status)}{_oom()}"
        if ending is not None and ending.exit_code:
            sentence = f"{_name(pod, status)}it ended with {exit_text(ending.exit_code)}.{_last_words(ending)}"
            return ending.reason or "Error", sentence
        if ending is not None and ending.message:  # message of a learner that a limit has ended
            message = message or ending.message
    return (reason, _short(message)) if reason or message else NO_REASON


def _evicted(pod: PodStruct, events: Sequence[EventStruct]) -> PodReason:
    """Return who evicted or preempted a pod: the scheduler, a queue or an administrator."""
    for condition in pod.status.conditions or ():
        if condition.type not in _EVICTIONS or condition.status != "True" or condition.reason in _OWN_ENDS:
            continue
        # The scheduler's condition names no pod; its event names the pod that preempted this one.
        preempted = _newest(events, ("Preempted",))
        text = _short((preempted.message if preempted else None) or condition.message or "no cause is given")
        is_preempted = preempted is not None or "reempt" in f"{condition.reason}{condition.message}"
        if is_preempted:
            return "Preempted", f"it had to make room for another of higher priority: {text}."
        return condition.reason or "Evicted", f"it was put out: {text}."
    return NO_REASON


def _next_of_stuck(why: str) -> str:
    if "finalizer" in why:
        return ". The program that set it must release it, or remove it with `kubectl edit`."
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
    matches = [event for event in events if event.reason in reasons and word in (event.message or "").lower()]
    # At the same time a failure precedes progress: times are whole seconds, and both may be equal.
    return max(matches, key=lambda event: (event.last_seen, event.reason not in _GOOD_EVENTS), default=None)


def _short(text: str) -> str:
    """Shorten to one line of bounded length, without a trailing full stop."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def events_by_uid(events: Iterable[EventStruct]) -> Mapping[str, tuple[EventStruct, ...]]:
    """Group events by the uid of their object."""
    by_uid: dict[str, list[EventStruct]] = {}
    for event in events:
        if event.involved_object.uid:
            by_uid.setdefault(event.involved_object.uid, []).append(event)
    return {uid: tuple(every) for uid, every in by_uid.items()}
