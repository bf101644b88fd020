"""The simulator's container in a worker's pod: what `runtime.sim.sidecar` talks to.

It runs until the pod's worker has ended for good. Kubernetes 1.29 and later know such containers (an init container
with ``restartPolicy: Always``). Older ones do not, and a Job whose pod has one container left never ends: there it
is a plain second container, and the worker's own is started by a few lines of shell that leave word of its end.

Nobody mounts a Docker socket for this: who may use that is root on the node.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

from l2rtui.domain.containers import Security
from l2rtui.domain.quantity import format_cores
from l2rtui.domain.sidecar import Sidecar
from l2rtui.domain.workload import RestartPolicy, SetSpec
from runtime import contract

CONTAINER: Final = "simulator"
FOLDER: Final = "/run/l2r-simulator"
NATIVE_SINCE: Final = (1, 29)
"""Where the server has sidecars of its own by default."""
_VOLUME: Final = "simulator"
_SCRATCH: Final = "simulator-tmp"
_HOME: Final = "/tmp"  # noqa: S108  (the container's own, an emptyDir)

LOOP: Final = """\
dir=$1 grace=$2; shift 2
say() { echo "$1" > "$dir/.state" && mv -f "$dir/.state" "$dir/state"; }
all() { if [ $$ = 1 ]; then kill "-$1" -1; else kill "-$1" "$pid"; fi 2>/dev/null; }
start() { "$@" & pid=$!; say "$number running"; }
reap() { wait "$pid"; say "$number ended $?"; pid=; }
finish() {
  [ -n "$pid" ] || return 0
  all TERM; left=$((grace * 5))
  while [ $left -gt 0 ] && all 0; do sleep 0.2; left=$((left - 1)); done
  all KILL; reap
}
rm -f "$dir/want"; number=1 before=
[ ! -r "$dir/state" ] || read -r before rest < "$dir/state"
case $before in ""|*[!0-9]*|??????????*) ;; *) number=$((before + 1));; esac
trap 'finish; exit 0' TERM INT
start "$@"
while [ ! -e "$dir/end" ]; do
  if [ -n "$pid" ] && ! kill -0 "$pid" 2>/dev/null; then reap; fi
  if [ -r "$dir/want" ]; then
    read -r verb which signal < "$dir/want"; rm -f "$dir/want"
    case $verb in
      start) finish; number=$which; start "$@";;
      stop) finish; [ "$which" = "$number" ] || { number=$which; say "$number ended 143"; };;
      signal) [ "$which" != "$number" ] || [ -z "$pid" ] || kill "-$signal" "$pid";;
    esac
  fi
  sleep 0.1
done
finish
"""
"""Starts the simulator and ends it as asked; everything in its container is ended with it. As process 1 of the
container it may signal all of that at once; anywhere else it signals what it has started."""
UNTIL_DONE: Final = """\
dir=$1 last=$2 asked=; shift 2
trap 'asked=yes; [ -z "$!" ] || kill -TERM "$!" 2>/dev/null' TERM INT
if [ -n "$asked" ]; then exit 143; fi
"$@" & child=$!
wait "$child"; code=$?
while kill -0 "$child" 2>/dev/null; do wait "$child"; code=$?; done
if [ "$code" = 0 ] || [ "$last" = yes ]; then : > "$dir/end"; fi
exit "$code"
"""
"""Runs the worker's command, and leaves word when it will not be started again."""


def add(
    spec: dict[str, Any],
    one: SetSpec,
    sidecar: Sidecar,
    *,
    version: tuple[int, int],
    variables: dict[str, str],
    claims: list[dict[str, Any]],
) -> None:
    """Put the simulator's container into the spec of a pod whose first container is the worker's.

    Args:
        variables: Those of the run and of the device. claims: DRA's claims, which both containers share.
    """
    worker = spec["containers"][0]
    is_native = version >= NATIVE_SINCE
    container = _container(worker, one, sidecar, variables)
    if claims:
        container.setdefault("resources", {})["claims"] = claims
    shared = {"name": _VOLUME, "mountPath": FOLDER}
    spec["volumes"] += [{"name": _VOLUME, "emptyDir": {}}, {"name": _SCRATCH, "emptyDir": {}}]
    worker["volumeMounts"] = [*worker["volumeMounts"], shared]
    worker["env"] = [*worker["env"], {"name": contract.ENV_SIDECAR, "value": FOLDER}]
    # The worker's folders are the simulator's too, but for the scratch space and the exchange's key.
    seen = [dict(mount) for mount in worker["volumeMounts"] if mount["mountPath"] in _said_paths(one)]
    container["volumeMounts"] = [*seen, dict(shared), {"name": _SCRATCH, "mountPath": _HOME}]
    if is_native:
        spec["initContainers"] = [{**container, "restartPolicy": "Always"}]
        return
    spec["containers"] = [worker, container]
    if one.restart is not RestartPolicy.ALWAYS:
        last = "yes" if one.restart is RestartPolicy.NEVER else "no"
        worker["command"] = ["/bin/sh", "-c", _script(UNTIL_DONE), "l2r-worker", FOLDER, last, *worker["command"]]


def _said_paths(one: SetSpec) -> set[str]:
    """Where the spec's mounts appear, and not those that every worker gets."""
    return {mount.path for mount in one.pod.mounts if mount.path.rstrip("/") != _HOME}


def _container(worker: dict[str, Any], one: SetSpec, sidecar: Sidecar, variables: dict[str, str]) -> dict[str, Any]:
    grace = str(max(1, round(sidecar.grace_seconds)))
    env = {"HOME": _HOME, "PYTHONUNBUFFERED": "1", **variables, **dict(sidecar.env)}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": sidecar.image or worker["image"],
        "command": ["/bin/sh", "-c", _script(LOOP), "l2r-simulator", FOLDER, grace, *sidecar.command],
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if policy := worker.get("imagePullPolicy"):
        container["imagePullPolicy"] = policy
    if sidecar.folder:
        container["workingDir"] = sidecar.folder
    if resources := _resources(sidecar):
        container["resources"] = resources
    if "securityContext" in worker:
        security = deepcopy(worker["securityContext"])
        if sidecar.image and one.pod.security is Security.RESTRICTED:
            security.pop("readOnlyRootFilesystem")  # simulators write beside themselves; the standard allows it
        if sidecar.user:
            security |= {"runAsUser": sidecar.user}
        container["securityContext"] = security
    return container


def _script(text: str) -> str:
    """A script as it must stand in a pod: the kubelet makes one dollar of two."""
    return text.replace("$$", "$$$$")


def _resources(sidecar: Sidecar) -> dict[str, Any]:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if sidecar.cpu_cores is not None:
        requests["cpu"] = format_cores(sidecar.cpu_cores)
    if sidecar.memory_bytes is not None:
        requests["memory"] = limits["memory"] = str(sidecar.memory_bytes)
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
