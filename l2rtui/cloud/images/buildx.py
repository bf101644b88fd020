"""Builds with BuildKit through ``docker buildx``: Docker's Python library only has the classic builder."""

from __future__ import annotations

import asyncio
import contextlib
import re
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import deque
from collections.abc import AsyncGenerator

from l2rtui.cloud.images.build_progress import BuildFailedError, BuildStage, Progress

_STEP = re.compile(r"#\d+ (\[[^\]]*\d+/\d+\]|DONE|CACHED|ERROR)")
_TAIL_LINES = 15
_LINE_BYTES = 1 << 20


async def has_buildx(program: str = "docker") -> bool:
    """Return True when the plugin is installed."""
    try:
        process = await asyncio.create_subprocess_exec(
            program, "buildx", "version", stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
        )
    except OSError:
        return False
    return await process.wait() == 0


async def build(stage: BuildStage, *, program: str = "docker") -> AsyncGenerator[Progress, None]:
    """Build an image into the Engine's own store; yield the lines of its output as progress.

    Raises BuildFailedError with the end of the output.
    """
    # The builder named `default` is the Engine's own: only it sees the base image that was just built.
    argv = [program, "buildx", "--builder", "default", "build", "--progress", "plain", "--load", "-t", stage.tag]
    argv += ["-f", f"{stage.folder}/{stage.dockerfile}", *(["--network", stage.network] if stage.network else [])]
    argv += [word for key, value in stage.args.items() for word in ("--build-arg", f"{key}={value}")]
    argv += [word for key, value in stage.labels.items() for word in ("--label", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        *argv,
        stage.folder,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        limit=_LINE_BYTES,  # asyncio's 64 KiB is too short for some tools' progress lines
        start_new_session=True,  # only we receive Ctrl-C, and we end the build
    )
    lines: deque[str] = deque(maxlen=_TAIL_LINES)
    try:
        assert process.stdout is not None  # noqa: S101  (a pipe was asked for)
        async for raw in process.stdout:
            if line := raw.decode(errors="replace").strip():
                lines.append(line)
                yield Progress(line, bool(_STEP.match(line)))
        if await process.wait() != 0:
            raise BuildFailedError("\n".join(lines))
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
