"""Layout of this backend on disk.

::

    <state>/l2rtui/local/         0700
      lock                        flock: launch, scale and the last step of destroy, one at a time
      runs/<run>/
        run.json                  desired state; the backend writes it, the supervisor reads it
        status.json               observed state; only the supervisor writes it
        events.jsonl              what happened to the run and its pods; only the supervisor writes it
        requests/<pod uid>.json   stop this pod once; destroy.json: stop all permanently
        logs/<pod>/<n>.log        the n-th process of a pod of this name; n.log.1 is the part before its rotation;
                                  n.taken is output that has left its FIFO on the way into the log
        pipes/                    one FIFO for each running process
        sockets/                  the learner's endpoint, where a socket path fits
        cgroup                    control group of all its processes, where one may be created
        supervisor.lock .log      named and locked by the living supervisor; its traceback when it fails
        token  data/              the run's shared secret; L2R_DIR
        programs/<set>/<name>     programs that came with the spec
        workdir/tree packages     own code of the run, in which its processes start; what its setup has installed
      secrets/NAME.json           0600: variables that processes get by reference
      results/<run>-<uid8>/       data/ of destroyed runs; in workdir/ the files that they wrote beside their code
      reservations.json           reservations of slots, by node
      packages/<key>/             what pip has installed for setups, for the next run with the same requirements
      volumes/<claim>/            mounted at /l2r by runs that name it; it outlives them
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

# A run's name cannot start with a dot (``name_problem``), so neither prefix collides with a run.
STAGED = ".new-"
"""Prefix of a run's folder until it is complete; a rename then publishes it."""
REMOVED = ".gone-"
"""Prefix of a run's folder while it is being deleted."""


class _Below:
    """Attribute that is a path below the folder of its owner."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: StateFolder | RunFolder, _: object = None) -> Path:
        return folder.path / self._name


class StateFolder(Struct, frozen=True):
    """The folder of this backend."""

    path: Path

    runs = _Below("runs")
    """Folder of the runs."""
    results = _Below("results")
    """Folder of the results of destroyed runs."""
    volumes = _Below("volumes")
    """Folder of the volumes that runs share."""
    secrets = _Below("secrets")
    """Folder of the secrets of `l2rtui secret`."""
    packages = _Below("packages")
    """Folder of the packages that setups of runs share."""
    reservations = _Below("reservations.json")
    """Reservations of slots."""
    lock = _Below("lock")
    """File for flock."""

    def run(self, name: str) -> RunFolder:
        """Folder of one run, whether it exists or not."""
        return RunFolder(self.runs / name)


class RunFolder(Struct, frozen=True):
    """The folder of one run."""

    path: Path

    @property
    def root(self) -> StateFolder:
        """The state folder that it is in."""
        return StateFolder(self.path.parent.parent)

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    record = _Below("run.json")
    """Desired state, a RunRecord."""
    status = _Below("status.json")
    """Observed state, a RunStatus."""
    events = _Below("events.jsonl")
    """Journal of events, lines of EventRecord."""
    requests = _Below("requests")
    """Folder of requests to the supervisor, which it removes when they are handled."""
    destroy_request = _Below("requests/destroy.json")
    """Request to end the run; it is kept, so that a later supervisor sees it too."""
    pipes = _Below("pipes")
    """Folder of the FIFOs between processes and their logs."""
    sockets = _Below("sockets")
    """Folder of the learner's endpoint, if its socket paths are short enough."""
    supervisor_lock = _Below("supervisor.lock")
    """Lock file of the living supervisor, which ensures that there is only one; it contains its ProcessIdentity."""
    cgroup = _Below("cgroup")
    """Folder of the run's control group, as text."""
    supervisor_log = _Below("supervisor.log")
    """Traceback of a supervisor that failed."""
    token = _Below("token")
    """The run's shared secret."""
    workdir = _Below("workdir")
    """Folder of a run's own code; see ``backends.common.workdirs``."""
    data = _Below("data")
    """Folder of files that outlive processes: checkpoints and metrics."""

    def program(self, set_name: str, name: str) -> Path:
        """The program of a set."""
        return self.path / "programs" / set_name / name

    def log_dir(self, pod: str) -> Path:
        """Folder of the logs of all pods that had this name."""
        return self.path / "logs" / pod
