"""`l2r-runtime fetch`: its options, read without importing what they start."""

from __future__ import annotations

import argparse
from typing import Final

from runtime.stopping import Stop

EXAMPLES: Final = """\
examples:
  l2r-runtime fetch digits /l2r/data
  l2r-runtime fetch https://host/cifar-10-binary.tar.gz /l2r/data --sha256 c4a38c50…
  l2r-runtime fetch s3://bucket/train.py /l2r/program/ -- python /l2r/program/train.py

What DEST is: a folder if it ends with '/', if it is one already, or if an archive goes into it (.tar, .tar.gz, .tgz
and .zip are unpacked; --keep leaves them packed); else the name of the file. A download that was cut goes on where
it was cut if the server allows it; DEST changes when everything has come and the check sum is right.
Exit codes: 0 fetched, 1 failed, 2 wrong use, 143 stopped; with a COMMAND, the command's.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "fetch",
        help="bring a file, an archive or the digits to a folder",
        description="Fetch data: http://, https://, s3://, a path, or scikit-learn's digits as CIFAR-10 files.",
        usage="l2r-runtime fetch SOURCE [DEST] [--sha256 SUM] [--keep] [-- COMMAND...]",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help="http(s)://, s3://BUCKET/KEY, a path, or digits")
    parser.add_argument("dest", metavar="DEST", nargs="?", help="file or folder; left out, $L2R_DIR/data/")
    parser.add_argument("--sha256", default="", metavar="SUM", help="what came must have this check sum")
    parser.add_argument("--keep", action="store_true", help="do not unpack an archive")
    parser.set_defaults(start=start)


def start(options: argparse.Namespace, stop: Stop) -> int:
    """Fetch, then become the command if there is one."""
    import os
    import re
    from pathlib import Path

    from runtime import contract
    from runtime.commands import become, run_folder
    from runtime.fetching.fetch import fetch
    from runtime.metrics import Console
    from runtime.process import UsageError

    if options.sha256 and not re.fullmatch(r"[0-9a-fA-F]{64}", options.sha256):
        raise UsageError("--sha256 must be 64 hexadecimal digits")
    dest = options.dest if options.dest is not None else f"{run_folder(os.environ) / 'data'}/"
    is_folder = dest.endswith("/") or Path(dest).is_dir()
    fetch(
        options.source,
        Path(dest),
        Console(),
        stop,
        is_folder=is_folder,
        sha256=options.sha256.lower(),
        unpacks=not options.keep,
    )
    if options.command:
        become(options.command)
    return contract.EXIT_DONE
