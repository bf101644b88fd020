"""Random kills on this machine: each run goes on or says why not, and every receipt and account is true.

    python -m tests.bench.kills [--strikes 100] [--seed 1] [--only disk memory]

Two runs live on a small tmpfs of their own: PPO with two workers, and a job that prints 20 kB lines and starts
processes that clear their environment and session. A random process of theirs, or their supervisor, is killed,
stopped, given no more memory or descriptors; or their disk is filled. Within 20 s every run has to go on, or the
commands `runs` or `pods` have to say why it does not; when the fault is over, it goes on. Now and then a run is
destroyed in the middle of a fault: its receipt is compared with all processes and files of the machine, and its
counts of segments with each other.

The disk needs the right to mount (root, or a user namespace); without it that fault is left out, and the program
says so. Where it may write a memory cgroup, the kernel's OOM killer acts; otherwise a limit of the address space.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

MOUNTED = "L2R_KILLS_MOUNTED"
DISK_BYTES = 96 << 20
RECOVERY_SECONDS = 90.0
"""After a fault is over: a crash loop's pause, a start of torch on a busy machine, two records."""
_POLL_SECONDS = 0.25
_LOOK_SECONDS = 2.0
SEGMENT_STEPS, NUM_ENVS = 32, 4

ENVIRONMENT = """\
import time
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class SlowPole(CartPoleEnv):
    def step(self, action):
        time.sleep(0.005)
        return super().step(action)

gymnasium.register("SlowPole-v0", SlowPole, max_episode_steps=500)
"""
TRAIN = f"""\
kind: learner-workers
name: {{name}}
program: slow_pole.py
learner: {{{{slots: 0}}}}
workers: [{{{{name: w, replicas: 2, slots: 0, grace_seconds: 2}}}}]
train:
  environment: slow_pole:SlowPole-v0
  algorithm: ppo
  num_envs: {NUM_ENVS}
  segment_steps: {SEGMENT_STEPS}
  ppo: {{{{batch_steps: 256, minibatch_size: 128, epochs: 1}}}}
"""
LOUD = """\
kind: job
name: {name}
job:
  slots: 0
  restart: Always
  grace_seconds: 2
  command: [bash, -c, "(env -i setsid sleep {mark} </dev/null >/dev/null 2>&1 &); exec {python} -S -u {program}"]
"""
PRINTER = """\
import os, sys, time
file = os.open({beats!r}, os.O_RDWR | os.O_CREAT)
count = 0
while True:
    print("x" * 20_000)
    count += 1
    os.pwrite(file, f"{{time.time():17.6f}} {{count:9d}}".encode(), 0)
    time.sleep(0.1)
"""


class PromiseError(Exception):
    """The program broke a promise."""


class Training:
    """PPO with two workers. It goes on if new records show that the networks learned from more steps."""

    def __init__(self, name: str, world: World, text: str = TRAIN) -> None:
        self.name, self._world, self.mark = name, world, ""
        (world.home / "slow_pole.py").write_text(ENVIRONMENT)
        self.spec = world.home / f"{name}.yaml"
        self.spec.write_text(text.format(name=name))

    def has_gone_on(self, since: float) -> bool:
        return self._are_newer(self._records(self._data), since)

    @staticmethod
    def _are_newer(records: list[dict[str, Any]], since: float) -> bool:
        steps = [record["learned_env_steps"] for record in records if record["time"] > since]
        return len(steps) > 1 and steps[-1] > steps[-2]

    def check_accounts(self, results: Path) -> int:
        """Compare the counts of each record; return the number of records."""
        records = self._records(results)
        earlier = 0
        for record in records:
            parts = sum(record[name] for name in ("accepted", "refused", "lost", "missing"))
            if record["sent"] != parts:
                raise PromiseError(
                    f"{self.name}: {record['sent']} segments were sent, {parts} are accounted for: {record}"
                )
            learned, accepted = record["learned_env_steps"], record["accepted"] * SEGMENT_STEPS * NUM_ENVS
            if learned != accepted:
                raise PromiseError(f"{self.name}: {learned} steps in the store, {accepted} accepted: {record}")
            if record["env_steps"] < max(earlier, learned):
                raise PromiseError(f"{self.name}: env_steps fell behind {max(earlier, learned)}: {record}")
            earlier = record["env_steps"]
        return len(records)

    @property
    def _data(self) -> Path:
        return self._world.runs / self.name / "data"

    def _records(self, folder: Path) -> list[dict[str, Any]]:
        try:
            return self._read((folder / "metrics.jsonl").read_bytes())
        except OSError:
            return []

    @staticmethod
    def _read(text: bytes) -> list[dict[str, Any]]:
        records = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError):  # cut by a full disk or a kill
                record = json.loads(line)
                if isinstance(record, dict) and record.get("l2r") == "learner" and "learned_env_steps" in record:
                    records.append(record)
        return records


