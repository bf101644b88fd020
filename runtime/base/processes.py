"""Exit codes, restart back-off, process groups and threads, shared by all code that starts processes or waits."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final, NoReturn, TypeVar

T = TypeVar("T")
END_SECONDS: Final = 3.0
"""Time for threads and exit hooks of foreign code when the work of a process is done."""
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
"""From include/uapi/linux/prctl.h."""
_MAX_EXPONENT: Final = 64
"""Beyond it a pause is at its limit anyway, and 2 ** 1024 would not fit a float."""


def shell_exit_code(returncode: int) -> int:
    """Convert a return code of `Popen.wait` to the convention of shells and Kubernetes: 128 + n for signal n."""
    return 128 - returncode if returncode < 0 else returncode


def exponential_delay(failures: int, first_seconds: float, max_seconds: float) -> float:
    """Return the pause after this many consecutive failures: the first, doubled by each further one, up to a
    limit.
    """
    if failures < 1:
        return 0.0
    return min(first_seconds * 2.0 ** min(failures - 1, _MAX_EXPONENT), max_seconds)


def signal_process_group(leader: int, number: int) -> None:
    """Signal the process group of a child that we started in its own session; an empty group is not an error.

    A group's id stays taken while it has members, so the child's descendants are reached even after its end.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def adopt_orphans() -> None:
    """Make this process the parent of each descendant whose own parent ends (Linux; no effect elsewhere)."""
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_at_end_of(parent: int, number: int) -> None:
    """Let the kernel send this process a signal when its parent ends for any reason (Linux; no effect elsewhere).

    prctl(2), PR_SET_PDEATHSIG: the parent is the *thread* that started this process, so it must live as long.
    """
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it ended before the call, and its end is not reported again
            os.kill(os.getpid(), number)


def name_process(name: str) -> None:
    """Set the name that `ps -o comm` and `top` show for this process, 15 bytes at most (Linux; prctl(2))."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15])


@contextlib.contextmanager
def in_thread(name: str, turn: Callable[[], None], pause_seconds: float = 0.0) -> Iterator[None]:
    """Call a function again and again in a thread, after a pause before each call, until the context ends."""
    import threading

    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(pause_seconds):
            turn()

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


async def in_daemon_thread(work: Callable[[], T], drop: Callable[[T], None] | None = None) -> T:
    """Return the result of blocking work in a thread of its own, which the end of the program does not wait for.

    A pool's threads would be joined at the end, even those that wait for a server that hangs. ``drop`` gets a
    result that arrives after the caller was cancelled.
    """
    # Here: the supervisor of a local run has this module, and stays small without them.
    import asyncio
    import threading

    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            if drop is not None and error is None:
                drop(result)  # type: ignore[arg-type]  # it is a T: there was no error
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # as above

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  (it is raised again where it is awaited)
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the result is no longer needed
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="blocking-call", daemon=True).start()
    return await future


def end_process(code: int, seconds: float = END_SECONDS) -> NoReturn:
    """End this process with ``code``, by force where a thread or an exit hook of foreign code does not end."""
    # Here: the supervisor of a local run has this module, and stays small without them.
    import signal
    import threading
    import time

    def force() -> None:
        time.sleep(seconds)
        main = threading.main_thread()
        names = [thread.name for thread in threading.enumerate() if thread is not main and not thread.daemon]
        left = f"the thread {', '.join(names)}" if names else "an exit hook"
        os.write(2, f"l2r-runtime: ends by force: {left} has not ended within {seconds:g} s\n".encode())
        os._exit(code)

    # Python gives up its handlers while it ends: a signal would then replace the code.
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(number, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe: nobody reads it
            stream.flush()
    # A daemon thread: it also runs while the interpreter waits for hooks and other threads.
    threading.Thread(target=force, name="end", daemon=True).start()
    sys.exit(code)
