"""The supervisor of one run: ``python -m l2rtui.backends.local.supervision.supervisor RUNDIR``.

One small process in its own session, which outlives the app. It brings the processes in line with the desired state
(``run.json`` and ``requests/``), writes the observed state (``status.json``), copies the output of processes into
their logs, and ends when no process runs or will run. It sleeps until a process ends, prints, or a signal says that
a file has changed. It keeps nothing in memory that a successor could not read again from the same files.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from l2rtui.backends.local import process_scan, state_files
from l2rtui.backends.local.environment import clean_environ
from l2rtui.backends.local.paths import RunFolder
from l2rtui.backends.local.state_files import (
    DesiredPod,
    PodRecord,
    ProcessIdentity,
    RunRecord,
    RunStatus,
    StopRequest,
)
from l2rtui.backends.local.supervision import kill_escalation
from l2rtui.backends.local.supervision.supervised_pod import (
    Backstop,
    SupervisedPod,
    SupervisionContext,
    backstop_of,
)
from l2rtui.backends.local.supervision.supervised_process import AdoptedProcesses
from l2rtui.backends.local.supervision.watcher import Watchers
from l2rtui.domain.kinds import DECISIVE_ROLES
from l2rtui.domain.status import Phase
from l2rtui.errors import L2RError
from runtime.base.atomic_files import try_lock
from runtime.base.cgroups import RunGroup, leave_run_group, usable_cores
from runtime.base.processes import adopt_orphans

WAKE_SIGNAL = signal.SIGUSR1
"""``run.json`` or ``requests/`` has changed; sent only to the supervisor that its lock file names."""
EXIT_ALREADY_SUPERVISED = 3
"""Another supervisor has the lock of this run."""
_ROUND_SECONDS = 10.0
"""Interval of the check that its folder still exists, and of retries to write the status."""
_OUTPUT_SECONDS = 0.02
"""Minimum time between two copies of output while processes print: copying line by line would cost five times as
much.
"""
_LOCK_FILE_BYTES = 128
"""Constant size of the lock file, so that no remains of longer content follow shorter content."""
_ADOPTION_SECONDS = 1.0
"""Interval of looks for orphans where no control group holds them: no signal reports them, and those that are not
recorded when the supervisor is killed are lost.
"""
_ORPHAN_SECONDS = 0.02
"""First pause between two scans for orphans that survive a SIGKILL; doubled up to a second."""
_TAKE_OVER_SCANS = 100
"""Maximum number of scans for processes without a pod when a supervisor takes over."""
_NO_PIDFD_SECONDS = 0.5
_KILL_SECONDS = 5.0
"""Longest wait at the end for processes that were sent SIGKILL; a process that sleeps in the kernel ignores it."""


class Supervisor:
    """Starts, restarts and stops the pods of one run; see the module docstring."""

    def __init__(self, folder: RunFolder, record: RunRecord, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._folder_inode = _inode(folder.path)
        self._selector = selectors.DefaultSelector()
        cwd = record.cwd if os.access(record.cwd, os.X_OK) else str(folder.path)
        os.chdir(cwd)
        self._context = SupervisionContext(
            folder,
            record,
            environ,
            usable_cores(),
            cwd,
            self._selector,
            self._note_change,
            self._report_problem,
            self._withdraw_problem,
        )
        self.me = process_scan.identify(os.getpid())
        self._status = RunStatus(run=record.uid, supervisor=self.me)
        self._pods: dict[str, SupervisedPod] = {}
        self._adopted = AdoptedProcesses(folder, ())
        self._desired: dict[str, DesiredPod] = {}
        self._is_changed = True
        self._must_read = True
        self._must_poll = True
        self._has_copied_output = False
        self._destroy: StopRequest | None = None
        self._handled_requests: list[Path] = []
        # Deadlines are monotonic: a change of the date must neither stop the rounds nor make them spin.
        self._round_at = time.monotonic() + _ROUND_SECONDS
        self._orphan_scan_at = 0.0
        self._orphan_wait = _ORPHAN_SECONDS
        self._backstop: Backstop | None = None
        self._group: RunGroup | None = None
        self._watchers = Watchers(folder, record.spec.name, record.uid, environ)
        self._adoption_at = 0.0
        self._lock: int | None = None

    def open(self) -> None:
        """Install signal handlers and take over the processes of an earlier supervisor."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        # The interpreter writes each signal's number into this pipe, so select() wakes without a race.
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        # Handlers instead of SIG_IGN: ignored signals stay ignored in the processes that we start.
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, WAKE_SIGNAL):
            signal.signal(number, lambda *_: None)
        self._selector.register(reader, selectors.EVENT_READ, reader)
        adopt_orphans()
        self._enter_group()
        self._watchers.start()
        self._take_over()
        self._save()

    def name_in(self, lock: int) -> None:
        """Write our name into the lock file that we hold, for those who wake us; repaired if it is damaged."""
        self._lock = lock
        name = msgspec.json.encode(self.me).ljust(_LOCK_FILE_BYTES)
        if os.pread(lock, _LOCK_FILE_BYTES + 1, 0) != name:
            with contextlib.suppress(OSError):  # a full disk: the status names us, too
                os.ftruncate(lock, os.pwrite(lock, name, 0))

    def close(self) -> None:
        """End the watchers; leave the run's control group, which is removed unless it has other processes."""
        self._watchers.end()
        leave_run_group()
        if self._group is not None:
            self._group.remove()

    def run(self) -> None:
        """Supervise the pods until all have ended."""
        while True:
            if self._must_read:
                self._must_read = False
                self._is_changed |= not self._folder.status.exists()
                self._read_record()
                self._read_requests()
                self._reconcile()
            if self._must_poll:
                self._must_poll = False
                self._watchers.ensure()
                for pod in self._pods.values():
                    if pod.poll_exit():
                        self._orphan_scan_at = 0.0
                self._look_at_adopted()
            self._kill_orphans()
            # After the exits are handled: the end of the last decisive pod then counts in this very turn.
            self._finish_run()
            self._end_by_limit()
            for pod in tuple(self._pods.values()):
                pod.run_due()
            self._replace_stopped()
            self._save()
            if all(pod.is_over for pod in self._pods.values()):
                self._end_adopted()
                if self._announce_end():
                    return
            if not self._must_read:
                self._wait()

    # --- desired state -----------------------------------------------------------------------------------------
    def _read_record(self) -> None:
        # The folder was removed, and perhaps another of its name was created: treat that as a destroy.
        if _inode(self._folder.path) != self._folder_inode:
            self._destroy = self._destroy or StopRequest()
            return
        try:
            record = state_files.read_or_set_aside(self._folder.record, RunRecord)
        except state_files.NewerError as error:
            record = self._context.record  # a later version's record cannot be interpreted here
            self._report_problem(f"{self._folder.record} is of a newer l2rtui and has no effect: {error}")
        if record is None and self._folder.record.is_file():
            record = self._context.record  # it is not damaged: it cannot be read at the moment
        if record is None or record.uid != self._context.record.uid:
            # The record in memory is the only one left: write it back, so that the app and a successor find it.
            with contextlib.suppress(OSError):  # the disk is full: the next round tries again
                state_files.write_atomic(self._folder.record, self._context.record, sync=True)
        else:
            self._context.record = record
        self._desired = {desired.plan.name: desired for desired in self._context.record.pods}

    def _read_requests(self) -> None:
        by_uid = {pod.record.uid: pod for pod in self._pods.values()}
        for path in sorted(self._folder.requests.glob("*.json")):
            request = state_files.read_or_set_aside(path, StopRequest)
            if request is None:
                continue
            if path == self._folder.destroy_request:
                self._destroy = request
                continue
            if pod := by_uid.get(path.stem):
                pod.stop(request.grace_seconds)
            # Removed only after the status is written: a process that sees the file gone may rely on the status.
            self._handled_requests.append(path)

    def _reconcile(self) -> None:
        """Stop pods that are no longer desired, and start new ones."""
        if self._destroy is not None:
            self._desired = {}
            if not self._status.is_destroying:
                self._status.is_destroying = self._is_changed = True
                self._context.note("", "Destroying", "every pod is stopped permanently")
        for name, pod in self._pods.items():
            desired = self._desired.get(name)
            # By uid, not by name: a replica that was removed and added again is another pod.
            if desired is None or desired.uid != pod.record.wish:
                pod.stop(self._destroy.grace_seconds if self._destroy else None)
        for name, desired in self._desired.items():
            if name not in self._pods:
                self._pods[name] = pod = SupervisedPod.new(self._context, desired)
                pod.start()

    def _finish_run(self) -> None:
        """Finish the run when its decisive pods have succeeded: the others would wait for them forever.

        Decisive pods are the learner, the workers of parameter servers, and the nodes of an elastic job.
        """
        role = DECISIVE_ROLES.get(self._context.record.spec.kind)
        if role is None:
            return
        decisive = [pod for pod in self._pods.values() if pod.record.plan.set_spec.role is role]
        if decisive and all(pod.has_succeeded for pod in decisive):
            for pod in self._pods.values():
                pod.finish()

    def _end_by_limit(self) -> None:
        """End all pods at the deadline of the run, which counts as finished; its slots become free."""
        backstop = self._backstop
        if backstop is None or self._destroy is not None or time.monotonic() < backstop.at:
            return
        if not self._status.ended_by:
            self._status.ended_by = backstop.label
            self._context.note("", "LimitReached", f"{backstop.label}: its pods are stopped", is_warning=True)
            self._is_changed = True
        for pod in self._pods.values():
            pod.finish(backstop.label)

    def _enter_group(self) -> None:
        earlier = state_files.read_line(self._folder.cgroup)
        self._group = RunGroup.enter(self._context.record.uid, earlier)
        if self._group is not None and str(self._group.folder) != earlier:
            with contextlib.suppress(OSError):  # on a full disk a destroy looks at the default place
                self._folder.cgroup.write_text(str(self._group.folder), "utf-8")

    # --- observed state ----------------------------------------------------------------------------------------
    def _take_over(self) -> None:
        """Continue from the last status; without one, from the processes themselves."""
        self._read_record()
        status = state_files.read_or_set_aside(self._folder.status, RunStatus)
        self._adopted = AdoptedProcesses(self._folder, status.adopted if status is not None else ())
        self._backstop = backstop_of(self._context.record, status, time.monotonic())
        self._status.limit_at = self._backstop.at if self._backstop is not None else None
        self._status.ended_by = status.ended_by if status is not None else ""
        verb = "Launched" if status is None else "Adopted"
        self._context.note("", verb, f"its supervisor is pid {self.me.pid}")
        records = self._recover_records() if status is None else status.pods
        for record in records:
            self._pods[record.plan.name] = pod = SupervisedPod(self._context, record)
            pod.take_over()
        # The predecessor may have died between a start and its status: such a process would run in parallel with
        # its replacement. Processes without a pod's uid are the supervisor's own.
        kept_uids = {""} | {record.uid for record in records if record.proc}
        uid = self._context.record.uid
        for _ in range(_TAKE_OVER_SCANS):
            if not kill_escalation.kill_tagged(
                lambda process: process.run_id == uid and process.pod_id not in kept_uids
            ):
                break
            time.sleep(_ORPHAN_SECONDS)

    def _recover_records(self) -> list[PodRecord]:
        """Rebuild the records of running pods from the tags of their processes and the names of their FIFOs."""
        records = []
        uid = self._context.record.uid
        for process in process_scan.find_tagged(
            lambda process: process.run_id == uid and process.pod in self._desired
        ):
            pipes = sorted(self._folder.pipes.glob(f"{process.pod_id}.*"))
            # Descendants have the same tags; the pod's own process leads the session.
            if pipes and _leads_session(process.proc):
                desired = self._desired[process.pod]
                record = PodRecord(uid=process.pod_id, wish=desired.uid, plan=desired.plan, created=desired.created)
                record.proc, record.serial = process.proc, int(pipes[-1].suffix[1:])
                record.phase, record.started = Phase.RUNNING, time.time()
                records.append(record)
        return records

    def _kill_orphans(self) -> None:
        """Kill descendants of ended processes, whatever their session; only then handle the exit of the pod."""
        ended = {
            pod.record.uid: pod for pod in self._pods.values() if pod.process is not None and pod.process.is_gone
        }
        if not ended or time.monotonic() < self._orphan_scan_at:
            return
        killed = {
            process.pod_id for process in kill_escalation.kill_tagged(lambda process: process.pod_id in ended)
        }
        self._look_at_adopted()
        is_last = not any(pod.process is not None and not pod.process.is_gone for pod in self._pods.values())
        strays = self._adopted.kill(lambda uid: uid in ended or (is_last and not uid))
        killed |= set(ended) if "" in strays else strays
        # A process in the kernel may ignore SIGKILL for minutes, and a scan of /proc is not free.
        self._orphan_wait = min(2 * self._orphan_wait, 1.0) if killed else _ORPHAN_SECONDS
        self._orphan_scan_at = time.monotonic() + self._orphan_wait if killed else 0.0
        for uid, pod in ended.items():
            if uid not in killed:
                pod.handle_exit()

    def _look_at_adopted(self) -> None:
        self._adoption_at = time.monotonic() + _ADOPTION_SECONDS
        own = {pod.process.proc.pid for pod in self._pods.values() if pod.process is not None}
        if self._adopted.look(own | self._watchers.pids, self._group.members() if self._group is not None else ()):
            self._status.adopted = self._adopted.living
            self._is_changed = True

    def _end_adopted(self) -> None:
        """Kill the remaining descendants of this process; those that cannot be killed stay in the status."""
        until = time.monotonic() + _KILL_SECONDS
        self._look_at_adopted()
        while self._adopted.kill(lambda _: True) and time.monotonic() < until:
            time.sleep(_ORPHAN_SECONDS)
            self._look_at_adopted()  # killing a process makes us the parent of its children

    def _replace_stopped(self) -> None:
        """Replace stopped pods that are still desired; forget the others."""
        for name, pod in tuple(self._pods.items()):
            if pod.process is not None or not pod.record.is_terminating:
                continue
            desired = self._desired.get(name)
            if desired is None:
                del self._pods[name]
            elif desired.uid != pod.record.wish:
                self._pods[name] = SupervisedPod.new(self._context, desired)
                self._pods[name].start()
            else:
                self._pods[name] = pod.replacement()
            self._is_changed = True

    def _announce_end(self) -> bool:
        """Write into the status that we end, then read once more; return False if something arrived in between.

        A process that writes a record or request after the announcement starts another supervisor; files written
        before it are read here. So no request is lost in between.
        """
        self._status.is_ended = self._is_changed = True
        self._save()
        if self._destroy is None:
            before = self._context.record
            self._read_record()
            self._must_read = self._context.record != before or any(self._folder.requests.glob("*.json"))
        self._status.is_ended = not self._must_read
        self._is_changed = self._must_read
        return self._status.is_ended

    def _save(self) -> None:
        if self._is_changed and _inode(self._folder.path) == self._folder_inode:
            self._status.pods = [pod.record for pod in self._pods.values()]
            try:
                state_files.write_atomic(self._folder.status, self._status, sync=False)
            except OSError:  # a full disk: retried at the next event and at the next round
                return
            self._is_changed = False
        for path in self._handled_requests:
            path.unlink(missing_ok=True)
        self._handled_requests.clear()

    def _deadlines(self) -> Iterator[float]:
        """Times of the next actions, by ``time.monotonic()``."""
        now = time.monotonic()
        yield self._round_at
        if self._backstop is not None and not self._status.ended_by:
            yield self._backstop.at
        if self._group is None and process_scan.IS_LINUX:
            yield self._adoption_at
        for pod in self._pods.values():
            if pod.record.kill_at is not None:
                yield pod.record.kill_at
            if pod.record.next_start is not None:
                yield now + pod.record.next_start - time.time()
            if pod.process is not None and pod.process.is_gone:
                yield self._orphan_scan_at
            elif pod.process is not None and pod.process.must_poll:
                yield now + _NO_PIDFD_SECONDS
                self._must_poll = True

    def _wait(self) -> None:
        """Sleep until an event or the next deadline."""
        deadline = min(self._deadlines())
        if self._has_copied_output:
            self._has_copied_output = False
            time.sleep(_OUTPUT_SECONDS)
        events = self._selector.select(max(0.0, deadline - time.monotonic()))
        for key, _ in events:
            if not isinstance(key.data, SupervisedPod):
                self._must_read |= bytes([WAKE_SIGNAL]) in os.read(key.data, 4096)
                self._must_poll = True
            elif key.data.process is not None and key.fileobj == key.data.process.pidfd:
                self._must_poll = True
            else:
                key.data.copy_output()
                self._has_copied_output = True
        if self._group is None and time.monotonic() >= self._adoption_at:
            self._look_at_adopted()
        if time.monotonic() >= self._round_at:
            self._round_at = time.monotonic() + _ROUND_SECONDS
            self._must_read = self._must_poll = True
            self._context.oom_kills.look()
            if self._lock is not None:
                self.name_in(self._lock)

    def _note_change(self) -> None:
        self._is_changed = True

    def _withdraw_problem(self, sentence: str) -> None:
        if sentence == self._status.problem:
            self._report_problem("")

    def _report_problem(self, sentence: str) -> None:
        if sentence != self._status.problem:
            self._status.problem = sentence
            self._is_changed = True


