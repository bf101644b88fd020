"""The meeting point of an elastic job: torch's store in this process, or an etcd beside it, until the job is over.

A process of its own, and not one of the nodes: whichever node dies, the others still find each other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtime.base import addresses, contract
from runtime.base.atomic_files import write_atomic
from runtime.base.cli_options import run_folder, run_id
from runtime.base.endpoint import Endpoint
from runtime.base.errors import FailedError
from runtime.base.launch_context import read_token
from runtime.base.metrics import Console
from runtime.base.signals import Stop
from runtime.jobs.elastic.plan import ADDRESS_FILE, meeting_point
from runtime.jobs.elastic.round_state import FAILED
from runtime.jobs.steps.markers import StepMarkers, checked_name

if TYPE_CHECKING:  # it imports torch, which takes longer than a port may stay untaken
    from runtime.jobs.elastic.shared_values import SharedValues

POLL_SECONDS: Final = 0.5
QUIET_SECONDS: Final = 5.0
"""How long it stays when the job is over: nodes that only now come here still learn of it."""
START_SECONDS: Final = 30.0
_BACKLOG: Final = 256
ReadEnd = Callable[[], str]
"""Reads how the job ended; the empty text while it goes on. Raises OSError and RendezvousStateError."""


def host(
    backend: str, set_name: str, port: int, until: str, environ: Mapping[str, str], stop: Stop, console: Console
) -> int:
    """Listen until the job is over, and return the exit code. Raises SetupError, FailedError and OSError."""
    name = set_name or ((environ.get(contract.ENV_SET) or "") if environ.get(contract.ENV_PEERS) else "")
    endpoint = meeting_point(environ, name, addresses.index(environ) if name else 0)
    marks = StepMarkers(run_folder(environ) / "steps", run_id(environ)) if until else None
    if marks is not None and marks.is_done(checked_name(until)):
        console.say(f"step {until} is done: nobody will come")
        return contract.EXIT_DONE
    with _listening(endpoint, port) as listener:
        address = listener.getsockname()[:2]
        with _store(listener, environ) if backend == "c10d" else _etcd(listener, environ, stop) as read_end:
            _announce(endpoint, address[0], address[1])
            console.say(f"rendezvous {backend} at {address[0]} port {address[1]} for {run_id(environ)}")
            return _attend(read_end, marks, until, stop, console)


def _attend(read_end: ReadEnd, marks: StepMarkers | None, until: str, stop: Stop, console: Console) -> int:
    """Wait for the end of the job."""
    over: float | None = None
    word = ""
    while not stop.is_set():
        if marks is not None and marks.is_done(until):
            console.say(f"step {until} is done")
            return contract.EXIT_DONE
        if over is None and (word := read_end()):
            over = time.monotonic()
            console.say(f"the training has {word}")
        if over is not None and time.monotonic() - over >= QUIET_SECONDS:
            return contract.EXIT_FAILED if word == FAILED else contract.EXIT_DONE
        time.sleep(POLL_SECONDS)
    console.say(f"rendezvous ends on {stop.reason}")
    return contract.EXIT_DONE


@contextlib.contextmanager
def _listening(endpoint: Endpoint, port: int) -> Iterator[socket.socket]:
    """Take the port before anything slow is imported. What is for this machine is not open to others."""
    is_private = endpoint.is_private()
    wanted_port = port or endpoint.port
    family = socket.AF_INET
    host_name = "127.0.0.1" if is_private else "0.0.0.0"  # noqa: S104  (other pods are to come in)
    if ":" in endpoint.host:
        family, host_name = socket.AF_INET6, "::1" if is_private else "::"
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        # A rendezvous that restarts must not wait until connections of its predecessor time out.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host_name, wanted_port))
        except OSError as error:
            raise FailedError(
                f"the rendezvous cannot listen at {host_name} port {wanted_port}: {error.strerror}"
            ) from error
        yield listener


def _announce(endpoint: Endpoint, host_name: str, port: int) -> None:
    if endpoint.folder is not None:
        endpoint.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(endpoint.folder / ADDRESS_FILE, f"{host_name}:{port}\n".encode(), is_durable=False)


@contextlib.contextmanager
def _store(listener: socket.socket, environ: Mapping[str, str]) -> Iterator[ReadEnd]:
    """Serve torch's store on the socket."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host_name, port = listener.getsockname()[:2]
    listener.listen(_BACKLOG)
    store = TCPStore(
        "::1" if ":" in host_name else "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=START_SECONDS),
        # torch takes the descriptor over; binding here first gives our sentence when the port is taken.
        master_listen_fd=listener.detach(),
    )
    from runtime.jobs.elastic.shared_values import StoreValues

    yield _reader(StoreValues(store), environ)


def _reader(values: SharedValues, environ: Mapping[str, str]) -> ReadEnd:
    """Return what reads the job's end from the nodes' state."""
    from torch.distributed.elastic.rendezvous import RendezvousStateError

    from runtime.jobs.elastic.rendezvous_session import decode_state, state_key
    from runtime.jobs.elastic.shared_values import signed

    values = signed(values, read_token(environ.get(contract.ENV_TOKEN_FILE)), run_id(environ))

    def read_end() -> str:
        try:
            return decode_state(values.read(state_key(run_id(environ)))).end
        except RendezvousStateError:
            return ""  # somebody without the token wrote there; the nodes say so, and the job has not ended

    return read_end


@contextlib.contextmanager
def _etcd(listener: socket.socket, environ: Mapping[str, str], stop: Stop) -> Iterator[ReadEnd]:
    """Run an etcd at the socket's address: its state lasts as long as this process, as the store's does."""
    from runtime.jobs.elastic.shared_values import EtcdValues

    binary = shutil.which("etcd")
    if binary is None:
        raise FailedError("there is no etcd here; install Debian's etcd-server, or take --backend c10d")
    host_name, port = listener.getsockname()[:2]
    listener.close()
    url = f"http://[{host_name}]:{port}" if ":" in host_name else f"http://{host_name}:{port}"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        other = f"http://127.0.0.1:{probe.getsockname()[1]}"
    folder = Path(tempfile.mkdtemp(prefix="l2r-etcd-"))
    with (folder / "log").open("wb") as log:
        # Its v2 interface is what torch speaks. It listens to no peer, and flushes nothing: it has nothing to keep.
        argv = (
            *(binary, "--enable-v2", "--data-dir", str(folder / "data"), "--unsafe-no-fsync"),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", other, "--initial-advertise-peer-urls", other),
            *("--initial-cluster", f"default={other}"),
        )
        # ETCD_* variables would override the arguments.
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=clean)
    try:
        local = "::1" if ":" in host_name else "127.0.0.1"
        read_end = _reader(EtcdValues(local, port), environ)
        _await_etcd(process, read_end, folder / "log", stop)

        def read() -> str:
            # An etcd may be slow on a busy machine, and all that it knows would be lost with this process.
            try:
                return read_end()
            except OSError:
                if process.poll() is None:
                    return ""
                raise FailedError(f"etcd ended with {process.returncode}: {_last_line(folder / 'log')}") from None

        yield read
    finally:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _await_etcd(process: subprocess.Popen[bytes], read_end: ReadEnd, log: Path, stop: Stop) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not stop.is_set():
        if process.poll() is not None:
            raise FailedError(f"etcd ended with {process.returncode}: {_last_line(log)}")
        with contextlib.suppress(OSError):
            read_end()
            return
        if time.monotonic() > deadline:
            raise FailedError(f"etcd does not answer within {START_SECONDS:g} s: {_last_line(log)}")
        time.sleep(0.1)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][-300:] if lines else "it said nothing"