class Printing:
    """A job that prints 20 kB lines. It goes on if its beats, outside of the small disk, are newer."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.mark = f"{random.SystemRandom().randrange(10**5, 10**6)}.25"
        self._beats = world.home / f"{name}.beats"
        program = world.home / f"{name}.py"
        program.write_text(PRINTER.format(beats=str(self._beats)))
        self.spec = world.home / f"{name}.yaml"
        self.spec.write_text(LOUD.format(name=name, mark=self.mark, python=sys.executable, program=program))

    def has_gone_on(self, since: float) -> bool:
        with contextlib.suppress(OSError, ValueError):
            at, count = self._beats.read_text().split()
            return float(at) > since and int(count) > 1
        return False

    def check_accounts(self, _results: Path) -> int:
        return 0


class World:
    """A home of its own, its runs, and the commands of their owner."""

    def __init__(self, home: Path, *, seed: int, within: float) -> None:
        self.home, self.disk = home, home / "disk"
        self.runs = self.disk / "l2rtui" / "local" / "runs"
        self.within = within
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.said: Counter[str] = Counter()
        self.slowest: dict[str, float] = {}
        self.records = self.receipts = self._count = 0
        self.environ = {key: value for key, value in os.environ.items() if not key.startswith(("L2R", "XDG"))}
        self.environ |= {
            "HOME": str(home),
            "XDG_STATE_HOME": str(self.disk),
            "XDG_CONFIG_HOME": str(home / "config"),
        }
        self.environ |= {
            "L2RTUI_LOG_MAX_BYTES": str(2 << 20),
            "L2RTUI_BACKOFF_SECONDS": "1",
            "OMP_NUM_THREADS": "1",
        }
        self.kinds: tuple[type[Training | Printing], ...] = (Training, Printing)
        self.living: list[Training | Printing] = []

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "l2rtui", "--backend", "local", *words]

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.argv(*words),
            env=self.environ,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        if "Traceback" in done.stderr:
            raise PromiseError(f"{' '.join(words)}: {done.stderr}")
        return done

    def look(self, *words: str) -> Any:
        done = self.command(*words, "-o", "json")
        if done.returncode:
            raise PromiseError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)

    def launch(self, kind: type[Training | Printing]) -> None:
        self._count += 1
        run = kind(f"{kind.__name__.lower()}-{self._count}", self)
        began = time.time()
        done = self.command("launch", "-f", str(run.spec), "--yes")
        if done.returncode:
            raise PromiseError(f"{run.name} cannot be launched: {done.stderr}")
        self.living.append(run)
        self.await_progress(began, f"launch of {run.name}", [run])

    def processes(self, run: Training | Printing | None = None) -> list[psutil.Process]:
        """Processes of a run or of all runs, found without the program's own means."""
        folder = str(self.runs / run.name if run else self.runs)
        marks = {item.mark for item in ([run] if run else self.living) if item.mark}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                words = process.cmdline()
                has_folder = any(
                    value == folder or value.startswith(f"{folder}/")
                    for value in (*process.environ().values(), *words)
                )
                if has_folder or marks & set(words):
                    found.append(process)
        return found

    # --- promises ---
    def await_answers(self, since: float, fault: str) -> None:
        """Wait until every run has gone on, or its rows say why it has not."""
        silent = {run.name: run for run in self.living}
        looked = 0.0
        rows: list[str] = []
        while silent:
            silent = {name: run for name, run in silent.items() if not run.has_gone_on(since)}
            if silent and time.time() > since + self.within:
                raise PromiseError(f"{fault}: after {self.within:g} s {', '.join(silent)} stands still; {rows}")
            if silent and time.monotonic() > looked + _LOOK_SECONDS:
                looked = time.monotonic()
                rows = []
                for row in (*self.look("runs"), *self.look("pods")):
                    if row["run"] in silent:
                        rows.append(json.dumps({key: row.get(key) for key in _ROW}))
                        if {row["level"], row.get("learning_level") or "ok"} - {"ok"}:
                            del silent[row["run"]]
                            self.said[row.get("reason") or row.get("learning") or row.get("status") or "?"] += 1
            time.sleep(_POLL_SECONDS)
        self._note_slowest(fault, time.time() - since)

    def await_progress(self, since: float, fault: str, runs: list[Training | Printing] | None = None) -> None:
        """Wait until every run has gone on."""
        looked = time.monotonic()
        while waiting := [
            run.name for run in (self.living if runs is None else runs) if not run.has_gone_on(since)
        ]:
            if time.time() > since + RECOVERY_SECONDS:
                rows = [row for row in (*self.look("runs"), *self.look("pods")) if row["run"] in waiting]
                raise PromiseError(f"{fault}: {', '.join(waiting)} did not go on in {RECOVERY_SECONDS:g} s; {rows}")
            if time.monotonic() > looked + 5.0:
                looked = time.monotonic()
                self.command("runs")  # as an owner does, who then gets a new supervisor
            time.sleep(_POLL_SECONDS)
        self._note_slowest(f"after {fault}", time.time() - since)

    def destroy(self, run: Training | Printing, during: Callable[[], None] = lambda: None) -> None:
        """Destroy a run, and compare its receipt with what is left."""
        argv = self.argv("destroy", run.name, "--yes", "-o", "json")
        with subprocess.Popen(
            argv, env=self.environ, cwd=self.home, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            during()
            out, error = process.communicate(timeout=180)
        self.living.remove(run)
        left = self.left_of(run)
        self.receipts += 1
        try:
            receipt = json.loads(out)
        except ValueError:
            raise PromiseError(f"no receipt of {run.name}, exit code {process.returncode}: {out} {error}") from None
        if left and not receipt["left"]:
            raise PromiseError(f"FALSE RECEIPT of {run.name}: {receipt}, but there are {left}")
        if receipt["left"]:
            raise PromiseError(f"{run.name} is not gone: {receipt}; there are {left}")
        if kept := self.results_of(run, receipt):
            self.records += run.check_accounts(kept)
            shutil.rmtree(kept)  # the disk is small

    def left_of(self, run: Training | Printing) -> list[str]:
        """What a destroyed run has left behind, found without the program's own means."""
        left = [f"{item.pid} {item.cmdline()}" for item in self.processes(run) if item.is_running()]
        return left + [str(path) for path in (self.runs / run.name,) if path.exists()]

    def results_of(self, _run: Training | Printing, receipt: dict[str, Any]) -> Path | None:
        """Folder with the results that a destroyed run has left on purpose."""
        return Path(receipt["kept"]) if receipt["kept"] else None

    def _note_slowest(self, fault: str, seconds: float) -> None:
        name = fault.partition(" of ")[0]
        self.slowest[name] = max(self.slowest.get(name, 0.0), round(seconds, 1))


_ROW: Final = ("run", "pod", "status", "state", "level", "sentence", "learning_reason")


# --- faults: each does harm, and undoes it at its end ---
@contextlib.contextmanager
def kill(_world: World, victim: psutil.Process) -> Iterator[None]:
    victim.kill()
    yield


@contextlib.contextmanager
def stop(_world: World, victim: psutil.Process) -> Iterator[None]:
    victim.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.Error):
            victim.resume()


