"""Contract between a launcher and the processes that it starts: variables, files, exit codes, metric records.

Both packages read this file, so it only has constants and imports nothing beyond the standard library. A launcher
sets the variables; a process needs nothing else to find its peers.
"""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION: Final = 4
"""Version of the learner/worker exchange; peers of another version are refused at HELLO."""

MAX_TEXT: Final = 512
"""Maximum length of a name, a token or another text in the exchange."""

# --- variables that a launcher sets in every process of a run -------------------------------------------
ENV_RUN: Final = "L2R_RUN"
"""Name of the run, for example ``racing-sac``."""
ENV_RUN_ID: Final = "L2R_RUN_ID"
"""Unique id of this launch of the run; a leak check uses it to find every process of the run."""
ENV_POD: Final = "L2R_POD"
"""Name of this process in the launcher's lists, for example ``racing-sac-w-0``."""
ENV_POD_ID: Final = "L2R_POD_ID"
"""Unique id of this incarnation of the pod; a restarted container keeps it, a replaced pod does not."""
ENV_ROLE: Final = "L2R_ROLE"
"""``learner``, ``worker``, ``evaluator`` or another role of the spec."""
ENV_SET: Final = "L2R_SET"
"""Name of the worker set."""
ENV_INDEX: Final = "L2R_INDEX"
"""Index of the replica within its set, from 0. It is not set for pods whose variables are all equal (the pods of
one ReplicaSet); a process then derives its number from ``L2R_POD_ID``.
"""
ENV_SEED: Final = "L2R_SEED"
"""Seed of the run; a process derives its own seed from it and from its role and index."""
ENV_ENDPOINT: Final = "L2R_ENDPOINT"
"""Address at which the learner listens and the others connect: ``ipc:///DIR`` (a folder) or ``tcp://HOST:PORT``."""
ENV_TOKEN_FILE: Final = "L2R_TOKEN_FILE"  # noqa: S105  (a path, not a secret)
"""File with the run's shared token, mode 0600; without it the learner requires no token."""
ENV_KEYS: Final = "L2R_KEYS"
"""Folder with keys for an encrypted exchange over TCP: ``server.key`` and ``client.pub`` at a learner,
``client.key`` and ``server.pub`` elsewhere (`runtime.exchange.transport.curve_keys.make_files` makes all four).
Without it, an endpoint that other machines reach is encrypted with keys that both sides derive from the token;
``ipc://`` and loopback are not encrypted."""
ENV_STATUS: Final = "L2R_STATUS"
"""Address at which a learner answers ``/status`` (JSON) and ``/metrics`` (Prometheus) over HTTP: ``HOST:PORT``, for
example ``0.0.0.0:5557`` to let a scraper in. Not set: ``127.0.0.1`` and the port after the model socket's for
``tcp://``, the socket ``status.sock`` in the folder for ``ipc://``."""
ENV_DIR: Final = "L2R_DIR"
"""Folder for data that outlives the process: ``checkpoints/``, ``tensorboard/``, ``metrics.jsonl``."""
END_FILE: Final = "end.json"
"""File in that folder with the ``end`` record of a learner whose run is complete."""
ENV_CONFIG: Final = "L2R_CONFIG"
"""JSON object of training settings (the spec's ``train``); see ``l2r-runtime config``."""
ENV_CPUS: Final = "L2R_CPUS"
"""CPU cores that this process may use for numerical threads, a positive number."""
ENV_JOINERS: Final = "L2R_JOINERS"
"""Number of processes that may join this learner or parameter server. When the run is done, it waits up to a minute
for those that have not learned that yet: they may only now be starting, and only it can tell them. Not set: it does
not wait.
"""
ENV_LIMITS: Final = "L2R_LIMITS"
"""JSON object of the run's limits, for its learner: ``wall``, ``idle``, ``no_progress`` (seconds), ``gpu_hours``,
and ``gpus``, the number of GPUs that the run was placed on; see ``runtime.base.limits``. Not set: no limits.
"""
ENV_ALERTS: Final = "L2R_ALERTS"
"""JSON list of the rules by which the learner sends alerts; see ``runtime.base.alert_rules``. They name the
variables with secret addresses, never the addresses. Not set: no alerts.
"""
ENV_TRY_ENVIRONMENT: Final = "L2R_TRY_ENVIRONMENT"
"""``0`` for a learner whose workers have other variables, images or volumes: only they can tell whether the
environment works. Not set: the learner takes a step of it before it trains.
"""
ENV_SIMULATOR: Final = "L2R_SIM"
"""Set by a worker in every process of a simulator that it starts, with an id of that start; a leak check uses it to
find the processes of one simulator. They also have the run's variables.
"""
ENV_SIDECAR: Final = "L2R_SIDECAR"
"""Folder that a worker shares with the simulator in the sidecar container; see ``runtime.sim.launchers.sidecar``.
"""

