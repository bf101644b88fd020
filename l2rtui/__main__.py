"""``python -m l2rtui``, and the ``l2rtui`` console script."""

from __future__ import annotations

import signal
import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    """Run the command line; return its exit code."""
    try:
        from l2rtui.cli.main import main as run

        code = run()
    except KeyboardInterrupt:  # before a verb has started: nothing was changed
        print("l2rtui: Interrupted: nothing was done.", file=sys.stderr)
        return EXIT_INTERRUPTED
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # completed work can no longer be interrupted
        signal.signal(number, signal.SIG_IGN)
    return code


if __name__ == "__main__":
    sys.exit(main())