@contextlib.contextmanager
def lowered(pid: int, limit: int, value: int) -> Iterator[None]:
    """Lower the soft limit of a process, and restore it."""
    earlier = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (value, earlier[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, limit, earlier)


@contextlib.contextmanager
def starve_of_descriptors(_world: World, victim: psutil.Process) -> Iterator[None]:
    with lowered(victim.pid, resource.RLIMIT_NOFILE, 3):
        yield


@contextlib.contextmanager
def starve_of_memory(world: World, victim: psutil.Process) -> Iterator[None]:
    group = memory_group()
    if group is not None and world.random.random() < 0.5:
        with group_of_little_memory(group) as little:
            (little / "cgroup.procs").write_text(str(victim.pid))
            yield
        return
    with lowered(victim.pid, resource.RLIMIT_AS, victim.memory_info().vms):
        yield


@contextlib.contextmanager
def fill_disk(world: World, _victim: psutil.Process) -> Iterator[None]:
    filler = world.disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * (1 << 16))
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    try:
        yield
    finally:
        filler.unlink()


Faults = Mapping[str, Callable[["World", psutil.Process], contextlib.AbstractContextManager[None]]]
FAULTS: Final[Faults] = {
    "kill": kill,
    "stop": stop,
    "memory": starve_of_memory,
    "descriptors": starve_of_descriptors,
}
DISK: Final[Faults] = {"disk": fill_disk}