ENV_PEERS: Final = "L2R_PEERS"
"""Addresses of the run's processes that others find by name: JSON ``{SET: [ENDPOINT, …]}`` by index, each
``tcp://HOST:PORT`` or ``ipc:///DIR`` (a folder, as in ``L2R_ENDPOINT``).
"""
ENV_POD_IP: Final = "L2R_POD_IP"
"""Address at which the other processes of the run reach this one."""
ENV_ROUND: Final = "L2R_ROUND"
"""Set by a node of an elastic job in its training processes: the round of the rendezvous, from 0."""
ENV_NODE_DIR: Final = "L2R_NODE_DIR"
"""Set by a node of an elastic job in its training processes: a folder on this node's own disk, empty when the node
starts, for state that outlives a round. In the next round the newest state of all nodes is used.
"""

ENV_LOCAL_RUN: Final = "L2R_LOCAL_RUN"
"""Folder of the run, in every process of a run on a machine without containers."""
SET_BY_LAUNCHERS: Final = frozenset(
    {
        *(ENV_RUN, ENV_RUN_ID, ENV_POD, ENV_POD_ID, ENV_ROLE, ENV_SET, ENV_INDEX, ENV_SEED, ENV_ENDPOINT),
        *(ENV_TOKEN_FILE, ENV_DIR, ENV_CONFIG, ENV_CPUS, ENV_JOINERS, ENV_LIMITS, ENV_ALERTS, ENV_LOCAL_RUN),
    }
)
"""Variables that launchers set last: a value of a spec or a secret would have no effect."""

# --- several workers in one pod (`l2r-runtime supervise`) -------------------------------------------------
WORKER_NAME: Final = "{}.{}"
"""Name, or id, of a worker of a pod: the pod's name or id, and the worker's number from 0."""
WORKER_LINE: Final = "[{}] "
"""Prefix of each line that a worker has written, in the log of its pod."""
WORKER_MARK: Final = "[{}]! "
"""Prefix of a line that the supervisor writes about a worker."""
WORKERS_RECORD: Final = "workers"
"""Kind of the metric record about all workers of a pod."""
GPU_RECORD: Final = "gpu"
"""Kind of the metric record that names the GPUs visible to a process."""

# --- the exchange over TCP ------------------------------------------------------------------------------
DATA_PORT: Final = 5555
"""Default TCP port of the data socket; the model socket is the next one."""

RENDEZVOUS_PORT: Final = 29400
"""TCP port of an elastic job's rendezvous; torch's own default."""
PS_PORT: Final = 2222
"""TCP port of parameter servers and their workers; TensorFlow's own default."""

# --- exit codes of `l2r-runtime` ------------------------------------------------------------------------
EXIT_DONE: Final = 0
"""Finished, or asked to end by SIGTERM and ended cleanly."""
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_REFUSED: Final = 3
"""The learner refused this process (version, token or shapes); a restart will not help."""
EXIT_NOT_FINITE: Final = 65
"""Losses, weights or values from the environment are infinite or NaN; a restart loads the newest checkpoint."""
EXIT_ENVIRONMENT: Final = 66
"""The environment breaks its interface or its own spaces; its code has to change before a restart can help."""
EXIT_INTERRUPTED: Final = 143
"""A step, a fetch, a training node or a parameter server was ended by SIGTERM before its work was done. Not 0: a
job whose pod is evicted midway must not count as complete.
"""

