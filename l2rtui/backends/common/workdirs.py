"""Own code of runs: the archives that this machine stores, and the shell that prepares them in a container.

An archive is stored by the hash of its contents when its spec is read, so that every launch, relaunch and queued
run of the same files uses the same one. A backend copies it to where the run is, and needs it here no longer.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import os
import re
import shlex
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from l2rtui.config import state_dir
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.workload import Role, RunSpec, SetSpec, Workdir
from l2rtui.errors import BackendError
from runtime.base import installed_packages
from runtime.base.atomic_files import write_atomic

SUBJECT: Final = "workdir"
"""Subject of findings about own code."""
TREE: Final = "tree"
"""Name of the folder of the unpacked files; the processes start in it."""
PACKAGES: Final = "packages"
"""Name of the folder next to it, into which ``pip install`` of a setup command installs."""
CACHES: Final = frozenset(
    (".git", ".hg", ".svn", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache")
) | {".ruff_cache", ".ipynb_checkpoints", ".tox", ".nox", ".DS_Store", ".idea"}
"""Names that are never sent: what tools and repositories keep beside the code."""
_SUM: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_KEPT_SECONDS: Final = 60 * 86_400
"""Time after its last use for which an archive stays: a relaunch from the history needs it."""


# --- the archives ------------------------------------------------------------------------------------------------
def store(tar: bytes) -> tuple[str, int]:
    """Store a tar archive unless it is stored; return its hash and its compressed size. Raises OSError."""
    sha256 = hashlib.sha256(tar).hexdigest()
    path = archive_folder() / sha256
    if path.is_file():
        os.utime(path)
    else:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, gzip.compress(tar, mtime=0), is_shared=True, mode=0o600)
        _forget_old(path.parent)
    return sha256, path.stat().st_size


def packed(workdir: Workdir) -> bytes:
    """Return the stored archive of a workdir, compressed by gzip.

    Raises:
        BackendError: It is missing or damaged.
    """
    hint = "Launch from the spec file, which packs it again."
    path = path_of(workdir)
    try:
        data = path.read_bytes()
        os.utime(path)
    except OSError:
        raise BackendError(f"The workdir {workdir.sha256[:8]} is not stored on this machine.", hint) from None
    try:
        tar = gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        tar = b""
    if hashlib.sha256(tar).hexdigest() != workdir.sha256:
        path.unlink(missing_ok=True)  # the next reading of the spec file stores it again
        raise BackendError(f"The stored workdir {workdir.sha256[:8]} was damaged.", hint)
    return data


def path_of(workdir: Workdir) -> Path:
    """Return where the archive of a workdir is stored on this machine, or was."""
    # The hash of a stored spec is text from outside, and becomes a path here.
    return archive_folder() / (workdir.sha256 if _SUM.fullmatch(workdir.sha256) else "none")


def members(workdir: Workdir) -> Iterator[tuple[str, int, bytes | None]]:
    """Yield name, mode and content of each file and folder (content None), folders before their files.

    Raises:
        BackendError: As in `packed`.
    """
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed(workdir)))) as tar:
        for member in tar:
            file = tar.extractfile(member)
            yield member.name, member.mode, file.read() if file is not None else None


def unpack(workdir: Workdir, folder: Path) -> None:
    """Unpack a workdir into a new folder, beside one for packages. Raises BackendError and OSError."""
    tree = folder / TREE
    for path in (folder, tree, folder / PACKAGES):
        path.mkdir(mode=0o700)
    for name, mode, content in members(workdir):
        path = tree / name
        if content is None:
            path.mkdir(mode=0o700, exist_ok=True)
        else:
            path.write_bytes(content)
            path.chmod(mode)


def written_files(workdir: Workdir, folder: Path) -> list[Path]:
    """Return the files that a run has written or changed in its unpacked workdir: they exist nowhere else.

    Empty files, caches and what the setup commands have made are left out.
    """
    set_up_at = 0.0
    if workdir.setup:
        try:
            set_up_at = (folder / installed_packages.SETUP_DONE).stat().st_mtime
        except OSError:  # the setup has failed, so no process of the run has started
            return []
    unchanged = set()
    try:
        for name, _, content in members(workdir):
            path = folder / TREE / name
            if content is not None and _has_content(path, content):
                unchanged.add(path)
    except BackendError:  # it is no longer stored: keep all
        unchanged.clear()
    written = []
    for parent, folders, names in os.walk(folder / TREE):
        folders[:] = [name for name in folders if name not in CACHES]
        for name in names:
            path = Path(parent, name)
            status = path.lstat()
            is_new = stat.S_ISREG(status.st_mode) and status.st_size and status.st_ctime > set_up_at
            if is_new and path not in unchanged:
                written.append(path)
    return written


def _has_content(path: Path, content: bytes) -> bool:
    """Return True for a regular file with this content. Raises OSError if it cannot be read."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):  # the run has removed it
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == len(content) and path.read_bytes() == content


@functools.lru_cache(maxsize=32)
def packages_key(workdir: Workdir, image: str, env: tuple[tuple[str, str], ...]) -> str:
    """Return the key of the packages that the first setup commands install in an image; empty to store none."""
    pip = workdir.setup[: installed_packages.leading_pip(workdir.setup)]
    if not pip:
        return ""
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder:
        try:
            unpack(workdir, Path(folder, "own"))
        except (BackendError, OSError):  # preflight refuses it, or the pods have it already
            return ""
        place = [image, *installed_packages.variables_of_pip(env)]
        return installed_packages.key_of(pip, Path(folder, "own", TREE), place) or ""


