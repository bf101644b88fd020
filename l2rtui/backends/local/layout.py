"""Where everything of this backend lies on disk, in one place.

::

    <state>/l2rtui/local/         0700
      lock                        flock: launch, scale and the last step of destroy, one at a time
      runs/<run>/
        run.json                  what is wanted; the backend writes it, the supervisor follows it
        status.json               what is; only the supervisor writes it
        requests/<pod uid>.json   stop this pod once; destroy.json: stop all, for good
        logs/<pod>/<n>.log        the n-th process of a pod of this name; n.log.1 is the part set aside before it
        pipes/                    one FIFO for each running process
        sockets/                  the learner's endpoint, where a socket path fits
        supervisor.lock .log      names and is locked by the living supervisor; what it says when it breaks
        token  data/              the run's shared secret; L2R_DIR
        programs/<set>/<name>     programs that came with the spec
      secrets/NAME.json           0600: variables that processes are given by reference
      results/<run>-<uid8>/       data/ of destroyed runs that held checkpoints or metrics
      volumes/<claim>/            what runs mount at /l2r by this name; it outlives them
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STAGED = ".new-"
"""Start of the name of a run's folder before it is complete; a rename then publishes it at once."""
REMOVED = ".gone-"
"""Start of the name of a run's folder while it is deleted."""


@dataclass(frozen=True, slots=True)
class Root:
    """The folder of this backend."""

    path: Path

    @property
    def runs(self) -> Path:
        """Folder of the runs."""
        return self.path / "runs"

    @property
    def results(self) -> Path:
        """Folder of what destroyed runs leave on purpose."""
        return self.path / "results"

    @property
    def volumes(self) -> Path:
        """Folder of the volumes that runs share."""
        return self.path / "volumes"

    @property
    def secrets(self) -> Path:
        """Folder of what `l2rtui secret` keeps."""
        return self.path / "secrets"

    @property
    def lock(self) -> Path:
        """File for flock."""
        return self.path / "lock"

    def run(self, name: str) -> RunFolder:
        """Folder of one run, whether it exists or not."""
        return RunFolder(self.runs / name)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def root(self) -> Root:
        """The folder of the backend that it is in."""
        return Root(self.path.parent.parent)

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def record(self) -> Path:
        """What is wanted, a RunRecord."""
        return self.path / "run.json"

    @property
    def status(self) -> Path:
        """What is, a RunStatus."""
        return self.path / "status.json"

    @property
    def requests(self) -> Path:
        """Folder of what the supervisor is asked to do once."""
        return self.path / "requests"

    @property
    def destroy_request(self) -> Path:
        """Its being there asks for the end of the run."""
        return self.requests / "destroy.json"

    @property
    def pipes(self) -> Path:
        """Folder of the FIFOs between processes and their logs."""
        return self.path / "pipes"

    @property
    def sockets(self) -> Path:
        """Folder of the learner's endpoint, where its socket paths fit."""
        return self.path / "sockets"

    @property
    def guard(self) -> Path:
        """File that the living supervisor locks, so that there are never two, and that names it (a Proc)."""
        return self.path / "supervisor.lock"

    @property
    def diary(self) -> Path:
        """What a supervisor that breaks has to say."""
        return self.path / "supervisor.log"

    @property
    def token(self) -> Path:
        """The run's shared secret."""
        return self.path / "token"

    @property
    def data(self) -> Path:
        """What outlives processes: checkpoints and metrics."""
        return self.path / "data"

    def program(self, set_name: str, name: str) -> Path:
        """The program of a set."""
        return self.path / "programs" / set_name / name

    def log_dir(self, pod: str) -> Path:
        """Folder of the logs of all pods that had this name, one after the other."""
        return self.path / "logs" / pod
