"""Take pictures: ``python -m tests.shots [cluster] [recording] [local]``; all of them without a name.

`cluster` and `recording` drive the app over an in-memory cluster (``sample_cluster``) and have no requirements;
`local` starts the example run on this machine and takes about two minutes. ``python -m tests.shots sheets FOLDER
[SCREEN…]`` draws every screen at three sizes, dark, light and without colour.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.shots import cluster, local, recording, sheets
from tests.shots.app_driver import FOLDER, ROOT

SETS = {"cluster": cluster.take, "recording": recording.take, "local": local.take}


def main(names: list[str]) -> int:
    """Take the named sets."""
    if names[:1] == ["sheets"]:
        if len(names) < 2 or (unknown := [name for name in names[2:] if name not in sheets.SCREENS]):
            what = f"There is no screen {unknown[0]}; there are" if len(names) > 1 else "sheets FOLDER [SCREEN…]:"
            print(f"{what} {', '.join(sheets.SCREENS)}.", file=sys.stderr)
            return 2
        asyncio.run(sheets.take(Path(names[1]), names[2:]))
        return 0
    if unknown := [name for name in names if name not in SETS]:
        print(f"There is no set {unknown[0]}; there are {', '.join(SETS)}.", file=sys.stderr)
        return 2
    os.chdir(ROOT)
    FOLDER.mkdir(exist_ok=True)
    for name in names or SETS:
        asyncio.run(SETS[name]())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
