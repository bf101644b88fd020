"""Downloads data to a run's volume from the web, a bucket or a file: verified, completely or not at all.

Here are the options of `l2r-runtime fetch`; the command's code is imported when it starts.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Final

from runtime.base import contract
from runtime.base.cli_options import Commands, add_command, become, run_folder
from runtime.base.errors import SetupError
from runtime.base.signals import Stop

_TEXT: Final = """\
download a file, an archive or the digits into a folder
Fetch data: http://, https://, s3://, a path, or scikit-learn's digits as CIFAR-10 files.

examples:
  l2r-runtime fetch digits /l2r/data
  l2r-runtime fetch https://host/cifar-10-binary.tar.gz /l2r/data --sha256 c4a38c50…
  l2r-runtime fetch s3://bucket/train.py /l2r/program/ -- python /l2r/program/train.py

What DEST is: a folder if it ends with '/', if it is one already, or if an archive goes into it (.tar, .tar.gz, .tgz
and .zip are unpacked; --keep leaves them packed); else the name of the file. A download that was cut goes on where
it was cut if the server allows it; DEST changes when everything has come and the check sum is right. Folders that
exist are merged: files of the same names are replaced, and others stay.
Exit codes: 0 fetched, 1 failed, 2 wrong use, 143 stopped; with a COMMAND, the command's.
"""


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    usage = "l2r-runtime fetch SOURCE [DEST] [--sha256 SUM] [--keep] [--max-ratio N] [-- COMMAND...]"
    parser = add_command(commands, "fetch", _TEXT, start, usage)
    parser.add_argument("source", metavar="SOURCE", help="http(s)://, s3://BUCKET/KEY, a path, or digits")
    parser.add_argument("dest", metavar="DEST", nargs="?", help="file or folder; left out, $L2R_DIR/data/")
    parser.add_argument("--sha256", default="", metavar="SUM", help="what came must have this check sum")
    parser.add_argument("--keep", action="store_true", help="do not unpack an archive")
    parser.add_argument(
        "--max-ratio",
        type=int,
        default=200,
        metavar="N",
        help="most unpacked bytes for each packed one (%(default)s)",
    )


def start(options: argparse.Namespace, stop: Stop) -> int:
    """Fetch, then replace this process by the command if there is one."""
    from runtime.base.metrics import Console
    from runtime.jobs.fetch.download import fetch

    if options.sha256 and not re.fullmatch(r"[0-9a-fA-F]{64}", options.sha256):
        raise SetupError("--sha256 must be 64 hexadecimal digits")
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
        max_ratio=max(1, options.max_ratio),
    )
    if options.command:
        become(options.command)
    return contract.EXIT_DONE
