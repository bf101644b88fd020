"""The supervisor of one run: ``python -m l2rtui.backends.local.supervisor RUNDIR``.

One small process in a session of its own, which outlives the app. It brings what is in line with what is wanted
(``run.json`` and ``requests/``), writes down what is (``status.json``), moves what the processes print into their
logs, and ends when no process runs or will run. It sleeps until a process ends, prints, or a signal says that there
is something new to read; nothing is asked of it that the next supervisor could not read again from the same files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from l2rtui.backends.local import files, processes
from l2rtui.backends.local.capacity import usable_cores
from l2rtui.backends.local.environment import clean_environ
from l2rtui.backends.local.layout import RunFolder
from l2rtui.backends.local.pod import Pod, Surroundings
from l2rtui.backends.local.records import PodRecord, PodWish, Proc, RunRecord, RunStatus, StopRequest
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import CENTRES

WAKE = signal.SIGUSR1
"""Something is new in ``run.json`` or ``requests/``; sent only to the supervisor that its lock file names."""
EXIT_HELD = 3
"""Another supervisor looks after this run."""
_ROUND_SECONDS = 10.0
"""How often it looks whether its folder is still there; also the latest retry of a status that was not written."""
_GATHER_SECONDS = 0.02
"""While processes print, their output is fetched so often: line by line would cost five times as much."""
_GUARD_BYTES = 128
"""Size of the lock file, always: an earlier supervisor's longer name must not show behind a shorter one."""
_SWEEP_SECONDS = 0.02
_SWEEPS = 100
"""How often a supervisor that takes over looks for processes without a pod before it goes on."""
_NO_PIDFD_SECONDS = 0.5