# --- metric records on standard output ------------------------------------------------------------------
METRIC_PREFIX: Final = '{"l2r":"'
"""Start of the line of every metric record: JSON without spaces, its kind under ``l2r``.

Every record has ``time`` (seconds since the epoch).

``learner``: ``env_steps``, ``updates`` and ``policy_version`` are integers that never fall within a run.
``learned_env_steps`` are the steps behind its networks; a restart may lose some. ``policy_lag`` is ``[min, mean,
max]`` in versions, over the records since the last line. ``env_steps_per_second`` and ``updates_per_second`` are
rates. ``mean_return`` is of the latest training episodes, or null. ``eval_return`` and ``eval_progress`` are of
the latest evaluation, or null. ``workers`` are connected now. Losses follow by name. ``device`` is text for
display, such as ``cpu`` or ``cuda:0 NVIDIA H100 80GB HBM3``. ``limit`` is a sentence, if a limit of the run is
near or reached. ``bound_by`` is what its time mostly goes to, and ``bound_share`` that share: ``update``,
``workers`` (it waits for data), ``environment`` (its own copies) or ``network thread`` (a share of a core, which
is also ``network_share``). `l2rtui describe` says of workers what they wait for. On a GPU it has three more, if
they are known. ``gpu_percent`` is the share of the time in which a kernel ran. ``gpu_memory_bytes`` is the memory
in use by all processes that share the GPU. ``gpu_reserved_bytes`` is the part of this process. With several GPUs
the first is the mean, and the others are sums.
``worker``: ``num_envs`` is the number of copies of the environment that it steps. ``environment_share`` is the
share of its time in their steps, and ``waiting_share`` the share without credit or policy. On a GPU whose driver
reports them it has ``gpu_percent`` and ``gpu_memory_bytes`` too. If a step of the environment took a second or
more, it has ``step_seconds`` (the last step) and ``longest_step_seconds``; during a step of that length,
``stepping_seconds`` (so far). With simulators it has ``simulator_state``, the worst of ``starting``, ``ready``,
``lost``, ``given up`` and ``stopped``. ``simulator_restarts`` is a count, ``simulator_fps`` is poses a second,
and ``simulator_error`` is the newest sentence, or null.
``evaluator``: the fields of an evaluation, such as ``policy_version``, ``episodes``, ``eval_return``,
``eval_progress`` and ``random_return`` (of a random policy, for comparison).
``elastic``: a node writes one when its part in the training changes, with ``state`` (``waiting``, ``training``,
``finished`` or ``left``), ``nodes``, ``rank`` (the first of its processes), ``world_size`` and ``round`` of the
rendezvous; each training process with ``rank``, ``world_size``, ``round``, ``epoch``, ``step`` (over all epochs),
``loss`` (mean since its last record), ``accuracy`` (on the training images since then), ``resumed_step`` (where it
began in this round, 0 if no node had state) and ``resumed_from`` (the node with that state, or null).
``evaluation``: ``accuracy`` from 0 to 1, ``samples``, ``classes`` (accuracy by name of the class).
``step``: ``name``, ``state`` (``waiting``, ``running``, ``done``, ``failed`` or ``skipped``), ``exit_code`` (or
null), ``seconds`` (or null), ``detail`` (a few words).
``end``: a learner writes one when its run is complete: ``run_id``, ``reason``, ``limit`` (true if a limit has ended
it), ``env_steps`` and ``updates``.
``gpu``: ``uuids`` of the GPUs visible to a process, if they are known; written once at its start.
``workers``: a supervisor of several workers in one pod writes one at each change, and every ten seconds:
``workers`` (by number: ``state``, which is ``running``, ``waiting`` for its next start or permanently ``ended``,
``restarts``, ``exit_code`` of its last process that ended or null, ``started`` or null) and ``uuids``.
``fetch``: ``source``, ``state`` (``running``, ``done`` or ``failed``), ``bytes``, ``total_bytes`` (or null).
``ps``: ``role`` (``ps`` or ``worker``), ``index``, ``global_step``, ``local_step`` (of a worker), ``loss``.
"""