def _inode(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a folder, which distinguish it from another of its name; None if it is gone.

    Raises:
        OSError: The system cannot say, for example for lack of memory.
    """
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_dev, stat.st_ino


def _leads_session(proc: ProcessIdentity) -> bool:
    try:
        return os.getsid(proc.pid) == proc.pid
    except OSError:
        return False


def _rouse_keeper(folder: RunFolder) -> None:
    """See that the queue has a keeper: slots are free, an end is to be recorded, and it may have been killed."""
    from l2rtui.backends.queue_store import QueueStore, ensure_keeper

    # A folder of another name belongs to a test or another tool, which has no queue.
    if folder.root.path.name == "local":
        with contextlib.suppress(L2RError):  # the next command tries again
            ensure_keeper(QueueStore(folder.root.path.parent / "queue" / "local"))


def main(argv: list[str]) -> int:
    """Start in the background; return when the status names us, or with a reason on stderr.

    Returns:
        0: The supervisor is up. EXIT_ALREADY_SUPERVISED: Another one is. 1: It cannot work; stderr has the reason.
    """
    folder = RunFolder(Path(argv[1]))
    try:
        # The descriptor stays open until the process ends; the child inherits it, and the lock with it.
        lock = os.open(folder.supervisor_lock, os.O_RDWR | os.O_CREAT, 0o600)
        if not try_lock(lock):
            return EXIT_ALREADY_SUPERVISED
        record = state_files.read(folder.record, RunRecord)
    except (OSError, state_files.CorruptError) as error:
        print(error, file=sys.stderr)
        return 1
    ready_reader, ready_writer = os.pipe()
    if os.fork():
        # The app only waits for this process, so it never has to reap a supervisor.
        os.close(ready_writer)
        return 0 if os.read(ready_reader, 1) else 1
    os.close(ready_reader)
    os.setsid()
    log = os.open(folder.supervisor_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((null, log, log)):
        os.dup2(descriptor, number)
    try:
        supervisor = Supervisor(folder, record, clean_environ())
        supervisor.open()
        # Only after open(): a process that reads the name may signal us, and SIGUSR1 kills by default.
        supervisor.name_in(lock)
        os.write(ready_writer, b".")
        os.close(ready_writer)
        try:
            supervisor.run()
        finally:
            supervisor.close()
        _rouse_keeper(folder)
    except BaseException:  # noqa: BLE001  (no caller could show it; it must reach the supervisor's log)
        import traceback

        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    # Without interpreter clean-up: there are no threads, and every file is on disk.
    os._exit(main(sys.argv))