class Supervisor:
    """Looks after the pods of one run; see the module."""

    def __init__(self, folder: RunFolder, record: RunRecord, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._home = _inode(folder.path)
        self._selector = selectors.DefaultSelector()
        cwd = record.cwd if os.access(record.cwd, os.X_OK) else str(folder.path)
        os.chdir(cwd)
        self._around = Surroundings(
            folder, record, environ, usable_cores(), cwd, self._selector, self._note_change, self._complain
        )
        self.me = processes.identify(os.getpid())
        self._status = RunStatus(run=record.uid, supervisor=self.me)
        self._pods: dict[str, Pod] = {}
        self._wishes: dict[str, PodWish] = {}
        self._is_changed = True
        self._has_news = True
        self._may_have_ended = True
        self._has_pumped = False
        self._destroy: StopRequest | None = None
        self._answered: list[Path] = []
        # By the clock that no change of the date moves.
        self._round_at = time.monotonic() + _ROUND_SECONDS
        self._sweep_at = 0.0
        self._sweep_wait = _SWEEP_SECONDS

    def open(self) -> None:
        """Listen for signals and take over what an earlier supervisor has left."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        # Handlers instead of SIG_IGN: what is ignored stays ignored in the processes that we start.
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, WAKE):
            signal.signal(number, lambda *_: None)
        self._selector.register(reader, selectors.EVENT_READ, reader)
        self._take_over()
        self._save()

    def run(self) -> None:
        """Look after the pods until all are over."""
        while True:
            if self._has_news:
                self._has_news = False
                self._is_changed |= not self._folder.status.exists()
                self._read_wishes()
                self._read_requests()
                self._follow_wishes()
            if self._may_have_ended:
                self._may_have_ended = False
                for pod in self._pods.values():
                    if pod.look():
                        self._sweep_at = 0.0
            self._sweep()
            self._end_finished()  # after the last process has been taken note of, or it would be noticed late
            for pod in tuple(self._pods.values()):
                pod.tick()
            self._settle_stopped()
            self._save()
            if all(pod.is_over for pod in self._pods.values()) and self._is_last_word():
                return
            if not self._has_news:
                self._wait()

    # --- what is wanted ----------------------------------------------------------------------------------------
    def _read_wishes(self) -> None:
        if _inode(self._folder.path) != self._home:  # somebody removed the folder: then nothing is wanted any more
            self._destroy = self._destroy or StopRequest()
            return
        try:
            record = files.read(self._folder.record, RunRecord)
        except FileNotFoundError:
            record = None
        except files.CorruptError:
            with contextlib.suppress(OSError):
                files.set_aside(self._folder.record)
            record = None
        if record is None or record.uid != self._around.record.uid:
            with contextlib.suppress(OSError):  # the disk is full: the next round tries again
                files.write_atomic(self._folder.record, self._around.record, sync=True)
        else:
            self._around.record = record
        self._wishes = {wish.plan.name: wish for wish in self._around.record.pods}

    def _read_requests(self) -> None:
        by_uid = {pod.record.uid: pod for pod in self._pods.values()}
        for path in sorted(self._folder.requests.glob("*.json")):
            try:
                request = files.read(path, StopRequest)
            except FileNotFoundError:
                continue
            except files.CorruptError:
                with contextlib.suppress(OSError):
                    files.set_aside(path)
                continue
            if path == self._folder.destroy_request:
                self._destroy = request
                continue
            if pod := by_uid.get(path.stem):
                pod.stop(request.grace_seconds)
            self._answered.append(path)

    def _follow_wishes(self) -> None:
        if self._destroy is not None:
            self._wishes = {}
            if not self._status.is_destroying:
                self._status.is_destroying = self._is_changed = True
        for name, pod in self._pods.items():
            wish = self._wishes.get(name)
            if wish is None or wish.uid != pod.record.wish:
                pod.stop(self._destroy.grace_seconds if self._destroy else None)
        for name, wish in self._wishes.items():
            if name not in self._pods:
                self._pods[name] = pod = Pod.new(self._around, wish)
                pod.start()

    def _end_finished(self) -> None:
        """When those that a run is about have succeeded it is finished: whoever they could not tell waits for ever.

        That is the learner; the workers of parameter servers, and the nodes of an elastic job.
        """
        role = CENTRES.get(self._around.record.spec.kind)
        if role is None:
            return
        centre = [pod for pod in self._pods.values() if pod.record.plan.set_spec.role is role]
        if centre and all(pod.has_succeeded for pod in centre):
            for pod in self._pods.values():
                pod.finish()

    # --- what is -----------------------------------------------------------------------------------------------
    def _take_over(self) -> None:
        """Go on from the last status; without one, from the processes themselves."""
        self._read_wishes()
        try:
            records = files.read(self._folder.status, RunStatus).pods
        except FileNotFoundError:
            records = self._found_again()
        except files.CorruptError:
            files.set_aside(self._folder.status)
            records = self._found_again()
        for record in records:
            self._pods[record.plan.name] = pod = Pod(self._around, record)
            pod.take_over()
        known_or_none = {""} | {record.uid for record in records if record.proc}
        uid = self._around.record.uid
        for _ in range(_SWEEPS):
            if not processes.kill_marked(lambda one: one.run_id == uid and one.pod_id not in known_or_none):
                break
            time.sleep(_SWEEP_SECONDS)

    def _found_again(self) -> list[PodRecord]:
        """Records for the pods whose processes run although nobody wrote them down: found by mark and pipe."""
        found = []
        uid = self._around.record.uid
        for one in processes.marked(lambda one: one.run_id == uid and one.pod in self._wishes):
            pipes = sorted(self._folder.pipes.glob(f"{one.pod_id}.*"))
            if pipes and _leads_session(one.proc):
                wish = self._wishes[one.pod]
                record = PodRecord(uid=one.pod_id, wish=wish.uid, plan=wish.plan, created=wish.created)
                record.proc, record.serial = one.proc, int(pipes[-1].suffix[1:])
                record.phase, record.started = Phase.RUNNING, time.time()
                found.append(record)
        return found

    def _sweep(self) -> None:
        """End what processes that ended have left behind, wherever it hides; only then does their pod go on."""
        gone = {pod.record.uid: pod for pod in self._pods.values() if pod.child is not None and pod.child.is_gone}
        if not gone or time.monotonic() < self._sweep_at:
            return
        left = {one.pod_id for one in processes.kill_marked(lambda one: one.pod_id in gone)}
        self._sweep_wait = min(2 * self._sweep_wait, 1.0) if left else _SWEEP_SECONDS
        self._sweep_at = time.monotonic() + self._sweep_wait if left else 0.0
        for uid, pod in gone.items():
            if uid not in left:
                pod.conclude()

    def _settle_stopped(self) -> None:
        """Replace pods that were stopped and are still wanted; forget those that are not."""
        for name, pod in tuple(self._pods.items()):
            if pod.child is not None or not pod.record.is_terminating:
                continue
            wish = self._wishes.get(name)
            if wish is None:
                del self._pods[name]
            elif wish.uid != pod.record.wish:
                self._pods[name] = Pod.new(self._around, wish)
                self._pods[name].start()
            else:
                self._pods[name] = pod.replacement()
            self._is_changed = True

    def _is_last_word(self) -> bool:
        """Say in the status that we end; whoever asks after that starts another supervisor."""
        self._status.is_ended = self._is_changed = True
        self._save()
        if self._destroy is None:
            known = self._around.record
            self._read_wishes()
            self._has_news = self._around.record != known or any(self._folder.requests.glob("*.json"))
        self._status.is_ended = not self._has_news
        self._is_changed = self._has_news
        return self._status.is_ended

    def _save(self) -> None:
        if self._is_changed and _inode(self._folder.path) == self._home:
            self._status.pods = [pod.record for pod in self._pods.values()]
            try:
                files.write_atomic(self._folder.status, self._status, sync=False)
            except OSError:  # a full disk: tried again at the next event, and at the next round
                return
            self._is_changed = False
        for path in self._answered:
            path.unlink(missing_ok=True)
        self._answered.clear()

    def _due(self) -> Iterator[float]:
        """When the next things are to be done, by ``time.monotonic()``."""
        now = time.monotonic()
        yield self._round_at
        for pod in self._pods.values():
            if pod.record.kill_at is not None:
                yield pod.record.kill_at
            if pod.record.next_start is not None:
                yield now + pod.record.next_start - time.time()
            if pod.child is not None and pod.child.is_gone:
                yield self._sweep_at
            elif pod.child is not None and pod.child.is_unwatched:
                yield now + _NO_PIDFD_SECONDS
                self._may_have_ended = True

    def _wait(self) -> None:
        """Sleep until something happens or is due."""
        due = min(self._due())
        if self._has_pumped:
            self._has_pumped = False
            time.sleep(_GATHER_SECONDS)
        events = self._selector.select(max(0.0, due - time.monotonic()))
        for key, _ in events:
            if not isinstance(key.data, Pod):
                self._has_news |= bytes([WAKE]) in os.read(key.data, 4096)
                self._may_have_ended = True
            elif key.data.child is not None and key.fileobj == key.data.child.pidfd:
                self._may_have_ended = True
            else:
                key.data.pump()
                self._has_pumped = True
        if time.monotonic() >= self._round_at:
            self._round_at = time.monotonic() + _ROUND_SECONDS
            self._has_news = True

    def _note_change(self) -> None:
        self._is_changed = True

    def _complain(self, sentence: str) -> None:
        if sentence != self._status.problem:
            self._status.problem = sentence
            self._is_changed = True


def _inode(path: Path) -> tuple[int, int] | None:
    """Which folder this is; None when it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _leads_session(proc: Proc) -> bool:
    try:
        return os.getsid(proc.pid) == proc.pid
    except OSError:
        return False


def main(argv: list[str]) -> int:
    """Start in the background; return when the status names us, or with a reason on stderr.

    Returns:
        0: the supervisor is up. EXIT_HELD: another one is. 1: it cannot work, stderr says why.
    """
    folder = RunFolder(Path(argv[1]))
    try:
        guard = os.open(folder.guard, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        record = files.read(folder.record, RunRecord)
    except BlockingIOError:
        return EXIT_HELD
    except (OSError, files.CorruptError) as error:
        print(error, file=sys.stderr)
        return 1
    told, tell = os.pipe()
    if os.fork():
        # The app waits for this process alone, so it never has a supervisor to reap.
        os.close(tell)
        return 0 if os.read(told, 1) else 1
    os.close(told)
    os.setsid()
    diary = os.open(folder.diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, diary, diary)):
        os.dup2(descriptor, number)
    try:
        supervisor = Supervisor(folder, record, clean_environ())
        supervisor.open()
        os.pwrite(guard, msgspec.json.encode(supervisor.me).ljust(_GUARD_BYTES), 0)
        os.write(tell, b".")
        os.close(tell)
        supervisor.run()
    except BaseException:  # noqa: BLE001  (nobody is above us to show it; it must reach the diary)
        import traceback

        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    # Without the clean-up of an interpreter: there are no threads, and every file is on disk.
    os._exit(main(sys.argv))