def memory_group() -> Path | None:
    """Return the memory cgroup of this process (v1), if a child of it may be created."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            folder = Path(f"/sys/fs/cgroup/memory{path}")
            return folder if os.access(folder, os.W_OK) else None
    return None


@contextlib.contextmanager
def group_of_little_memory(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="l2r-kills-", dir=parent))
    (folder / "memory.limit_in_bytes").write_text(str(256 << 10))
    try:
        yield folder
    finally:
        deadline = time.monotonic() + 10.0
        while pids := (folder / "cgroup.procs").read_text().split():  # what is being killed leaves it later
            assert time.monotonic() < deadline, pids
            for pid in pids:
                with contextlib.suppress(OSError):
                    (parent / "cgroup.procs").write_text(pid)
            time.sleep(0.05)
        folder.rmdir()


def strike(world: World, names: list[str], faults: Faults) -> None:
    """Inflict one random fault on one random process, and hold the program to its promises."""
    fault = world.random.choice(names)
    processes = sorted(world.processes(), key=lambda process: process.pid)
    victim = world.random.choice([process for process in processes if "sleep" not in process.cmdline()])
    words = " ".join(victim.cmdline()[-2:])[-60:]
    began = time.time()
    what = f"{fault} of {'the disk' if fault == 'disk' else f'{victim.pid} {words}'}"
    print(f"{world.done.total():4} {what}", flush=True)
    world.done[fault] += 1
    with contextlib.suppress(psutil.Error, ProcessLookupError), faults[fault](world, victim):
        if world.random.random() < 0.12:  # a destroy in the middle of the fault
            run = world.random.choice(world.living)
            world.destroy(run, lambda: kill_some(world, run))
            world.done["destroy"] += 1
        else:
            world.await_answers(began, what)
    if len(world.living) < len(world.kinds):
        missing = {kind for kind in world.kinds if not any(isinstance(run, kind) for run in world.living)}
        world.launch(missing.pop())
    world.await_progress(time.time(), what)


def kill_some(world: World, run: Training | Printing) -> None:
    """Kill up to two processes of a run while it is destroyed, its supervisor among them."""
    for _ in range(world.random.randrange(3)):
        time.sleep(world.random.random())
        if processes := world.processes(run):
            with contextlib.suppress(psutil.Error):
                world.random.choice(processes).kill()


def siege(world: World, options: argparse.Namespace, names: list[str], faults: Faults) -> int:
    """Strike, destroy everything, and print the counts; return 1 if a promise was broken."""
    problems: list[str] = []
    try:
        for kind in world.kinds:
            world.launch(kind)
        for _ in range(options.strikes):
            try:
                strike(world, names, faults)
            except PromiseError as problem:
                problems.append(str(problem))
                print(f"PROBLEM: {problem}", flush=True)
                if len(problems) >= options.most:
                    break
        for run in tuple(world.living):
            world.destroy(run, lambda: None)
    except PromiseError as problem:
        problems.append(str(problem))
        print(f"PROBLEM: {problem}", flush=True)
    finally:
        while processes := world.processes():  # a watcher that has woken up starts one more
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.kill()
    report = {
        "strikes": dict(world.done),
        "problems": len(problems),
        "receipts": world.receipts,
        "seed": options.seed,
    }
    print(json.dumps(report | {"records": world.records, "said": dict(world.said), "slowest": world.slowest}))
    return int(bool(problems))


def arguments_of(
    program: str, about: str | None, faults: Iterable[str], arguments: list[str]
) -> argparse.Namespace:
    """Read a command line."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=(about or "").splitlines()[0])
    parser.add_argument("--strikes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 10**6))
    parser.add_argument("--within", type=float, default=20.0, help="seconds for an answer (%(default)s)")
    parser.add_argument("--most", type=int, default=3, help="problems after which it ends (%(default)s)")
    parser.add_argument("--only", nargs="*", choices=[*faults], default=[*faults])
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Mount the disk, in a namespace of its own, and strike."""
    options = arguments_of("tests.bench.kills", __doc__, (*FAULTS, *DISK), arguments)
    can_mount = MOUNTED in os.environ
    probe = ["unshare", "-rm", "true"]
    if not can_mount and shutil.which(probe[0]) and not subprocess.call(probe, stderr=subprocess.DEVNULL):
        argv = ["unshare", "-rm", sys.executable, "-m", "tests.bench.kills", *arguments]
        os.execvpe(argv[0], argv, os.environ | {MOUNTED: "1"})  # noqa: S606  (a signal must reach the clean-up)
    names = [name for name in options.only if can_mount or name not in DISK]
    if not can_mount:
        print("NOT DONE: the full disk, for want of the right to mount", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="l2r-kills-") as folder:
        home = Path(folder)
        (home / "disk").mkdir()
        if can_mount:
            size = f"size={DISK_BYTES}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(home / "disk")], check=True)
        try:
            world = World(home, seed=options.seed, within=options.within)
            return siege(world, options, names, {**FAULTS, **DISK})
        finally:
            if can_mount:
                subprocess.run(["umount", "-l", str(home / "disk")], check=False)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
