"""Builds by BuildKit, through the ``docker buildx`` program: the Engine's SDK knows the classic builder alone."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import AsyncGenerator, Mapping

from l2rtui.backends.images.progress import EngineError, Progress

_STEP = re.compile(r"#\d+ (\[[^\]]*\d+/\d+\]|DONE|CACHED|ERROR)")
_KEPT_LINES = 15
_LINE_BYTES = 1 << 20


async def has_buildx(program: str = "docker") -> bool:
    """Whether the plugin is installed."""
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "buildx",
            "version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return False
    return await process.wait() == 0


async def build(
    folder: str,
    dockerfile: str,
    tag: str,
    args: Mapping[str, str],
    labels: Mapping[str, str],
    network: str,
    *,
    program: str = "docker",
) -> AsyncGenerator[Progress, None]:
    """Build an image into the Engine's own store.

    Raises:
        EngineError: the build failed; the text is the end of its output.
    """
    # The builder named `default` is the Engine's own: it alone sees the base image that was built just before.
    argv = [program, "buildx", "--builder", "default", "build", "--progress", "plain", "--load", "-t", tag]
    argv += ["-f", f"{folder}/{dockerfile}", *(["--network", network] if network else [])]
    argv += [word for key, value in args.items() for word in ("--build-arg", f"{key}={value}")]
    argv += [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        *argv,
        folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=_LINE_BYTES,
        start_new_session=True,  # Ctrl-C is ours to pass on
    )
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    try:
        assert process.stdout is not None  # noqa: S101  (a pipe was asked for)
        async for raw in process.stdout:
            if line := raw.decode(errors="replace").strip():
                lines.append(line)
                yield Progress(line, bool(_STEP.match(line)))
        if await process.wait() != 0:
            raise EngineError("\n".join(lines))
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