def findings_of(specs: Iterable[RunSpec]) -> Iterator[Finding]:
    """Yield a refusal for each workdir that is no longer stored here, for example in a late relaunch."""
    for workdir in dict.fromkeys(spec.workdir for spec in specs if spec.workdir is not None):
        try:
            packed(workdir)
        except BackendError as error:
            yield Finding(Severity.REFUSAL, SUBJECT, error.message.rstrip("."), error.hint)


def archive_folder() -> Path:
    """Return the folder of the archives."""
    return state_dir() / "workdirs"


def _forget_old(folder: Path) -> None:
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                path.unlink()


# --- how processes see it ----------------------------------------------------------------------------------------
def workdir_of(spec: RunSpec, set_spec: SetSpec) -> Workdir | None:
    """Return the workdir in which the processes of a set start; None for those that run no code of the user's."""
    return None if set_spec.template or set_spec.role is Role.RENDEZVOUS else spec.workdir


def variables(root: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which Python finds the modules of a workdir that is unpacked in `root`."""
    paths = (f"{root}/{TREE}", f"{root}/{PACKAGES}", environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def setup_variables(root: str) -> dict[str, str]:
    """Return the variables of setup commands: pip installs beside the code, and never into the environment."""
    target = {"PIP_TARGET": f"{root}/{PACKAGES}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # `0` turns an option on whose name begins with no. The check reads the requirements of every package of the
    # environment, most of the time that pip takes for a small one, and knows nothing of a target.
    return target | {"PIP_NO_WARN_CONFLICTS": "0"}


_RUN: Final = """\
run() {
  { code=0; "$@" 2>&1 || code=$?; echo "$code" >"$root/.code"; } | tee "$root/.log"
  read -r code <"$root/.code"
  [ "$code" = 0 ] || { echo "setup: $* ended with exit code $code: $(grep . "$root/.log" | tail -n 1)"; exit 1; }
}
"""
"""Shell function that runs a command; if it fails, the last line of the log says which, and repeats its own last
line.
"""
_AGAIN: Final = """\
store={store}
stored="$store/{key}-$(python -V 2>&1 | tr -c 'A-Za-z0-9.\\n' -).tar" packages="$root/{name}"
if [ -n "$(find "$stored" -mmin -1440 2>/dev/null)" ] && tar -xf "$stored" -C "$packages" 2>/dev/null
then echo "setup: packages as an earlier run installed them: $stored"
else
rm -rf "$packages"; mkdir "$packages" || exit 1
{installing}{{ mkdir -p "$store" && new=$(mktemp "$store/.new-XXXXXX") && tar -cf "$new" -C "$packages" . \\
&& mv -f "$new" "$stored"
find "$store" -type f -mmin +1440 -exec rm -f {{}} +; }} 2>/dev/null || :
fi
"""
"""Shell that takes packages from a volume if they are from the last day, or installs and stores them. A volume that
cannot be written to costs only the time of the next setup.
"""
_PATH: Final = f'export PYTHONPATH="$root/{TREE}:$root/{PACKAGES}${{PYTHONPATH:+:$PYTHONPATH}}"\n'
"""An image may have a PYTHONPATH of its own, which a variable of the container would replace."""


def starting(root: str, command: Sequence[str], setup: Sequence[Sequence[str]] = ()) -> list[str]:
    """Return the command of a container that starts another one in an unpacked workdir.

    Args:
        setup: Commands to run before, at the first start of the container.
    """
    first = f'if [ ! -e "$root/.ready" ]; then\n{_set_up(root, setup)}fi\n' if setup else ""
    return _shell(f'root={shlex.quote(root)}\n{_PATH}cd "$root/tree"\n{first}exec "$@"', command)


def unpacking(root: str, archive: str, workdir: Workdir, store: str = "", key: str = "") -> list[str]:
    """Return the command of an init container that unpacks an archive and runs the setup commands.

    Args:
        store, key: Folder of a volume for the packages that pip installs, and their key; see `packages_key`.
    """
    script = f"""\
root={shlex.quote(root)} archive={shlex.quote(archive)}
[ ! -e "$root/.ready" ] || exit 0
rm -rf "$root/{TREE}" "$root/{PACKAGES}" && mkdir "$root/{TREE}" "$root/{PACKAGES}" || exit 1
sum=$(gzip -dc "$archive" | sha256sum | cut -c 1-64)
[ "$sum" = {workdir.sha256} ] || {{ echo "workdir: $archive is not the one that was packed"; exit 1; }}
gzip -dc "$archive" | tar -xf - -C "$root/{TREE}" || exit 1
{_PATH}cd "$root/{TREE}"
{_set_up(root, workdir.setup, store, key)}"""
    return _shell(script, ())


def _set_up(root: str, setup: Sequence[Sequence[str]], store: str = "", key: str = "") -> str:
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in setup_variables(root).items())
    commands = [f"run {shlex.join(command)}\n" for command in setup]
    if key:
        pip = installed_packages.leading_pip(setup)
        again = _AGAIN.format(store=shlex.quote(store), key=key, installing="".join(commands[:pip]), name=PACKAGES)
        commands[:pip] = [again]
    # In a shell of its own: the processes of the run do not get the variables of pip.
    return f'(\n{exports}{_RUN}{"".join(commands)}: >"$root/.ready"\n) || exit 1\n'


def _shell(script: str, command: Sequence[str]) -> list[str]:
    return ["/bin/sh", "-c", script, "l2r-workdir", *command]
