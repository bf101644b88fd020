"""Simulator container in a worker's pod, controlled by `runtime.sim.launchers.sidecar` through a shared folder.

It runs until the worker has permanently ended. Kubernetes 1.29 and later have sidecar containers (an init container
with ``restartPolicy: Always``). Older versions do not, and a Job whose pod still has a running container never
ends: there it is an ordinary second container, and a shell script around the worker's command writes a file when
the worker has ended.

No Docker socket is mounted for this: access to it is root access to the node.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

from l2rtui.backends.kubernetes.manifests.pod_parts import resource_requirements
from l2rtui.domain.containers import Security
from l2rtui.domain.sidecar import Sidecar
from l2rtui.domain.workload import Resources, RestartPolicy, SetSpec
from runtime.base import contract

CONTAINER: Final = "simulator"
FOLDER: Final = "/run/l2r-simulator"
NATIVE_SINCE: Final = (1, 29)
"""First version that has sidecar containers by default."""
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
"""Shell script that starts the simulator and ends it on request, with every process in its container. As process 1
of the container it signals all of them; elsewhere it signals the process that it has started.
"""
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
"""Shell script that runs the worker's command, and writes a file when it will not be started again."""


def add(
    spec: dict[str, Any],
    set_spec: SetSpec,
    sidecar: Sidecar,
    *,
    version: tuple[int, int],
    variables: dict[str, str],
    claims: list[dict[str, Any]],
) -> None:
    """Add the simulator's container to the spec of a pod whose first container is the worker's.

    Args:
        version: (major, minor) of the server.
        variables: Variables of the run and of the device.
        claims: ResourceClaims, which both containers share.
    """
    worker = spec["containers"][0]
    is_native = version >= NATIVE_SINCE
    container = _container(worker, set_spec, sidecar, variables)
    if claims:
        container.setdefault("resources", {})["claims"] = claims
    shared = {"name": _VOLUME, "mountPath": FOLDER}
    spec["volumes"] += [{"name": _VOLUME, "emptyDir": {}}, {"name": _SCRATCH, "emptyDir": {}}]
    worker["volumeMounts"] = [*worker["volumeMounts"], shared]
    worker["env"] = [*worker["env"], {"name": contract.ENV_SIDECAR, "value": FOLDER}]
    # The simulator shares the folders of the spec, but neither scratch space nor the exchange's key.
    worker_mounts = [dict(mount) for mount in worker["volumeMounts"] if mount["mountPath"] in _spec_paths(set_spec)]
    container["volumeMounts"] = [*worker_mounts, dict(shared), {"name": _SCRATCH, "mountPath": _HOME}]
    if is_native:
        # After the containers that prepare its folders, before the worker.
        spec["initContainers"] = [*spec.get("initContainers", ()), {**container, "restartPolicy": "Always"}]
        return
    spec["containers"] = [worker, container]
    if set_spec.restart is not RestartPolicy.ALWAYS:
        # With Never, any end is final; with OnFailure, only a success is.
        last = "yes" if set_spec.restart is RestartPolicy.NEVER else "no"
        worker["command"] = ["/bin/sh", "-c", _script(UNTIL_DONE), "l2r-worker", FOLDER, last, *worker["command"]]


def _spec_paths(set_spec: SetSpec) -> set[str]:
    """Return the paths of the spec's mounts, without those that every worker gets."""
    return {mount.path for mount in set_spec.pod.mounts if mount.path.rstrip("/") != _HOME}


def _container(
    worker: dict[str, Any], set_spec: SetSpec, sidecar: Sidecar, variables: dict[str, str]
) -> dict[str, Any]:
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
    resources = resource_requirements(Resources(sidecar.cpu_cores, sidecar.memory_bytes), {})
    if resources:
        container["resources"] = resources
    if "securityContext" in worker:
        security = deepcopy(worker["securityContext"])
        if sidecar.image and set_spec.pod.security is Security.RESTRICTED:
            security.pop("readOnlyRootFilesystem")  # simulators write next to their binary; `restricted` allows it
        if sidecar.user:
            security |= {"runAsUser": sidecar.user}
        container["securityContext"] = security
    return container


def _script(text: str) -> str:
    """Escape a script for a pod's command, in which ``$(NAME)`` is expanded and ``$$`` means one dollar."""
    return text.replace("$$", "$$$$")
